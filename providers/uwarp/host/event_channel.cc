// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// EventChannel, CompletionEvents, and the table that finds a channel by the application's fd.
#include "host/event_channel.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <unordered_map>

#include "host/raw_fds.h"
#include "io/engine_fds.h"

namespace uwarp {
namespace {

/// Largest record that libibverbs reads.
constexpr size_t kMaxRecordBytes = sizeof(AsyncEventRecord);

struct ChannelTable {
  std::mutex lock;
  std::unordered_map<int, std::shared_ptr<EventChannel>> by_fd;
};

/// Leaked, because exit handlers may still close channels, and replaced in a forked child.
std::atomic<ChannelTable*> current_table{nullptr};

ChannelTable& table() {
  ChannelTable* found = current_table.load(std::memory_order_acquire);
  if (found != nullptr) return *found;
  auto made = std::make_unique<ChannelTable>();
  if (current_table.compare_exchange_strong(found, made.get())) return *made.release();
  return *found;
}

}  // namespace

Result<EventChannel::Pair> EventChannel::create() {
  int ends[2];
  if (raw_socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, ends) != 0) return Error{errno};
  const int drain_fd = duplicate_for_engine(ends[0]);
  const int error = errno;
  if (drain_fd < 0) {
    raw_close(ends[0]);
    raw_close(ends[1]);
    return Error{error};
  }
  const int writer_fd = adopt_engine_fd(ends[1]);
  return Pair{std::shared_ptr<EventChannel>(new EventChannel(writer_fd, drain_fd)), ends[0]};
}

EventChannel::EventChannel(int writer_fd, int drain_fd)
    : generation_(fork_generation()), writer_fd_(writer_fd), drain_fd_(drain_fd) {}

bool EventChannel::alive() const { return generation_ == fork_generation(); }

EventChannel::~EventChannel() {
  if (!alive()) return;
  close_engine_fd(writer_fd_);
  close_engine_fd(drain_fd_);
}

bool EventChannel::try_send_locked(Record record) {
  for (;;) {
    const ssize_t sent =
        raw_send(writer_fd_, record.data(), record.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent >= 0) return true;
    if (errno == EINTR) continue;
    // Anything but "full" cannot be cured by waiting: the record is dropped.
    return errno != EAGAIN && errno != ENOBUFS && errno != ENOMEM;
  }
}

void EventChannel::send_bytes(Record record) {
  if (!alive()) return;
  const int saved = errno;
  {
    const std::lock_guard guard(lock_);
    if (!waiting_.empty() || !try_send_locked(record)) {
      waiting_.emplace_back(record.begin(), record.end());
    }
  }
  errno = saved;
}

void EventChannel::flush_waiting_locked() {
  while (!waiting_.empty() && try_send_locked(waiting_.front())) waiting_.pop_front();
}

void EventChannel::records_read() {
  if (!alive()) return;
  const std::lock_guard guard(lock_);
  flush_waiting_locked();
}

size_t EventChannel::remove_if(const std::function<bool(Record)>& stale) {
  if (!alive()) return 0;
  const std::lock_guard guard(lock_);
  std::deque<std::vector<std::byte>> records;
  std::array<std::byte, kMaxRecordBytes> buffer;
  for (;;) {
    const ssize_t got = raw_receive(drain_fd_, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    records.emplace_back(buffer.begin(), buffer.begin() + got);
  }
  for (auto& record : waiting_) records.push_back(std::move(record));
  waiting_.clear();
  const size_t removed = std::erase_if(records, [&](const auto& record) { return stale(record); });
  waiting_ = std::move(records);
  flush_waiting_locked();
  return removed;
}

CompletionEvents::CompletionEvents(std::shared_ptr<EventChannel> channel,
                                   CompletionEventRecord record)
    : channel_(std::move(channel)), record_(record), generation_(fork_generation()) {}

void CompletionEvents::raise() {
  if (generation_ != fork_generation()) return;
  const std::lock_guard guard(lock_);
  if (stopped_) return;
  if (unread_) {
    again_ = true;
    return;
  }
  unread_ = true;
  channel_->send(record_);
}

void CompletionEvents::record_read() {
  if (generation_ != fork_generation()) return;
  const std::lock_guard guard(lock_);
  unread_ = false;
  if (again_ && !stopped_) {
    again_ = false;
    unread_ = true;
    channel_->send(record_);
  }
  channel_->records_read();
}

void CompletionEvents::stop() {
  if (generation_ != fork_generation()) return;
  const std::lock_guard guard(lock_);
  stopped_ = true;
  again_ = false;
  if (!unread_) return;
  channel_->remove_if([&](EventChannel::Record record) {
    return record.size() == sizeof record_ &&
           std::memcmp(record.data(), &record_, sizeof record_) == 0;
  });
  unread_ = false;
}

int create_completion_channel() {
  auto made = EventChannel::create();
  if (!made) {
    errno = made.error();
    return -1;
  }
  const int fd = made->reader_fd;
  {
    const std::lock_guard guard(table().lock);
    table().by_fd[fd] = std::move(made->channel);
  }
  mark_for_application(fd, UWARP_FD_EVENT_CHANNEL);
  return fd;
}

std::shared_ptr<EventChannel> event_channel_of(int fd) {
  const std::lock_guard guard(table().lock);
  const auto it = table().by_fd.find(fd);
  return it == table().by_fd.end() ? nullptr : it->second;
}

void event_channel_closed(int fd) {
  std::shared_ptr<EventChannel> last;  // destroyed outside the lock
  const std::lock_guard guard(table().lock);
  const auto it = table().by_fd.find(fd);
  if (it == table().by_fd.end()) return;
  last = std::move(it->second);
  table().by_fd.erase(it);
}

void event_channel_duplicated(int fd, int copy) {
  const std::lock_guard guard(table().lock);
  const auto it = table().by_fd.find(fd);
  if (it == table().by_fd.end()) return;
  auto channel = it->second;
  table().by_fd[copy] = std::move(channel);
}

void forget_event_channels() { current_table.store(nullptr, std::memory_order_release); }

}  // namespace uwarp
