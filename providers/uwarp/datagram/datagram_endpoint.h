// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A queue pair of datagrams as applications know it: the sans-IO core, its number and its
// attributes. verbs/ talks to this class, as to Endpoint for those that connect.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>

#include "base/ids.h"
#include "base/result.h"
#include "connect/qp_attributes.h"
#include "connect/queue_pair_place.h"
#include "net/net_device.h"
#include "qp/datagram_queue_pair.h"

namespace uwarp {

class Destination;
class Trunks;

class DatagramEndpoint final : public DatagramWaiter,
                               public std::enable_shared_from_this<DatagramEndpoint> {
 public:
  /// Makes a queue pair on `device`: reserves its number and with it the port on which others
  /// reach this process. config.number and config.slot are filled in here. Errors: ENOMEM,
  /// EADDRINUSE (no port), EMFILE.
  static Result<std::shared_ptr<DatagramEndpoint>> create(Trunks& trunks,
                                                          std::shared_ptr<const NetDevice> device,
                                                          const QpConfig& config);
  ~DatagramEndpoint() override;
  DatagramEndpoint(const DatagramEndpoint&) = delete;
  DatagramEndpoint& operator=(const DatagramEndpoint&) = delete;

  DatagramQueuePair& qp() { return qp_; }
  const DatagramQueuePair& qp() const { return qp_; }
  Qpn number() const { return qp_.config().number; }
  const NetDevice& device() const { return *device_; }
  const std::shared_ptr<const NetDevice>& shared_device() const { return device_; }
  void name_queues(uint32_t send_queue, uint32_t receive_queue);
  /// Before it is used: of what it sends to a multicast group it gets no copy itself.
  void refuse_own_multicast() { own_multicast_ = false; }
  bool takes_own_multicast() const { return own_multicast_; }

  /// ibv_modify_qp: 0 or EINVAL, ENOMEM, EADDRINUSE...
  int modify(const QpAttributes& attributes, uint32_t mask);
  QpAttributes attributes() const;
  /// ibv_destroy_qp: when it returns no thread touches its completion queues or the memory of its
  /// domain on its behalf any more.
  void destroy();

  /// Posts several datagrams with one taking of the lock, and sends what was posted at the end,
  /// also when a later request is refused.
  class Poster {
   public:
    explicit Poster(DatagramEndpoint& endpoint);
    ~Poster() noexcept(false);
    Poster(const Poster&) = delete;
    Poster& operator=(const Poster&) = delete;
    /// 0, or an errno; EINVAL also for a destination of another device.
    int post(const SendRequest& request, Destination& to, Qpn number, uint32_t qkey);
    /// What no datagram can do: it completes with an error.
    int post_without_target(const SendRequest& request) {
      return endpoint_.qp_.post_send_locked(request, {});
    }

   private:
    friend DatagramEndpoint;
    /// Ways that have taken something; each is flushed once, as a rule.
    void note(const std::shared_ptr<DatagramWay>& way);
    static constexpr size_t kRoom = 8;

    DatagramEndpoint& endpoint_;
    std::unique_lock<SpinLock> lock_;
    bool settled_ = false;  // made by go_on(), which sends what waits
    size_t count_ = 0;
    std::shared_ptr<DatagramWay> ways_[kRoom];
  };

  void room_came() override;

 private:
  DatagramEndpoint(Trunks& trunks, std::shared_ptr<const NetDevice> device, QueuePairPlace place,
                   const QpConfig& config);
  void go_on();

  Trunks& trunks_;
  const std::shared_ptr<const NetDevice> device_;
  QueuePairPlace place_;
  DatagramQueuePair qp_;
  bool own_multicast_ = true;
  bool waiting_ = false;  // in line for room; under the posting lock

  mutable std::mutex mutex_;
  QpAttributes attributes_;
  bool destroyed_ = false;
};

}  // namespace uwarp
