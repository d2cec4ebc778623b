// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "events/event_channel.h"

#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "base/fork.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/process_own.h"
#include "engine/engine.h"
#include "events/raw_fds.h"
#include "os/engine_fds.h"

namespace uwarp {

struct LateArmings {
  Mutex lock;
  /// Armed with completions in them, and not raised since.
  CompletionEvents* queues GUARDED_BY(lock) = nullptr;
  ChannelWait* waits GUARDED_BY(lock) = nullptr;
};

namespace {

/// Largest record that libibverbs reads.
constexpr size_t kMaxRecordBytes = sizeof(AsyncEventRecord);

ProcessOwn<LateArmings> late_armings;

/// Takes `one` out of a list.
template <typename T>
void unlink(T*& first, T& one, T* T::*next) {
  T** at = &first;
  while (*at != &one) at = &((*at)->*next);
  *at = one.*next;
}

}  // namespace

ChannelWait::ChannelWait(std::span<const pollfd> fds) : fds_(fds), all_(late_armings.get()) {
  const Lock guard(all_.lock);
  next_ = std::exchange(all_.waits, this);
  for (CompletionEvents** at = &all_.queues; *at != nullptr;) {
    CompletionEvents& queue = **at;
    queue.armed_late_ = !is_for(*queue.channel_) || !queue.raise_stored();
    if (queue.armed_late_)
      at = &queue.next_armed_late_;
    else
      *at = queue.next_armed_late_;
  }
}

ChannelWait::~ChannelWait() {
  const Lock guard(all_.lock);
  unlink(all_.waits, *this, &ChannelWait::next_);
}

bool ChannelWait::is_for(const EventChannel& channel) const {
  return std::any_of(fds_.begin(), fds_.end(), [&](const pollfd& each) {
    return application_mark(each.fd) == UWARP_FD_EPOLL ||
           application_file(each.fd).get() == &channel;
  });
}

/// A thread inside read(). A record that it causes itself is handed to it past the socket.
class EventChannel::Reader : public Awaited {
 public:
  Reader(EventChannel& channel, int fd)
      : channel_(channel), fd_{.fd = fd, .events = POLLIN, .revents = 0} {
    const Lock guard(channel_.lock_);
    if (channel_.reader_ == nullptr) channel_.reader_ = this;
  }
  ~Reader() override {
    const Lock guard(channel_.lock_);
    if (channel_.reader_ != this) return;
    channel_.reader_ = nullptr;
    // Left behind by a cancelled thread: for the next one.
    if (length_ != 0) channel_.keep_locked({record_.data(), length_});
    channel_.flush_waiting_locked();
  }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  bool arrived() override { return length_ != 0 || channel_.sent_.load() != sent_before_; }
  std::span<const pollfd> fds() const override { return {&fd_, 1}; }

  /// False: the record goes through the socket, behind those that other threads have sent
  /// meanwhile.
  bool offer_locked(Record record) NO_THREAD_SAFETY_ANALYSIS {
    if (length_ != 0 || channel_.sent_.load() != sent_before_ || !channel_.waiting_.empty() ||
        !pthread_equal(thread_, pthread_self()))
      return false;
    std::copy(record.begin(), record.end(), record_.begin());
    length_ = record.size();
    return true;
  }
  /// Takes the record that was offered. 0: there is none.
  size_t take(std::span<std::byte> out) {
    const Lock guard(channel_.lock_);
    const size_t taken = std::min(length_, out.size());
    std::copy_n(record_.begin(), taken, out.begin());
    length_ = 0;
    return taken;
  }
  size_t withdraw_locked(const std::function<bool(Record)>& stale) {
    if (length_ == 0 || !stale(Record(record_.data(), length_))) return 0;
    length_ = 0;
    return 1;
  }

