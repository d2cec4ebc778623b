// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "verbs/verbs_fixture.h"

#include <dirent.h>
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>

using std::chrono::steady_clock;

Context open_device() {
  const char* wanted = std::getenv("UWARP_TEST_DEVICE");
  if (wanted == nullptr) wanted = "uwarp_lo";
  int count = 0;
  ibv_device** list = ibv_get_device_list(&count);
  Context context;
  for (int i = 0; list != nullptr && i < count; ++i) {
    if (std::strcmp(ibv_get_device_name(list[i]), wanted) == 0)
      context.reset(ibv_open_device(list[i]));
  }
  if (list != nullptr) ibv_free_device_list(list);
  return context;
}

ibv_qp_init_attr init_attributes(ibv_cq* cq, uint32_t depth) {
  ibv_qp_init_attr init = {};
  init.send_cq = cq;
  init.recv_cq = cq;
  init.cap = {depth, depth, 4, 4, 64};
  init.qp_type = IBV_QPT_RC;
  return init;
}

int to_init(ibv_qp* qp, int access) {
  ibv_qp_attr attr = {};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = 1;
  attr.qp_access_flags = static_cast<unsigned>(access);
  return ibv_modify_qp(qp, &attr,
                       IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

int to_rtr(ibv_qp* qp, const Address& peer) {
  ibv_qp_attr attr = {};
  attr.qp_state = IBV_QPS_RTR;
  attr.path_mtu = IBV_MTU_1024;
  attr.dest_qp_num = peer.qpn;
  attr.rq_psn = peer.psn;
  attr.max_dest_rd_atomic = 16;
  attr.min_rnr_timer = 12;
  attr.ah_attr.is_global = 1;
  attr.ah_attr.port_num = 1;
  attr.ah_attr.grh.dgid = peer.gid;
  attr.ah_attr.grh.hop_limit = 1;
  return ibv_modify_qp(qp, &attr,
                       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                           IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

int to_rts(ibv_qp* qp, uint32_t psn, Retries retries) {
  ibv_qp_attr attr = {};
  attr.qp_state = IBV_QPS_RTS;
  attr.timeout = retries.timeout;
  attr.retry_cnt = retries.count;
  attr.rnr_retry = 7;
  attr.sq_psn = psn;
  attr.max_rd_atomic = 16;
  return ibv_modify_qp(qp, &attr,
                       IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                           IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

int to_state(ibv_qp* qp, ibv_qp_state state) {
  ibv_qp_attr attr = {};
  attr.qp_state = state;
  return ibv_modify_qp(qp, &attr, IBV_QP_STATE);
}

ibv_qp_state state_of(ibv_qp* qp) {
  ibv_qp_attr attr = {};
  ibv_qp_init_attr init = {};
  EXPECT_EQ(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init), 0);
  return attr.qp_state;
}

End::End(ibv_context* context, size_t bytes, ibv_comp_channel* channel, uint32_t depth)
    : memory(bytes),
      pd(ibv_alloc_pd(context)),
      cq(ibv_create_cq(context, static_cast<int>(2 * depth), nullptr, channel, 0)),
      mr(ibv_reg_mr(pd.get(), memory.data(), memory.size(), kAllAccess)),
      context_(context) {
  static std::atomic<uint32_t> made = 0;
  psn = 0x100 + ++made;
  ibv_qp_init_attr init = init_attributes(cq.get(), depth);
  qp.reset(ibv_create_qp(pd.get(), &init));
  EXPECT_NE(pd, nullptr);
  EXPECT_NE(cq, nullptr);
  EXPECT_NE(mr, nullptr);
  EXPECT_NE(qp, nullptr);
  EXPECT_EQ(to_init(qp.get()), 0);
}

Address End::address() const {
  Address address = {};
  EXPECT_EQ(ibv_query_gid(context_, 1, 0, &address.gid), 0);
  address.qpn = qp->qp_num;
  address.psn = psn;
  address.memory = reinterpret_cast<uint64_t>(memory.data());
  address.rkey = mr->rkey;
  return address;
}

void End::connect(const Address& peer, Retries retries) {
  EXPECT_EQ(to_rtr(qp.get(), peer), 0);
  EXPECT_EQ(to_rts(qp.get(), psn, retries), 0);
}

ibv_sge End::sge(size_t offset, uint32_t length) const {
  return {reinterpret_cast<uint64_t>(memory.data()) + offset, length, mr->lkey};
}

int End::post_receive(uint64_t wr_id, size_t offset, uint32_t length) {
  ibv_sge list = sge(offset, length);
  ibv_recv_wr wr = {wr_id, nullptr, &list, 1};
  ibv_recv_wr* bad = nullptr;
  return ibv_post_recv(qp.get(), &wr, &bad);
}

int End::post_send(uint64_t wr_id, size_t offset, uint32_t length, unsigned flags) {
  ibv_sge list = sge(offset, length);
  ibv_send_wr wr = {};
  wr.wr_id = wr_id;
  wr.sg_list = &list;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_SEND;
  wr.send_flags = flags;
  ibv_send_wr* bad = nullptr;
  return ibv_post_send(qp.get(), &wr, &bad);
}

int End::post_rdma(ibv_wr_opcode opcode, uint64_t wr_id, const Address& peer, size_t offset,
                   uint32_t length, unsigned flags) {
  return post_rdma(opcode, wr_id, sge(offset, length), peer.memory + offset, peer.rkey, flags);
}

int End::post_rdma(ibv_wr_opcode opcode, uint64_t wr_id, ibv_sge here, uint64_t there,
                   uint32_t rkey, unsigned flags) {
  ibv_send_wr wr = {};
  wr.wr_id = wr_id;
  wr.sg_list = &here;
  wr.num_sge = 1;
  wr.opcode = opcode;
  wr.send_flags = flags;
  wr.wr.rdma.remote_addr = there;
  wr.wr.rdma.rkey = rkey;
  ibv_send_wr* bad = nullptr;
  return ibv_post_send(qp.get(), &wr, &bad);
}

int End::post_atomic(ibv_wr_opcode opcode, uint64_t wr_id, ibv_sge here, const Address& peer,
                     uint64_t compare_add, uint64_t swap) {
  ibv_send_wr wr = {};
  wr.wr_id = wr_id;
  wr.sg_list = &here;
  wr.num_sge = 1;
  wr.opcode = opcode;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.atomic.remote_addr = peer.memory;
  wr.wr.atomic.rkey = peer.rkey;
  wr.wr.atomic.compare_add = compare_add;
  wr.wr.atomic.swap = swap;
  ibv_send_wr* bad = nullptr;
  return ibv_post_send(qp.get(), &wr, &bad);
}

Pair::Pair(ibv_context* context, size_t bytes, ibv_comp_channel* channel)
    : a(context, bytes, channel), b(context, bytes, channel) {
  a.connect(b.address());
  b.connect(a.address());
}

std::optional<ibv_wc> next_completion(ibv_cq* cq, std::chrono::milliseconds limit) {
  const auto end = steady_clock::now() + limit;
  do {
    ibv_wc wc;
    const int found = ibv_poll_cq(cq, 1, &wc);
    if (found == 1) return wc;
    if (found < 0) return std::nullopt;
    std::this_thread::yield();
  } while (steady_clock::now() < end);
  return std::nullopt;
}

std::map<uint64_t, ibv_wc_status> next_completions(ibv_cq* cq, int count) {
  std::map<uint64_t, ibv_wc_status> found;
  for (int i = 0; i < count; ++i) {
    const auto wc = next_completion(cq);
    EXPECT_TRUE(wc.has_value()) << "only " << i << " of " << count << " completions in time";
    if (!wc) break;
    EXPECT_TRUE(found.emplace(wc->wr_id, wc->status).second) << wc->wr_id << " came twice";
  }
  return found;
}

bool wait_until(const std::function<bool()>& condition, std::chrono::milliseconds limit) {
  const auto end = steady_clock::now() + limit;
  while (!condition()) {
    if (steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

bool readable(int fd, std::chrono::milliseconds limit) {
  pollfd poller = {fd, POLLIN, 0};
  return poll(&poller, 1, static_cast<int>(limit.count())) == 1;
}

std::optional<ibv_async_event> next_async_event(ibv_context* context,
                                                std::chrono::milliseconds limit) {
  while (readable(context->async_fd, limit)) {
    ibv_async_event event = {};
    EXPECT_EQ(ibv_get_async_event(context, &event), 0);
    if (event.event_type != IBV_EVENT_COMM_EST) return event;
    ibv_ack_async_event(&event);
  }
  return std::nullopt;
}

size_t open_files() {
  DIR* folder = opendir("/proc/self/fd");
  size_t count = 0;
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

std::string open_file_names() {
  std::string names;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    names += entry.path().filename().string() + " " +
             std::filesystem::read_symlink(entry.path(), gone).string() + "\n";
  }
  return names;
}
