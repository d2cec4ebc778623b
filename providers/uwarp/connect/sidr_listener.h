// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A UDP port on which an rdma_cm id of datagrams listens, and the requests that come in on it
// (service ID resolution, docs/wire.md). Any host can send here, under any address.
#pragma once

#include <sys/socket.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "carrier/udp_socket.h"
#include "connect/connection_events.h"
#include "net/ip_address.h"
#include "progress/progress.h"
#include "protocol/wire/sidr_message.h"

namespace uwarp {

// The requests of service ID resolution that a listener knows: those that wait for the
// application's answer, and the replies to the last ones, for peers that have not got them and ask
// again. Bounded. A value without sockets or time; its owner locks.
class SidrTransactions {
 public:
  /// Of one listener. A peer whose reply is no longer kept repeats a request that was answered
  /// `kMostAnswered` requests ago: it is then told to the application once more.
  static constexpr size_t kMostWaiting = 4096;
  static constexpr size_t kMostAnswered = 1024;

  /// The peer that asks, and the number that it gave its request.
  struct Key {
    IpAddress address;
    uint16_t port = 0;
    uint64_t transaction = 0;
    friend auto operator<=>(const Key&, const Key&) = default;
  };

  enum class Outcome : uint8_t {
    kNew,       ///< is entered, and waits from now on
    kWaiting,   ///< a repetition of one that waits: nothing to do
    kAnswered,  ///< a repetition: `reply` is sent again
    kNoSpace,   ///< not entered
  };
  struct Entry {
    Outcome outcome;
    const std::vector<std::byte>* reply = nullptr;  ///< until the next call
  };
  /// Throws std::bad_alloc, and has done nothing then.
  Entry enter(const Key& key) {
    const auto known = replies_.find(key);
    if (known != replies_.end()) {
      if (known->second.empty()) return {Outcome::kWaiting};
      return {Outcome::kAnswered, &known->second};
    }
    if (waiting_ == kMostWaiting) return {Outcome::kNoSpace};
    replies_.emplace(key, std::vector<std::byte>());
    ++waiting_;
    return {Outcome::kNew};
  }

  /// A request that waits has got this reply, which is not empty. The oldest reply may be dropped
  /// for it. Throws std::bad_alloc, and has done nothing then.
  void answered(const Key& key, std::vector<std::byte> reply) {
    const auto known = replies_.find(key);
    if (known == replies_.end() || !known->second.empty()) return;
    answered_.push_back(key);
    known->second = std::move(reply);
    --waiting_;
    if (answered_.size() <= kMostAnswered) return;
    replies_.erase(answered_.front());
    answered_.pop_front();
  }

  /// Forgets a request that waits, as if it had not come.
  void forget(const Key& key) {
    const auto known = replies_.find(key);
    if (known == replies_.end() || !known->second.empty()) return;
    replies_.erase(known);
    --waiting_;
  }

  size_t waiting() const { return waiting_; }

 private:
  std::map<Key, std::vector<std::byte>> replies_;  ///< empty: it waits
  std::deque<Key> answered_;                       ///< the oldest first
  size_t waiting_ = 0;
};

struct ConnectContext;

/// The socket of a listener and what it knows. Open until the listener is closed and each request
/// has its reply, which must come from this port. Any thread.
class SidrPort {
 public:
  explicit SidrPort(UdpSocket socket) : socket_(std::move(socket)) {}

  int fd() const { return socket_.fd(); }
  sockaddr_storage local_address() const { return socket_.local_address(); }
  ssize_t receive(std::span<std::byte> buffer, UdpPath& path) {
    return socket_.receive(buffer, path);
  }
  /// True if the request is new, and waits for answer() from now on. A repetition of one that has
  /// its reply gets it again.
  bool enter(const SidrTransactions::Key& key, const UdpPath& path);
  /// There was no memory for a new request: its repetition counts as new.
  void forget(const SidrTransactions::Key& key);
  /// The reply to a request that waits.
  void answer(const SidrTransactions::Key& key, const UdpPath& path, const SidrReply& reply);
  /// Replies to a request that is not for this port.
  void refuse(uint64_t transaction, const UdpPath& path, SidrStatus status);

 private:
  UdpSocket socket_;
  Mutex mutex_;
  SidrTransactions transactions_ GUARDED_BY(mutex_);
};

/// A request that waits for the application. The last reference to it rejects it.
class SidrCall final : public CmConnection {
 public:
  SidrCall(std::shared_ptr<SidrPort> port, SidrTransactions::Key key, UdpPath path,
           std::vector<std::byte> private_data)
      : port_(std::move(port)),
        key_(key),
        path_(path),
        private_data_(std::move(private_data)),
        local_(local_of(*port_, path_)) {}
  ~SidrCall() override;

  const std::vector<std::byte>& private_data() const { return private_data_; }
  /// With the listener's port.
  const sockaddr_storage& local_address() const { return local_; }
  const sockaddr_storage& remote_address() const { return path_.peer; }
  /// 0, or EINVAL: it has its reply already. `reply` needs no transaction.
  int answer(SidrReply reply);

  /// Of a queue pair that `parameters` name. Tells no owner.
  int accept(std::shared_ptr<Endpoint> endpoint, const ConnectParameters& parameters,
             std::weak_ptr<ConnectionOwner> owner) override;
  int reject(std::span<const std::byte> private_data) override;
  int disconnect() override { return 0; }
  void abort() override { (void)reject({}); }

 private:
  static sockaddr_storage local_of(const SidrPort& port, const UdpPath& path);

  Mutex mutex_;
  std::shared_ptr<SidrPort> port_ GUARDED_BY(mutex_);  ///< null once it has its reply
  const SidrTransactions::Key key_;
  const UdpPath path_;
  const std::vector<std::byte> private_data_;
  const sockaddr_storage local_;
};

class SidrListenerOwner {
 public:
  virtual ~SidrListenerOwner() = default;
  /// By the thread that progresses, without locks. False: no room; the request is rejected.
  virtual bool sidr_requested(std::shared_ptr<SidrCall> call) = 0;
};

class SidrListener final : public Source, public CmListener {
 public:
  /// Requests for another `port_space` are refused. Errors: ENOMEM, EAGAIN (no thread).
  static Result<std::shared_ptr<SidrListener>> start(ConnectContext& context, UdpSocket bound,
                                                     uint16_t port_space,
                                                     std::weak_ptr<SidrListenerOwner> owner);
  ~SidrListener() override;
  void close() override;

  bool ready(uint32_t events) override;
  void deadline_passed() override;
  /// What waits in the socket makes no new edge.
  void out_of_memory() override;

 private:
  SidrListener(ConnectContext& context, UdpSocket bound, uint16_t port_space,
               std::weak_ptr<SidrListenerOwner> owner);
  void received(const std::shared_ptr<SidrPort>& port, std::span<const std::byte> bytes,
                const UdpPath& path);

  ConnectContext& context_;
  const uint16_t port_space_;
  Mutex mutex_;
  std::shared_ptr<SidrPort> port_ GUARDED_BY(mutex_);  ///< null after close()
  Progress::Registration registration_ GUARDED_BY(mutex_) = 0;
  std::weak_ptr<SidrListenerOwner> owner_ GUARDED_BY(mutex_);
};

}  // namespace uwarp
