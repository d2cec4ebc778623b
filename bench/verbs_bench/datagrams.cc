// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// UD Sends from one queue pair to one or many of other processes.
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "ends/crowd.h"
#include "verbs_bench/endpoint.h"
#include "verbs_bench/modes.h"

namespace uwarp::bench {
namespace {

constexpr uint32_t kQkey = 0x11111111;
constexpr uint8_t kPort = 1;
constexpr int kGidIndex = 0;
constexpr uint32_t kRouteBytes = sizeof(ibv_grh);  // in front of what is received
constexpr size_t kPolled = 64;
constexpr uint32_t kReceivesPerSend = 4;  // outstanding, for all receivers together
constexpr uint32_t kFewestReceives = 32;  // of one receiver
constexpr uint32_t kBuffers = 512;
constexpr int kWaitMs = 10;

/// What a sender has to know of a receiver.
struct QueuePairAddress {
  ibv_gid gid;
  uint32_t number;
};

ibv_context* open_device(const std::string& name) {
  ibv_device** devices = ibv_get_device_list(nullptr);
  for (ibv_device** each = devices; each != nullptr && *each != nullptr; ++each) {
    if (!name.empty() && name != ibv_get_device_name(*each)) continue;
    ibv_context* context = ibv_open_device(*each);
    if (context == nullptr) die("ibv_open_device");
    ibv_free_device_list(devices);
    return context;
  }
  errno = ENODEV;
  die("ibv_get_device_list");
}

void modify(ibv_qp* qp, ibv_qp_attr attributes, ibv_qp_state state, int mask) {
  attributes.qp_state = state;
  if ((errno = ibv_modify_qp(qp, &attributes, IBV_QP_STATE | mask)) != 0) die("ibv_modify_qp");
}

ibv_qp* make_queue_pair(const Resources& resources, const Shape& shape) {
  ibv_qp_init_attr init{};
  init.send_cq = resources.send_cq;
  init.recv_cq = resources.recv_cq;
  init.qp_type = IBV_QPT_UD;
  init.cap = {shape.send_wr, shape.recv_wr, 1, 1, 0};
  ibv_qp* qp = ibv_create_qp(resources.pd(), &init);
  if (qp == nullptr) die("ibv_create_qp");
  ibv_qp_attr attributes{};
  attributes.port_num = kPort;
  attributes.qkey = kQkey;
  modify(qp, attributes, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
  modify(qp, attributes, IBV_QPS_RTR, 0);
  modify(qp, attributes, IBV_QPS_RTS, IBV_QP_SQ_PSN);
  return qp;
}

Shape shape_of_receivers(const Options& options, int count) {
  Shape shape;
  const auto all = static_cast<uint32_t>(options.crowd.receivers);
  shape.recv_wr = std::max(kFewestReceives, options.depth * kReceivesPerSend / all);
  shape.cq_entries = shape.recv_wr * static_cast<uint32_t>(count);
  shape.buffers = kBuffers;
  shape.memory_bytes = size_t{kBuffers} * (options.size + kRouteBytes);
  return shape;
}

/// The queue pairs of one process, on one completion queue.
class UdReceivers final : public Receivers {
 public:
  UdReceivers(const Options& options, int count)
      : polls_(options.crowd.polls),
        bytes_(options.size + kRouteBytes),
        context_(open_device(options.device)),
        resources_(context_, shape_of_receivers(options, count)),
        completions_(kPolled) {
    const Shape shape = shape_of_receivers(options, count);
    for (int i = 0; i < count; ++i) {
      qps_.push_back(make_queue_pair(resources_, shape));
      resources_.post_receives(qps_.back(), shape.recv_wr, bytes_, static_cast<uint64_t>(i));
    }
    if (ibv_req_notify_cq(resources_.recv_cq, 0) != 0) die("ibv_req_notify_cq");
  }

  std::vector<char> addresses() const override {
    QueuePairAddress one{};
    if (ibv_query_gid(context_, kPort, kGidIndex, &one.gid) != 0) die("ibv_query_gid");
    std::vector<char> all;
    for (const ibv_qp* qp : qps_) {
      one.number = qp->qp_num;
      const auto* bytes = reinterpret_cast<const char*>(&one);
      all.insert(all.end(), bytes, bytes + sizeof one);
    }
    return all;
  }

  uint64_t take() override {
    const uint32_t count = poll(resources_.recv_cq, completions_);
    if (count == 0 && !polls_) await_event();
    for (uint32_t i = 0, run; i < count; i += run) {
      // What came for one queue pair in a row is given back as a list.
      const uint64_t receiver = completions_[i].wr_id;
      for (run = 1; i + run < count && completions_[i + run].wr_id == receiver;) ++run;
      resources_.post_receives(qps_[receiver], run, bytes_, receiver);
    }
    return count;
  }

 private:
  void await_event() const {
    pollfd one{resources_.channel->fd, POLLIN, 0};
    if (::poll(&one, 1, kWaitMs) != 1) return;
    ibv_cq* cq = nullptr;
    void* context = nullptr;
    if (ibv_get_cq_event(resources_.channel, &cq, &context) != 0) die("ibv_get_cq_event");
    ibv_ack_cq_events(cq, 1);
    if (ibv_req_notify_cq(cq, 0) != 0) die("ibv_req_notify_cq");
  }

  const bool polls_;
  const uint32_t bytes_;
  ibv_context* const context_;
  Resources resources_;
  std::vector<ibv_qp*> qps_;
  std::vector<ibv_wc> completions_;
};

Shape shape_of_sender(const Options& options) {
  Shape shape;
  shape.send_wr = options.depth;
  shape.cq_entries = options.depth;
  shape.memory_bytes = options.size;
  return shape;
}

/// Sends lists, of which the last request is signalled, to one receiver after the other.
class UdSender {
 public:
  UdSender(const Options& options, const Audience& audience)
      : lists_(options.depth / options.list),
        resources_(open_device(options.device), shape_of_sender(options)),
        qp_(make_queue_pair(resources_, shape_of_sender(options))),
        sge_(resources_.sge(options.size)),
        requests_(options.list),
        completions_(kPolled) {
    for (size_t i = 0; i < audience.size(); ++i) add_target(audience.address(i));
    for (ibv_send_wr& request : requests_) {
      request.opcode = IBV_WR_SEND;
      request.sg_list = &sge_;
      request.num_sge = 1;
    }
  }

  void send(size_t count) {
    for (size_t part; count > 0; count -= part) {
      part = std::min(count, requests_.size());
      while (outstanding_ == lists_) outstanding_ -= poll(resources_.send_cq, completions_);
      post(part);
      ++outstanding_;
    }
  }

 private:
  struct Target {
    ibv_ah* handle;
    uint32_t number;
  };

  void add_target(const char* bytes) {
    QueuePairAddress address{};
    std::memcpy(&address, bytes, sizeof address);
    ibv_ah*& handle = handles_[{bytes, sizeof address.gid}];
    if (handle == nullptr) handle = make_handle(address.gid);
    targets_.push_back({handle, address.number});
  }
  ibv_ah* make_handle(const ibv_gid& gid) const {
    ibv_ah_attr attributes{};
    attributes.is_global = 1;
    attributes.port_num = kPort;
    attributes.grh.dgid = gid;
    attributes.grh.sgid_index = kGidIndex;
    attributes.grh.hop_limit = 64;
    ibv_ah* handle = ibv_create_ah(resources_.pd(), &attributes);
    if (handle == nullptr) die("ibv_create_ah");
    return handle;
  }
  void post(size_t count) {
    for (size_t i = 0; i < count; ++i) {
      ibv_send_wr& request = requests_[i];
      const bool last = i + 1 == count;
      request.next = last ? nullptr : &requests_[i + 1];
      request.send_flags = last ? IBV_SEND_SIGNALED : 0;
      request.wr.ud = {targets_[next_].handle, targets_[next_].number, kQkey};
      next_ = next_ + 1 < targets_.size() ? next_ + 1 : 0;
    }
    ibv_send_wr* bad = nullptr;
    if ((errno = ibv_post_send(qp_, requests_.data(), &bad)) != 0) die("ibv_post_send");
  }

  const uint32_t lists_;
  Resources resources_;
  ibv_qp* const qp_;
  ibv_sge sge_;
  std::vector<ibv_send_wr> requests_;
  std::vector<ibv_wc> completions_;
  std::map<std::string, ibv_ah*> handles_;  // by the bytes of the GID
  std::vector<Target> targets_;
  uint32_t outstanding_ = 0;  // lists
  size_t next_ = 0;
};

}  // namespace

void datagrams(const Options& options) {
  measure_crowd<UdReceivers, UdSender, QueuePairAddress>(options);
}

}  // namespace uwarp::bench