 private:
  EventChannel& channel_;
  const pollfd fd_;
  const pthread_t thread_ = pthread_self();
  const uint32_t sent_before_ = channel_.sent_.load();
  size_t length_ = 0;
  std::array<std::byte, kMaxRecordBytes> record_;
};

Result<EventChannel::Pair> EventChannel::create() {
  int ends[2];
  if (raw_socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, ends) != 0) return Error{errno};
  OwnedFd reader(ends[0], close_quietly);
  OwnedFd writer(adopt_engine_fd(ends[1]), close_engine_fd);
  OwnedFd drain(duplicate_for_engine(ends[0]), close_engine_fd);
  if (drain.get() < 0) return Error{errno};
  std::unique_ptr<EventChannel> channel(new EventChannel(writer.get(), drain.get()));
  writer.take();
  drain.take();
  std::shared_ptr<EventChannel> shared = std::move(channel);
  return Pair{std::move(shared), reader.take()};
}

EventChannel::EventChannel(int writer_fd, int drain_fd)
    : writer_fd_(writer_fd), drain_fd_(drain_fd) {
  waiting_.reserve(reserved_);
}

EventChannel::~EventChannel() {
  if (!alive()) return;
  close_engine_fd(writer_fd_);
  close_engine_fd(drain_fd_);
}

bool EventChannel::try_send_locked(Record record) {
  for (;;) {
    const ssize_t sent =
        raw_send(writer_fd_, record.data(), record.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent >= 0) sent_.fetch_add(1);
    if (sent >= 0) return true;
    if (errno == EINTR) continue;
    // Anything but "full" cannot be cured by waiting: the record is dropped.
    return errno != EAGAIN && errno != ENOBUFS && errno != ENOMEM;
  }
}

void EventChannel::reserve(size_t records) {
  const Lock guard(lock_);
  if (reserved_ + records > waiting_.capacity()) waiting_.reserve(2 * (reserved_ + records));
  reserved_ += records;
}

void EventChannel::give_back(size_t records) {
  if (!alive()) return;
  const Lock guard(lock_);
  assert(records <= reserved_);
  reserved_ -= records;
}

bool EventChannel::send_bytes(Record record) {
  if (!alive()) return true;
  const Lock guard(lock_);
  if (reader_ != nullptr && reader_->offer_locked(record)) return true;
  return (waiting_.empty() && try_send_locked(record)) || keep_locked(record);
}

// Allocates only if an object repeats its event more often than it has room, and no thread reads.
bool EventChannel::keep_locked(Record record) {
  Waiting kept;
  std::copy(record.begin(), record.end(), kept.bytes.begin());
  kept.length = record.size();
  try {
    waiting_.push_back(kept);
  } catch (const std::bad_alloc&) {
    log_event("no memory for an event, which is lost: %zu wait to be read", waiting_.size());
    return false;
  }
  return true;
}

void EventChannel::flush_waiting_locked() {
  auto next = waiting_.begin();
  while (next != waiting_.end() && try_send_locked(next->record())) ++next;
  waiting_.erase(waiting_.begin(), next);
}

void EventChannel::records_read() {
  if (!alive()) return;
  const Lock guard(lock_);
  flush_waiting_locked();
}

