// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// Whether the neighbour on the way to an address answers, as the kernel's neighbour table says, and
// how the kernel is made to ask for it. Needs no rights. Nothing here waits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "net/ip_address.h"
#include "net/net_device.h"
#include "progress/progress.h"

namespace uwarp {

// What is asked of the kernel about next hops and neighbours, and what it answers, as the bytes of
// rtnetlink messages. No I/O.

/// Where packets to a destination go first: the destination itself, or a gateway.
struct NextHop {
  int ifindex = 0;
  IpAddress address;

  friend bool operator==(const NextHop&, const NextHop&) = default;
};

/// What the kernel's neighbour table says of a next hop.
enum class NeighbourState : uint8_t {
  kUnknown,    ///< the kernel cannot be asked
  kAbsent,     ///< no entry
  kResolving,  ///< asked for on the link, not answered yet
  kFailed,     ///< asked for several times and not answered
  kPresent,    ///< has answered, or needs not to
};

/// RTM_GETROUTE: how does a packet from `source` to `destination` leave?
std::vector<std::byte> route_question(const IpAddress& destination, const IpAddress& source);
/// The answer to it. Nullopt for an error, and for routes without a neighbour: to local, broadcast
/// and multicast addresses.
std::optional<NextHop> next_hop_of(std::span<const std::byte> answer, const IpAddress& destination);

/// RTM_GETNEIGH: the entry of `hop`.
std::vector<std::byte> neighbour_question(const NextHop& hop);
NeighbourState neighbour_state_of(std::span<const std::byte> answer);

/// The next hops of which notifications (RTM_NEWNEIGH, RTM_DELNEIGH) tell.
std::vector<NextHop> changed_neighbours(std::span<const std::byte> notifications);

/// What a look at the table means to a thing that waits for a neighbour: 0 once it is there,
/// -EHOSTUNREACH if the kernel has given up, -ETIMEDOUT at the end of the time; nullopt to wait on.
/// A kernel that cannot be asked any more must not keep anything from trying: 0.
std::optional<int> outcome_of_waiting(NeighbourState state, bool time_is_over);

/// Waits for a neighbour. Called once, by the thread that progresses, without locks of the engine.
class NeighbourListener {
 public:
  virtual ~NeighbourListener() = default;
  /// 0 when the neighbour is there, -EHOSTUNREACH or -ETIMEDOUT when it is not.
  virtual void neighbour_known(int status) = 0;
};

/// The neighbour that packets along `route` to `destination` need. Nullopt if they need none (own
/// addresses, and devices without ARP or NDP), and if the kernel does not tell.
std::optional<NextHop> neighbour_towards(const IpAddress& destination, const Route& route);

NeighbourState neighbour_state(const NextHop& hop);

/// Makes the kernel ask for the neighbour, by a datagram to the discard port of `destination` that
/// goes no further than to it. False when it cannot be sent.
bool ask_for_neighbour(const IpAddress& destination, const Route& route);

/// A netlink fd that becomes readable when an entry of the table changes; -1 and errno. An engine
/// fd, the caller's to close.
int open_neighbour_changes();

// Waits until neighbours have answered. It listens to the kernel's neighbour table only while a
// listener waits, because the tables of busy hosts change all the time. One per engine.
class NeighbourWatch final : public Source {
 public:
  explicit NeighbourWatch(Progress& progress) : progress_(progress) {}

  /// True if the listener will be told the outcome, at `deadline_ns` at the latest. False if there
  /// is nothing to wait for: the neighbour is known, none is needed, or the kernel does not say.
  bool wait(const IpAddress& destination, const Route& route, uint64_t deadline_ns,
            std::weak_ptr<NeighbourListener> listener);

  bool ready(uint32_t events) override;
  void deadline_passed() override;
  void out_of_memory() override;

 private:
  struct Waiting {
    uint64_t number;
    NextHop hop;
    uint64_t deadline_ns;
    std::weak_ptr<NeighbourListener> listener;
  };
  struct Notice {
    std::shared_ptr<NeighbourListener> listener;
    int status;
  };

  bool add_locked(Waiting waiting) REQUIRES(mutex_);
  /// Looks at the table for those whose next hop is in `changed`; null: for all. Returns those of
  /// which the end is known, which are not waiting any more.
  std::vector<Notice> settle_locked(const std::vector<NextHop>* changed) REQUIRES(mutex_);
  void waiting_changed_locked() REQUIRES(mutex_);

  Progress& progress_;
  Mutex mutex_;  // a leaf but for the slots of `progress_`
  uint64_t last_number_ GUARDED_BY(mutex_) = 0;
  std::vector<Waiting> waiting_ GUARDED_BY(mutex_);
  int fd_ GUARDED_BY(mutex_) = -1;  // open while anything waits
  Progress::Registration registration_ GUARDED_BY(mutex_) = 0;
};

}  // namespace uwarp
