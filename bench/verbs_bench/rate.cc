// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// Requests per second on one queue pair. The target of one-sided operations sleeps in
// rdma_get_cm_event or, on request, polls a completion queue; the receiver of Sends polls.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "ends/round_trips.h"
#include "verbs_bench/endpoint.h"
#include "verbs_bench/modes.h"

namespace uwarp::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kPolled = 64;            // completions asked for at a time
constexpr int kNotOffered = 77;           // exit status, as test programs have it for a skip
constexpr uint32_t kReceivesPerSend = 4;  // posted at the server for each outstanding Send

Shape shape_of(const Options& options) {
  Shape shape;
  shape.send_wr = options.depth;
  if (options.opcode == IBV_WR_SEND) shape.recv_wr = options.depth * kReceivesPerSend;
  shape.cq_entries = std::max(shape.send_wr, shape.recv_wr);
  shape.memory_bytes = std::max<size_t>(size_t{options.size} * options.buffers, 4096);
  shape.buffers = options.buffers;
  return shape;
}

/// Polls until asked to stop, and posts each used receive again.
void poll_receives(Resources& resources, ibv_qp* qp, uint32_t size, const std::atomic<bool>& stop) {
  std::vector<ibv_wc> completions(kPolled);
  while (!stop.load(std::memory_order_relaxed)) {
    const uint32_t count = poll(resources.recv_cq, completions);
    resources.post_receives(qp, count, size);
  }
}

void serve(const Options& options) {
  Acceptor acceptor(options, shape_of(options));
  std::atomic<bool> stop{false};
  std::thread poller;
  acceptor.run(
      [&](Resources& resources, ibv_qp* qp) {
        if (options.opcode == IBV_WR_SEND) {
          resources.post_receives(qp, shape_of(options).recv_wr, options.size);
        }
      },
      [&](Resources& resources, ibv_qp* qp) {
        if (options.opcode != IBV_WR_SEND && !options.peer_polls) return;
        poller = std::thread([&resources, qp, &options, &stop] {
          poll_receives(resources, qp, options.size, stop);
        });
      });
  stop.store(true);
  if (poller.joinable()) poller.join();
}

/// Ends the program if the device cannot do what is asked: that is no failure.
void require_support(ibv_context* context, ibv_wr_opcode opcode) {
  ibv_device_attr attributes{};
  if (ibv_query_device(context, &attributes) != 0) die("ibv_query_device");
  if (opcode != IBV_WR_ATOMIC_FETCH_AND_ADD || attributes.atomic_cap != IBV_ATOMIC_NONE) return;
  std::fprintf(stderr, "verbs_bench: this device has no atomics\n");
  std::exit(kNotOffered);
}

/// A list of equal requests of which the last one is signalled.
class RequestList {
 public:
  RequestList(const Options& options, Resources& resources, const RemoteMemory& remote)
      : options_(options),
        resources_(resources),
        remote_(remote),
        places_(options.list, resources.sge(options.size)),
        requests_(options.list) {
    for (size_t i = 0; i < requests_.size(); ++i) {
      ibv_send_wr& request = requests_[i];
      request.opcode = options.opcode;
      request.sg_list = &places_[i];
      request.num_sge = 1;
      request.next = i + 1 < requests_.size() ? &requests_[i + 1] : nullptr;
      if (options.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        request.wr.atomic = {remote.address, 1, 0, remote.rkey};
      } else {
        request.wr.rdma = {remote.address, remote.rkey};
      }
    }
    requests_.back().send_flags = IBV_SEND_SIGNALED;
  }
  void post(ibv_qp* qp) {
    if (options_.buffers > 1) take_next_buffers();
    ibv_send_wr* bad = nullptr;
    if ((errno = ibv_post_send(qp, requests_.data(), &bad)) != 0) die("ibv_post_send");
  }

 private:
  /// The same one at both ends.
  void take_next_buffers() {
    const uint64_t first = resources_.sge(0).addr;
    for (size_t i = 0; i < requests_.size(); ++i) {
      places_[i] = resources_.next_buffer(options_.size);
      requests_[i].wr.rdma.remote_addr = remote_.address + (places_[i].addr - first);
    }
  }

  const Options& options_;
  Resources& resources_;
  const RemoteMemory remote_;
  std::vector<ibv_sge> places_;
  std::vector<ibv_send_wr> requests_;
};

}  // namespace

void rate(const Options& options) {
  if (!options.client()) return serve(options);
  Connector connector(options, shape_of(options));
  rdma_cm_id* id = connector.open_one();
  require_support(id->verbs, options.opcode);
  Resources& resources = connector.resources();
  RequestList list(options, resources, connector.remote());
  std::vector<ibv_wc> completions(kPolled);
  const uint32_t lists = options.depth / options.list;
  const auto start = Clock::now();
  double elapsed = 0, done = 0;
  for (uint32_t open = 0; elapsed < options.seconds;) {
    for (; open < lists; ++open) list.post(id->qp);
    const uint32_t count = poll(resources.send_cq, completions);
    open -= count;
    done += static_cast<double>(count) * options.list;
    elapsed = std::chrono::duration<double>(Clock::now() - start).count();
  }
  print_figure("per_second", done / elapsed);
  print_figure("mb_per_second", done * options.size / elapsed / 1e6);
  rdma_disconnect(id);
}

}  // namespace uwarp::bench