// Once round the socket: each record is taken out and, unless it goes, put in again behind the
// others, where it has just made room. That needs no memory.
size_t EventChannel::remove_sent_locked(const std::function<bool(Record)>& stale) {
  size_t removed = 0;
  std::array<std::byte, kMaxRecordBytes> buffer;
  const int unread = raw_unread(drain_fd_);
  int64_t left = unread >= 0 ? unread : int64_t{sent_.load()} * int64_t{kMaxRecordBytes};
  while (left > 0) {
    const ssize_t got = raw_receive(drain_fd_, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    left -= got;
    const Record record(buffer.data(), static_cast<size_t>(got));
    if (stale(record)) {
      ++removed;
    } else if (!try_send_locked(record)) {
      (void)keep_locked(record);
    }
  }
  return removed;
}

size_t EventChannel::remove_if(const std::function<bool(Record)>& stale) {
  if (!alive()) return 0;
  const Lock guard(lock_);
  size_t removed = reader_ != nullptr ? reader_->withdraw_locked(stale) : 0;
  removed += remove_sent_locked(stale);
  removed += std::erase_if(waiting_, [&](const Waiting& one) { return stale(one.record()); });
  flush_waiting_locked();
  return removed;
}

ssize_t EventChannel::read(int fd, std::span<std::byte> out) {
  if (!alive()) return ::read(fd, out.data(), out.size());
  const pollfd readable{.fd = fd, .events = POLLIN, .revents = 0};
  const ChannelWait wait({&readable, 1});
  for (;;) {
    Reader reader(*this, fd);  // before looking: it counts what comes from now on
    const ssize_t at_once = raw_receive(fd, out.data(), out.size(), MSG_DONTWAIT);
    if (at_once >= 0 || errno != EAGAIN) return at_once;
    if (!may_block(fd)) {
      errno = EAGAIN;
      return -1;
    }
    const int error = Engine::instance().progress().drive(reader);
    if (const size_t taken = reader.take(out)) return static_cast<ssize_t>(taken);
    if (error == EBUSY) break;
    if (error == 0) continue;
    errno = error;
    return -1;
  }
  const Progress::Waiter waiter(Engine::instance().progress());
  return ::read(fd, out.data(), out.size());
}

CompletionEvents::CompletionEvents(std::shared_ptr<EventChannel> channel,
                                   CompletionEventRecord record, std::function<void()> raise_stored)
    : channel_(std::move(channel)),
      reservation_(*channel_, 1),
      record_(record),
      raise_stored_(std::move(raise_stored)),
      late_armings_(late_armings.get()) {}

void CompletionEvents::raise() {
  if (!process_.is_this()) return;
  const Lock guard(lock_);
  if (stopped_) return;
  if (unread_) {
    again_ = true;
    return;
  }
  send_locked();
}

bool CompletionEvents::armed_late() {
  const Lock guard(late_armings_.lock);
  for (const ChannelWait* wait = late_armings_.waits; wait != nullptr; wait = wait->next_)
    if (wait->is_for(*channel_) && raise_stored()) return false;
  if (!armed_late_) next_armed_late_ = std::exchange(late_armings_.queues, this);
  armed_late_ = true;
  return true;
}

bool CompletionEvents::raise_stored() {
  if (!process_.is_this()) return true;
  {
    const Lock guard(lock_);
    if (unread_) return false;
  }
  raise_stored_();
  return true;
}

void CompletionEvents::send_locked() {
  if (!channel_->send(record_)) return;
  unread_ = true;
  ++sent_;
}

void CompletionEvents::record_read() {
  if (!process_.is_this()) return;
  const Lock guard(lock_);
  unread_ = false;
  if (again_ && !stopped_) {
    again_ = false;
    send_locked();
  }
  channel_->records_read();
}

uint32_t CompletionEvents::stop() {
  if (!process_.is_this()) return 0;
  {
    const Lock guard(late_armings_.lock);
    if (armed_late_) unlink(late_armings_.queues, *this, &CompletionEvents::next_armed_late_);
    armed_late_ = false;
  }
  const Lock guard(lock_);
  stopped_ = true;
  again_ = false;
  if (!unread_) return sent_;
  sent_ -= channel_->remove_if([&](EventChannel::Record record) {
    return record.size() == sizeof record_ &&
           std::memcmp(record.data(), &record_, sizeof record_) == 0;
  });
  unread_ = false;
  return sent_;
}

int create_completion_channel() {
  auto made = EventChannel::create();
  if (!made) {
    errno = made.error();
    return -1;
  }
  OwnedFd reader(made->reader_fd, close_quietly);
  give_to_application(reader.get(), UWARP_FD_EVENT_CHANNEL, std::move(made->channel));
  return reader.take();
}

std::shared_ptr<EventChannel> event_channel_of(int fd) {
  return std::dynamic_pointer_cast<EventChannel>(application_file(fd));
}

}  // namespace uwarp
