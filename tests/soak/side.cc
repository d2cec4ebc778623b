// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "soak/side.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

namespace soak {
namespace {

using namespace std::chrono_literals;

constexpr int kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                        IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND;

/// Ends the process if a call fails that must not; the parent process notices.
template <typename T>
T must(T result, const char* what) {
  if (result) return result;
  std::fprintf(stderr, "soak: %s: %s\n", what, std::strerror(errno));
  std::abort();
}
void must_be_zero(int error, const char* what) {
  if (error == 0) return;
  std::fprintf(stderr, "soak: %s: %s\n", what, std::strerror(error > 0 ? error : errno));
  std::abort();
}

/// The directory of regions, which the first connection over shared memory makes for good.
bool is_kept(int folder, const char* entry) {
  char target[64] = {};
  return readlinkat(folder, entry, target, sizeof target - 1) > 0 &&
         std::strstr(target, "uwarp-regions") != nullptr;
}

size_t entries(const char* folder) {
  DIR* open = must(opendir(folder), folder);
  size_t count = 0;
  while (const dirent* entry = readdir(open)) count += is_kept(dirfd(open), entry->d_name) ? 0 : 1;
  closedir(open);
  return count;
}

ibv_context* open_device() {
  const char* wanted = std::getenv("UWARP_TEST_DEVICE");
  ibv_device** list = must(ibv_get_device_list(nullptr), "ibv_get_device_list");
  ibv_context* context = nullptr;
  for (ibv_device** each = list; *each != nullptr && context == nullptr; ++each) {
    if (std::strcmp(ibv_get_device_name(*each), wanted != nullptr ? wanted : "uwarp_lo") == 0)
      context = ibv_open_device(*each);
  }
  ibv_free_device_list(list);
  return must(context, "no device; run this under uwarp-run");
}

}  // namespace

Possessions possessions() { return {entries("/proc/self/fd"), entries("/proc/self/task")}; }

bool shrinks_to(const Possessions& before) {
  for (int tries = 0; tries < 3000; ++tries) {
    const Possessions now = possessions();
    if (now.files <= before.files && now.threads <= before.threads) return true;
    std::this_thread::sleep_for(10ms);
  }
  return false;
}

Side::Side(std::byte* memory, uint32_t links, bool sleeps, Sink sink)
    : memory_(memory), sink_(std::move(sink)), links_(links) {
  context_ = open_device();
  fcntl(context_->async_fd, F_SETFL, fcntl(context_->async_fd, F_GETFL) | O_NONBLOCK);
  must_be_zero(ibv_query_gid(context_, 1, 0, &gid_), "ibv_query_gid");
  pd_ = must(ibv_alloc_pd(context_), "ibv_alloc_pd");
  if (sleeps) {
    channel_ = must(ibv_create_comp_channel(context_), "ibv_create_comp_channel");
    fcntl(channel_->fd, F_SETFL, fcntl(channel_->fd, F_GETFL) | O_NONBLOCK);
  }
  for (size_t i = 0; i < kQueues; ++i) {
    queues_.push_back(
        must(ibv_create_cq(context_, kQueueEntries, nullptr, channel_, 0), "ibv_create_cq"));
  }
  ibv_srq_init_attr shape{};
  shape.attr.max_wr = kSharedReceives;
  shape.attr.max_sge = 1;
  shared_ = must(ibv_create_srq(pd_, &shape), "ibv_create_srq");
  shared_region_ =
      must(ibv_reg_mr(pd_, memory_, Layout::shared_bytes(), IBV_ACCESS_LOCAL_WRITE), "ibv_reg_mr");
}

Side::~Side() {
  for (LinkEnd& end : links_) {
    if (end.qp == nullptr) continue;
    must_be_zero(ibv_destroy_qp(end.qp), "ibv_destroy_qp");
    if (end.window != nullptr) must_be_zero(ibv_dealloc_mw(end.window), "ibv_dealloc_mw");
    for (const auto& own : end.own_regions) must_be_zero(ibv_dereg_mr(own.second), "ibv_dereg_mr");
    if (end.region != nullptr) must_be_zero(ibv_dereg_mr(end.region), "ibv_dereg_mr");
  }
  must_be_zero(ibv_destroy_srq(shared_), "ibv_destroy_srq");
  must_be_zero(ibv_dereg_mr(shared_region_), "ibv_dereg_mr");
  for (ibv_cq* queue : queues_) must_be_zero(ibv_destroy_cq(queue), "ibv_destroy_cq");
  if (channel_ != nullptr) must_be_zero(ibv_destroy_comp_channel(channel_), "destroy channel");
  must_be_zero(ibv_dealloc_pd(pd_), "ibv_dealloc_pd");
  must_be_zero(ibv_close_device(context_), "ibv_close_device");
}

void Side::execute(const Command& command) {
  switch (command.kind) {
    case Command::kPrepare:
      return prepare(command);
    case Command::kConnect:
      return connect(command);
    case Command::kPost:
      return post(command);
    case Command::kReceive:
      return post_receive(command);
    case Command::kError:
      return fail(command);
    case Command::kResize:
      return must_be_zero(
          ibv_resize_cq(queues_[command.link % kQueues], static_cast<int>(command.length)),
          "ibv_resize_cq");
    case Command::kRegister:
      return churn(command);
    case Command::kQuit:
      return;
  }
}

Side::LinkEnd& Side::make(uint32_t link) {
  LinkEnd& end = links_[link];
  ibv_qp_init_attr shape{};
  shape.send_cq = shape.recv_cq = queues_[link % kQueues];
  shape.srq = uses_shared_queue(link) ? shared_ : nullptr;
  shape.cap = {kSends, kReceives, 1, 1, 128};
  shape.qp_type = IBV_QPT_RC;
  end.qp = must(ibv_create_qp(pd_, &shape), "ibv_create_qp");
  link_by_qpn_[end.qp->qp_num] = link;
  return end;
}

void Side::prepare(const Command& command) {
  LinkEnd& end = links_[command.link];
  ibv_qp_attr attributes{};
  if (end.qp == nullptr) {
    make(command.link);
  } else {
    attributes.qp_state = IBV_QPS_RESET;
    must_be_zero(ibv_modify_qp(end.qp, &attributes, IBV_QP_STATE), "to RESET");
  }
  if (end.window != nullptr) must_be_zero(ibv_dealloc_mw(end.window), "ibv_dealloc_mw");
  if (end.region != nullptr) must_be_zero(ibv_dereg_mr(end.region), "ibv_dereg_mr");
  std::byte* memory = memory_ + Layout::link(command.link);
  end.region = must(ibv_reg_mr(pd_, memory, Layout::link_bytes(), kAccess), "ibv_reg_mr");
  end.window = must(ibv_alloc_mw(pd_, IBV_MW_TYPE_2), "ibv_alloc_mw");
  end.window_key = end.window->rkey;
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = 1;
  attributes.qp_access_flags = kAccess;
  must_be_zero(ibv_modify_qp(end.qp, &attributes,
                             IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
               "to INIT");
  end.psn = command.imm & 0xffffff;
  Report report{};
  report.kind = Report::kPrepared;
  report.link = command.link;
  report.id = command.id;
  report.address = {gid_, end.qp->qp_num, end.psn, reinterpret_cast<uint64_t>(memory_),
                    end.region->rkey};
  sink_(report);
}

void Side::connect(const Command& command) {
  LinkEnd& end = links_[command.link];
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = IBV_MTU_1024;
  attributes.dest_qp_num = command.peer.qpn;
  attributes.rq_psn = command.peer.psn;
  attributes.max_dest_rd_atomic = 8;
  attributes.min_rnr_timer = 12;
  attributes.ah_attr.is_global = 1;
  attributes.ah_attr.port_num = 1;
  attributes.ah_attr.grh.dgid = command.peer.gid;
  attributes.ah_attr.grh.hop_limit = 1;
  must_be_zero(ibv_modify_qp(end.qp, &attributes,
                             IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                 IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
               "to RTR");
  attributes.qp_state = IBV_QPS_RTS;
  attributes.timeout = 20;  // 4 s, because peers are stopped at times and machines may be slow
  attributes.retry_cnt = 7;
  attributes.rnr_retry = 7;
  attributes.sq_psn = end.psn;
  attributes.max_rd_atomic = 8;
  must_be_zero(ibv_modify_qp(end.qp, &attributes,
                             IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                 IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC),
               "to RTS");
}

void Side::refuse(const Command& command, int error) {
  Report report{};
  report.kind = Report::kRefused;
  report.link = command.link;
  report.id = command.id;
  report.status = static_cast<uint32_t>(error);
  sink_(report);
}

void Side::post(const Command& command) {
  LinkEnd& end = links_[command.link];
  ibv_mr* region = end.region;
  if (command.own_region != 0) {
    region = must(ibv_reg_mr(pd_, memory_ + command.offset, command.length, IBV_ACCESS_LOCAL_WRITE),
                  "ibv_reg_mr");
    end.own_regions[command.id] = region;
  }
  ibv_sge sge{reinterpret_cast<uint64_t>(memory_ + command.offset), command.length, region->lkey};
  ibv_send_wr request{};
  request.wr_id = command.id;
  request.sg_list = &sge;
  request.num_sge = command.length == 0 ? 0 : 1;
  request.opcode = static_cast<ibv_wr_opcode>(command.opcode);
  request.send_flags = command.flags;
  request.imm_data = command.imm;
  switch (request.opcode) {
    case IBV_WR_SEND_WITH_INV:
    case IBV_WR_LOCAL_INV:
      request.invalidate_rkey = request.opcode == IBV_WR_LOCAL_INV ? end.window_key : command.rkey;
      if (request.opcode == IBV_WR_LOCAL_INV) request.num_sge = 0;
      break;
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
    case IBV_WR_ATOMIC_CMP_AND_SWP:
      request.wr.atomic = {command.remote, command.compare_add, command.swap, command.rkey};
      break;
    case IBV_WR_BIND_MW:
      end.window_key = ibv_inc_rkey(end.window_key);
      request.num_sge = 0;
      request.bind_mw = {end.window,
                         end.window_key,
                         {end.region, command.remote, command.length,
                          IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ}};
      break;
    default:
      request.wr.rdma = {command.remote, command.rkey};
  }
  ibv_send_wr* bad = nullptr;
  if (const int error = ibv_post_send(end.qp, &request, &bad)) refuse(command, error);
}

void Side::post_receive(const Command& command) {
  const bool shared = uses_shared_queue(command.link);
  LinkEnd& end = links_[command.link];
  ibv_sge sge{reinterpret_cast<uint64_t>(memory_ + command.offset), command.length,
              shared ? shared_region_->lkey : end.region->lkey};
  ibv_recv_wr request{command.id, nullptr, &sge, 1};
  ibv_recv_wr* bad = nullptr;
  const int error =
      shared ? ibv_post_srq_recv(shared_, &request, &bad) : ibv_post_recv(end.qp, &request, &bad);
  if (error != 0) refuse(command, error);
}

void Side::fail(const Command& command) {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  must_be_zero(ibv_modify_qp(links_[command.link].qp, &attributes, IBV_QP_STATE), "to ERR");
  while (poll()) {
  }
  Report report{};
  report.kind = Report::kErrored;
  report.link = command.link;
  sink_(report);
}

void Side::churn(const Command& command) {
  std::vector<std::byte> memory(command.length + 1);
  ibv_mr* region = must(ibv_reg_mr(pd_, memory.data(), memory.size(), kAccess), "ibv_reg_mr");
  must_be_zero(ibv_dereg_mr(region), "ibv_dereg_mr");
}

void Side::report(const ibv_wc& completion) {
  Report report{};
  report.kind = Report::kCompletion;
  report.link = link_by_qpn_.at(completion.qp_num);
  report.id = completion.wr_id;
  report.status = completion.status;
  report.opcode = completion.opcode;
  report.length = completion.byte_len;
  report.flags = completion.wc_flags;
  report.imm = completion.imm_data;
  LinkEnd& end = links_[report.link];
  report.window_key = end.window_key;
  const auto own = end.own_regions.find(completion.wr_id);
  if (own != end.own_regions.end()) {
    must_be_zero(ibv_dereg_mr(own->second), "ibv_dereg_mr");
    end.own_regions.erase(own);
  }
  sink_(report);
}

bool Side::poll() {
  bool found = false;
  drain_async_events();
  for (ibv_cq* queue : queues_) {
    ibv_wc completions[16];
    const int count = ibv_poll_cq(queue, 16, completions);
    if (count < 0) must_be_zero(EIO, "ibv_poll_cq");
    for (int i = 0; i < count; ++i) report(completions[i]);
    found |= count > 0;
  }
  return found;
}

void Side::drain_async_events() {
  ibv_async_event event;
  while (ibv_get_async_event(context_, &event) == 0) ibv_ack_async_event(&event);
}

void Side::sleep(int fd) {
  pollfd wait[3] = {{fd, POLLIN, 0}, {context_->async_fd, POLLIN, 0}, {-1, POLLIN, 0}};
  if (channel_ != nullptr) {
    for (ibv_cq* queue : queues_) must_be_zero(ibv_req_notify_cq(queue, 0), "ibv_req_notify_cq");
    if (poll()) return;
    wait[2].fd = channel_->fd;
  }
  // Without a channel the side polls again soon.
  ::poll(wait, 3, channel_ != nullptr ? 1000 : 1);
  ibv_cq* queue;
  void* context;
  while (channel_ != nullptr && ibv_get_cq_event(channel_, &queue, &context) == 0)
    ibv_ack_cq_events(queue, 1);
}

}  // namespace soak
