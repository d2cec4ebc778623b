// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// Ping-pong of Sends between two threads that sleep until a completion event comes: in
// ibv_get_cq_event, or in poll() or epoll on the channel's descriptor and then in
// ibv_get_cq_event.
#include <poll.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <thread>
#include <vector>

#include "ends/round_trips.h"
#include "verbs_bench/endpoint.h"
#include "verbs_bench/modes.h"

namespace uwarp::bench {
namespace {

constexpr uint32_t kSends = 64;
constexpr uint32_t kSignalEvery = 16;
constexpr uint32_t kReceives = 64;

Shape shape_of(const Options& options) {
  Shape shape;
  shape.send_wr = kSends;
  shape.recv_wr = kReceives;
  shape.cq_entries = kReceives;
  shape.memory_bytes = std::max<size_t>(options.size, 4096);
  return shape;
}

class Party {
 public:
  Party(const Options& options, Resources& resources, ibv_qp* qp)
      : options_(options), resources_(resources), qp_(qp), sge_(resources.sge(options.size)) {
    if (ibv_req_notify_cq(resources.recv_cq, 0) != 0) die("ibv_req_notify_cq");
    if (options.wait != Wait::kEpoll) return;
    epoll_ = epoll_create1(EPOLL_CLOEXEC);
    epoll_event event{};
    event.events = EPOLLIN;
    if (epoll_ctl(epoll_, EPOLL_CTL_ADD, resources.channel->fd, &event) != 0) die("epoll_ctl");
  }

  void send() {
    ibv_send_wr request{}, *bad = nullptr;
    request.opcode = IBV_WR_SEND;
    request.sg_list = &sge_;
    request.num_sge = 1;
    if (++sent_ % kSignalEvery == 0) request.send_flags = IBV_SEND_SIGNALED;
    if ((errno = ibv_post_send(qp_, &request, &bad)) != 0) die("ibv_post_send");
    if (sent_ % kSignalEvery == 0) ibv_poll_cq(resources_.send_cq, 1, &completion_);
  }

  /// Waits for one receive and posts it again.
  void receive() {
    while (poll(resources_.recv_cq, {&completion_, 1}) == 0) {
      if (options_.wait != Wait::kSpin) await_event();
    }
    resources_.post_receives(qp_, 1, options_.size);
  }

 private:
  void await_event() {
    if (options_.wait == Wait::kPoll) {
      pollfd one{resources_.channel->fd, POLLIN, 0};
      if (::poll(&one, 1, -1) < 0 && errno != EINTR) die("poll");
    } else if (options_.wait == Wait::kEpoll) {
      epoll_event event{};
      if (epoll_wait(epoll_, &event, 1, -1) < 0 && errno != EINTR) die("epoll_wait");
    }
    ibv_cq* cq = nullptr;
    void* context = nullptr;
    if (ibv_get_cq_event(resources_.channel, &cq, &context) != 0) die("ibv_get_cq_event");
    ibv_ack_cq_events(cq, 1);
    if (ibv_req_notify_cq(cq, 0) != 0) die("ibv_req_notify_cq");
  }

  const Options& options_;
  Resources& resources_;
  ibv_qp* const qp_;
  ibv_sge sge_;
  ibv_wc completion_{};
  int epoll_ = -1;
  uint32_t sent_ = 0;
};

void serve(const Options& options) {
  Acceptor acceptor(options, shape_of(options));
  acceptor.run([&](Resources& resources,
                   ibv_qp* qp) { resources.post_receives(qp, kReceives, options.size); },
               [&](Resources& resources, ibv_qp* qp) {
                 // Ends with the process: it may be asleep for good when the client leaves.
                 std::thread([&options, &resources, qp] {
                   for (Party party(options, resources, qp);;) {
                     party.receive();
                     party.send();
                   }
                 }).detach();
               });
  std::_Exit(0);
}

}  // namespace

void wake_up(const Options& options) {
  if (!options.client()) return serve(options);
  Connector connector(options, shape_of(options));
  rdma_cm_id* id = connector.open_one();
  Party party(options, connector.resources(), id->qp);
  RoundTrips trips(options.seconds);
  while (trips.go_on()) {
    trips.begin();
    party.send();
    party.receive();
    trips.end();
  }
  trips.print_halves();
  std::fflush(stdout);
  rdma_disconnect(id);
}

}  // namespace uwarp::bench
