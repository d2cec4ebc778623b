// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "verbs/ping_pong.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace {

using std::chrono::steady_clock;

constexpr uint32_t kBytes = 200;
constexpr size_t kMemory = 16384;
// Places in the memory of an end.
constexpr size_t kOut = 0, kIn = 4096, kWritten = 8192, kRead = 12288;
// wr_ids.
constexpr uint64_t kThere = 1, kArrived = 2, kBack = 3, kReturned = 4, kWrite = 5, kReadBack = 6;
constexpr useconds_t kNapUs = 50;

bool filled(const uint8_t* from, uint8_t value) {
  for (uint32_t i = 0; i < kBytes; ++i)
    if (from[i] != value) return false;
  return true;
}

}  // namespace

const char* name_of(Waiting waiting) {
  constexpr const char* kNames[] = {"Polling", "InRead", "InEpoll", "ByHelper"};
  return kNames[static_cast<int>(waiting)];
}

PingPong::PingPong(ibv_context* context, Waiting waiting)
    : waiting_(waiting),
      channel_(ibv_create_comp_channel(context)),
      pair_(context, kMemory, channel_.get()),
      a_(pair_.a.address()),
      b_(pair_.b.address()) {
  if (waiting != Waiting::kInEpoll) return;
  epoll_fd_ = epoll_create1(EPOLL_CLOEXEC);
  epoll_event event{.events = EPOLLIN, .data = {}};
  EXPECT_EQ(epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, channel_->fd, &event), 0);
}

PingPong::~PingPong() {
  if (epoll_fd_ >= 0) close(epoll_fd_);
}

bool PingPong::fail(const char* what) {
  if (fault_ == nullptr) fault_ = what;
  return false;
}

bool PingPong::complete(End& end, uint64_t id) {
  const bool by_event = waiting_ == Waiting::kInRead || waiting_ == Waiting::kInEpoll;
  const auto limit = steady_clock::now() + kPatience;
  ibv_wc wc{};
  for (bool armed = false;;) {
    const int count = ibv_poll_cq(end.cq.get(), 1, &wc);
    if (count < 0) return fail("ibv_poll_cq()");
    if (count == 1) break;
    if (steady_clock::now() > limit) return fail("a completion that does not come");
    if (waiting_ == Waiting::kByHelper) usleep(kNapUs);
    if (!by_event) continue;
    if (!armed) {
      if (ibv_req_notify_cq(end.cq.get(), 0) != 0) return fail("ibv_req_notify_cq()");
      armed = true;
      continue;
    }
    epoll_event event;
    if (epoll_fd_ >= 0 && epoll_wait(epoll_fd_, &event, 1, -1) != 1) {
      if (errno != EINTR) return fail("epoll_wait()");
      continue;
    }
    ibv_cq* cq = nullptr;
    void* context = nullptr;
    if (ibv_get_cq_event(channel_.get(), &cq, &context) != 0) {
      if (errno != EINTR) return fail("ibv_get_cq_event()");
      continue;
    }
    ibv_ack_cq_events(cq, 1);
    armed = false;
  }
  if (wc.status != IBV_WC_SUCCESS) return fail(ibv_wc_status_str(wc.status));
  return wc.wr_id == id || fail("another completion than the one that was due");
}

bool PingPong::round() {
  End &a = pair_.a, &b = pair_.b;
  const uint8_t value = ++seed_;
  std::memset(&a.memory[kOut], value, kBytes);
  if (b.post_receive(kArrived, kIn, kBytes) != 0 || a.post_receive(kReturned, kIn, kBytes) != 0)
    return fail("ibv_post_recv()");
  if (a.post_send(kThere, kOut, kBytes) != 0) return fail("ibv_post_send()");
  if (!complete(b, kArrived) || !complete(a, kThere)) return false;
  if (!filled(&b.memory[kIn], value)) return fail("the bytes of a Send");
  std::memcpy(&b.memory[kOut], &b.memory[kIn], kBytes);
  if (b.post_send(kBack, kOut, kBytes) != 0) return fail("ibv_post_send()");
  if (!complete(a, kReturned) || !complete(b, kBack)) return false;
  if (!filled(&a.memory[kIn], value)) return fail("the bytes of a Send back");
  Address written = b_;
  written.memory += kWritten;
  if (a.post_rdma(IBV_WR_RDMA_WRITE, kWrite, written, kOut, kBytes) != 0)
    return fail("ibv_post_send() of a Write");
  if (!complete(a, kWrite)) return false;
  Address read = written;
  read.memory -= kRead;  // post_rdma() adds its offset on both sides
  if (a.post_rdma(IBV_WR_RDMA_READ, kReadBack, read, kRead, kBytes) != 0)
    return fail("ibv_post_send() of a Read");
  if (!complete(a, kReadBack)) return false;
  return filled(&a.memory[kRead], value) || fail("the bytes of a Read");
}

bool PingPong::rounds(int count) {
  for (int i = 0; i < count; ++i)
    if (!round()) return false;
  return true;
}
