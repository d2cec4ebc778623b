// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The fds on which applications wait for completion and asynchronous events: a SEQPACKET socket
// pair of which the application reads one end (stock libibverbs does plain read()s) and the engine
// writes the other. Knows records as bytes; what they mean belongs to verbs/.
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/fork.h"
#include "base/mutex.h"
#include "base/result.h"
#include "events/application_files.h"

namespace uwarp {

class CompletionEvents;
class EventChannel;
struct LateArmings;

/// For as long as it exists, the calling thread waits for `fds`. If a completion queue is or was
/// armed with completions in it (CompletionEvents::armed_late()), and its channel is among `fds` or
/// may be in an epoll set among them, the event is raised for these completions, unless they have
/// been polled. The thread holds no lock.
class ChannelWait {
 public:
  explicit ChannelWait(std::span<const pollfd> fds);
  ~ChannelWait();
  ChannelWait(const ChannelWait&) = delete;
  ChannelWait& operator=(const ChannelWait&) = delete;

 private:
  friend class CompletionEvents;
  bool is_for(const EventChannel& channel) const;

  const std::span<const pollfd> fds_;
  LateArmings& all_;
  ChannelWait* next_;
};

/// What ibv_get_cq_event() reads: the pointer to the ibv_cq.
struct CompletionEventRecord {
  uint64_t cq = 0;
};
static_assert(sizeof(CompletionEventRecord) == 8);

/// What ibv_get_async_event() reads.
struct AsyncEventRecord {
  uint64_t element = 0;  ///< pointer to the ibv_cq, ibv_qp or ibv_srq; or a port number
  uint32_t event_type = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(AsyncEventRecord) == 16);

/// The writing side. Made by create(), held by the application's files while the application has
/// its end, and by all that may send. What is sent before the reader takes it is kept, in order.
/// Ends with the last of them, and both descriptors of the engine with it. Thread-safe; its lock is
/// a leaf. Never blocks.
class EventChannel final : public ApplicationFile {
 public:
  using Record = std::span<const std::byte>;

 private:
  class Reader;
  /// For events of a port, and one that a cancelled reader has left.
  static constexpr size_t kOwnRecords = 16;
  /// A record that is kept.
  struct Waiting {
    std::array<std::byte, sizeof(AsyncEventRecord)> bytes;
    size_t length;
    Record record() const { return Record(bytes).first(length); }
  };

  const BirthProcess process_{};
  const int writer_fd_;
  /// Our own copy of the reader's end, to take back records; also keeps the pair connected when the
  /// application has closed its end, so that a send never fails for that.
  const int drain_fd_;
  std::atomic<uint32_t> sent_{0};  ///< records that went into the socket

  Mutex lock_;
  /// Only while the socket is full; has room for reserved_.
  std::vector<Waiting> waiting_ GUARDED_BY(lock_);
  size_t reserved_ GUARDED_BY(lock_) = kOwnRecords;  ///< records
  Reader* reader_ GUARDED_BY(lock_) = nullptr;       ///< a thread that drives inside read()

 public:
  struct Pair {
    std::shared_ptr<EventChannel> channel;
    int reader_fd;  ///< the application's, close-on-exec; the caller owns it
  };
  /// Errors: EMFILE, ENFILE, ENOMEM.
  static Result<Pair> create();
  ~EventChannel() override;

  /// Queues one record for the reader. What does not fit into the socket is kept and follows when
  /// records_read() is called. Works under any locks: takes only this channel's lock, and no memory
  /// as long as no more are unread than there is EventReservation for. Without room and memory the
  /// record is dropped: false.
  template <typename T>
  bool send(const T& record) {
    return send_bytes(std::as_bytes(std::span<const T, 1>(&record, 1)));
  }

  /// The reader has taken at least one record: sends what waited for room.
  void records_read();

  /// `fd` is the application's end: returns the length of the record taken, or -1 and errno. A
  /// thread that must wait drives the sockets meanwhile. A cancellation point.
  ssize_t read(int fd, std::span<std::byte> out) override;

  /// Removes unread records for which `stale` is true: for an object that is being destroyed.
  /// Returns how many. The reader may take some of the others meanwhile.
  size_t remove_if(const std::function<bool(Record)>& stale);

 private:
  EventChannel(int writer_fd, int drain_fd);
  /// False in a forked child: the fds are closed there.
  bool alive() const { return process_.is_this(); }
  bool send_bytes(Record record);
  bool try_send_locked(Record record) REQUIRES(lock_);
  friend class EventReservation;
  void reserve(size_t records);
  void give_back(size_t records);
  bool keep_locked(Record record) REQUIRES(lock_);
  size_t remove_sent_locked(const std::function<bool(Record)>& stale) REQUIRES(lock_);
  void flush_waiting_locked() REQUIRES(lock_);
};

/// Room in a channel for the records that one object may have unread at a time, so that its events
/// need no memory.
class EventReservation {
 public:
  /// Throws std::bad_alloc.
  EventReservation(EventChannel& channel, size_t records) : channel_(channel), records_(records) {
    channel.reserve(records);
  }
  ~EventReservation() { channel_.give_back(records_); }
  EventReservation(const EventReservation&) = delete;
  EventReservation& operator=(const EventReservation&) = delete;

 private:
  EventChannel& channel_;
  const size_t records_;
};

/// Events of one completion queue on its channel: at most one unread record, so that no number of
/// completions can fill the channel. Thread-safe.
class CompletionEvents {
 public:
  /// `raise_stored` raises the event of an armed queue if it still has completions from before.
  CompletionEvents(std::shared_ptr<EventChannel> channel, CompletionEventRecord record,
                   std::function<void()> raise_stored = {});

  /// The armed queue has an event: sends a record, or remembers to do so if one is unread.
  void raise();
  /// The queue has been armed with completions in it. Raises nothing by itself, because the
  /// application polls next, as a rule. But if a thread waits at the channel, now or later, the
  /// event is raised for these completions: else it would sleep with completions at hand. False if
  /// the event was raised at once. The caller holds no lock.
  bool armed_late();
  /// Raises the event for these completions. False, and nothing done, if one is unread anyway.
  bool raise_stored();
  /// libibverbs has read a record of this queue (the cq_event op): sends the remembered one.
  void record_read();
  /// Takes back an unread record; afterwards raise() does nothing, and no other thread is in
  /// raise_stored(). Returns how many records the reader has been given in all.
  uint32_t stop();

 private:
  friend class ChannelWait;
  void send_locked() REQUIRES(lock_);

  const std::shared_ptr<EventChannel> channel_;
  const EventReservation reservation_;
  const CompletionEventRecord record_;
  const std::function<void()> raise_stored_;
  const BirthProcess process_{};
  Mutex lock_;  ///< before the channel's
  uint32_t sent_ GUARDED_BY(lock_) = 0;
  bool unread_ GUARDED_BY(lock_) = false;
  bool again_ GUARDED_BY(lock_) = false;
  bool stopped_ GUARDED_BY(lock_) = false;
  // Under the lock of LateArmings.
  LateArmings& late_armings_;
  bool armed_late_ = false;
  CompletionEvents* next_armed_late_ = nullptr;
};

/// Makes the channel of ibv_create_comp_channel(): the fd goes to the application. -1 and errno on
/// failure.
int create_completion_channel();
/// The channel whose reading end is `fd` (ibv_comp_channel.fd); null when there is none.
std::shared_ptr<EventChannel> event_channel_of(int fd);

}  // namespace uwarp
