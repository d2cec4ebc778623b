// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A queue pair of datagrams as applications know it. verbs/ talks to this class, as to Endpoint for
// those that connect.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "base/ids.h"
#include "base/mutex.h"
#include "base/result.h"
#include "base/spinlock.h"
#include "connect/endpoint.h"
#include "connect/endpoint_table.h"
#include "net/ip_address.h"
#include "net/net_device.h"
#include "qp/datagram_queue_pair.h"

namespace uwarp {

// Where the datagrams of an address handle go: the addresses of both hosts, and traffic class and
// hop limit. Each queue pair number names the process on that host.
class Trunk;

/// Made and destroyed with its address handle; any thread.
class Destination {
 public:
  Destination(const IpAddress& own, const IpAddress& peer) : own(own), peer(peer) {}

  const IpAddress own;
  const IpAddress peer;
  uint8_t traffic_class = 0;
  uint8_t hop_limit = 0;
  std::shared_ptr<DatagramPath> group;  ///< of a multicast group, the one way there is

  /// What was remembered for this port of ours and `port`; null if it was another pair.
  std::shared_ptr<Trunk> recent(uint16_t own_port, uint16_t port) {
    const Lock guard(lock_);
    return port == port_ && own_port == own_port_ ? trunk_ : nullptr;
  }
  void remember(uint16_t own_port, uint16_t port, std::shared_ptr<Trunk> trunk) {
    const Lock guard(lock_);
    own_port_ = own_port;
    port_ = port;
    trunk_.swap(trunk);
  }

 private:
  SpinLock lock_;
  uint16_t own_port_ GUARDED_BY(lock_) = 0;  // of the queue pair that has sent
  uint16_t port_ GUARDED_BY(lock_) = 0;      // of a process; 0: none yet
  std::shared_ptr<Trunk> trunk_ GUARDED_BY(lock_);
};

// What one thread at a time has found lately among the queue pairs that take datagrams: no lock and
// no reference count per datagram, while queue pairs neither come nor go.
class DatagramEndpoint;
using DatagramTable = BasicEndpointTable<DatagramEndpoint>;

class RecentEndpoints {
 public:
  /// Null if there is none.
  DatagramEndpoint* find(const DatagramTable& table, Qpn number) {
    Entry& entry = entries_[number.value % entries_.size()];
    const uint64_t version = table.version();
    if (entry.version != version || entry.number != number) [[unlikely]] {
      entry.endpoint = table.find(number);
      entry.number = number;
      entry.version = version;
    }
    return entry.endpoint.get();
  }

 private:
  struct Entry {
    Qpn number;
    uint64_t version = 0;
    std::shared_ptr<DatagramEndpoint> endpoint;
  };
  std::array<Entry, 4> entries_;
};

class Trunks;

class DatagramEndpoint final : public AnyEndpoint,
                               public DatagramWaiter,
                               public std::enable_shared_from_this<DatagramEndpoint> {
 public:
  /// Makes a queue pair on `device`: reserves its number and with it the port on which others
  /// reach this process. config.number and config.slot are filled in here. Errors: ENOMEM,
  /// EADDRINUSE (no port), EMFILE.
  static Result<std::shared_ptr<DatagramEndpoint>> create(Trunks& trunks,
                                                          std::shared_ptr<const NetDevice> device,
                                                          const QpConfig& config);
  ~DatagramEndpoint() override;

  DatagramQueuePair& qp() { return qp_; }
  const DatagramQueuePair& qp() const { return qp_; }
  const NetDevice& device() const { return *device_; }
  const std::shared_ptr<const NetDevice>& shared_device() const { return device_; }
  /// Before it is used: of what it sends to a multicast group it gets no copy itself.
  void refuse_own_multicast() { own_multicast_ = false; }
  bool takes_own_multicast() const { return own_multicast_; }

  int modify(const ibv_qp_attr& attributes, int mask) override;
  void destroy() override;

  /// Posts several datagrams with one taking of the lock, and sends what was posted at the end,
  /// also when a later request is refused.
  class SCOPED_CAPABILITY Poster {
   public:
    explicit Poster(DatagramEndpoint& endpoint) ACQUIRE(endpoint.qp().post_lock());
    ~Poster() noexcept(false) RELEASE();
    /// 0, or an errno; EINVAL also for a destination of another device.
    int post(const SendRequest& request, Destination& to, Qpn number,
             uint32_t qkey) NO_THREAD_SAFETY_ANALYSIS;
    /// What no datagram can do: it completes with an error.
    int post_without_target(const SendRequest& request) NO_THREAD_SAFETY_ANALYSIS {
      return endpoint_.qp_.post_send_locked(request, {});
    }

   private:
    friend DatagramEndpoint;
    /// Paths that have taken something; each is flushed once, as a rule.
    void note(const std::shared_ptr<DatagramPath>& path);
    static constexpr size_t kCapacity = 8;

    DatagramEndpoint& endpoint_;
    Lock<SpinLock> lock_;
    bool settled_ = false;  // made by go_on(), which sends what waits
    size_t count_ = 0;
    std::shared_ptr<DatagramPath> paths_[kCapacity];
  };

  void space_came() override;

 private:
  DatagramEndpoint(Trunks& trunks, std::shared_ptr<const NetDevice> device, QpNumberLease place,
                   const QpConfig& config);
  QpState state_locked() const override REQUIRES(mutex_) { return qp_.state(); }
  void go_on();

  Trunks& trunks_;
  const std::shared_ptr<const NetDevice> device_;
  DatagramQueuePair qp_;
  bool own_multicast_ = true;
  bool waiting_ GUARDED_BY(qp().post_lock()) = false;  // in line for room
};

}  // namespace uwarp
