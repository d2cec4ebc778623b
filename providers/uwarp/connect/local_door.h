// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Where other processes of this host and user bring the memory that is to carry a connection
// instead of TCP: a Unix socket with a random name in the abstract namespace, which reaches as far
// as the network namespace and leaves nothing behind.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/result.h"
#include "carrier/ring_carrier.h"
#include "os/engine_fds.h"
#include "progress/progress.h"

namespace uwarp {

/// Waits for memory. Called by the thread that progresses, no lock held.
class CarrierOwner {
 public:
  virtual ~CarrierOwner() = default;
  virtual void carrier_arrived(std::unique_ptr<RingCarrier> carrier) = 0;
};

class LocalDoor final : public Source {
 public:
  explicit LocalDoor(Progress& progress) : progress_(progress) {}
  ~LocalDoor() override;

  /// What is offered to a peer: where it shall come to, and with what. Errors: EMFILE, ENOMEM...
  struct Ticket {
    uint64_t door = 0;
    uint64_t number = 0;
  };
  Result<Ticket> expect(std::weak_ptr<CarrierOwner> owner);
  /// The owner does not wait any more.
  void forget(uint64_t number);

  /// Memory before the door that a peer has named. The peer may use it as soon as it has it, so the
  /// caller of hand_over() has joined its own end to the stream before.
  struct Delivery {
    EngineFd door;
    uint64_t number;
    std::unique_ptr<RingCarrier> carrier;
  };
  /// The other side: makes memory for the door. EPERM: the process behind it belongs to another
  /// user; ECONNREFUSED: there is none, so the peer is in another network namespace; ENOMEM,
  /// EMFILE...
  static Result<Delivery> bring(const Ticket& ticket);
  /// 0 or an errno: the peer has got nothing then. `joined`: what was delivery.carrier.
  static int hand_over(const Delivery& delivery, RingCarrier& joined);

  bool ready(uint32_t events) override;

 private:
  struct Visitor {
    EngineFd fd;
    Progress::Ticket ticket = 0;
  };
  static constexpr size_t kMostVisitors = 64;
  int open_locked();
  void close_unless_needed_locked();
  bool accept_one();
  bool serve(const Visitor& visitor);
  void serve_visitors_locked();
  void dismiss_locked(size_t index);

  Progress& progress_;
  std::mutex mutex_;
  EngineFd socket_;
  uint64_t name_ = 0;
  Progress::Ticket ticket_ = 0;
  std::map<uint64_t, std::weak_ptr<CarrierOwner>> expected_;
  std::vector<Visitor> visitors_;
  std::vector<std::pair<std::shared_ptr<CarrierOwner>, std::unique_ptr<RingCarrier>>> arrived_;
};

}  // namespace uwarp
