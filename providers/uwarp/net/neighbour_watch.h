// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Waits until neighbours have answered. It listens to the kernel's neighbour table only while a
// listener waits, because the tables of busy hosts change all the time. One per engine.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "net/neighbour.h"
#include "net/neighbour_listener.h"
#include "progress/progress.h"

namespace uwarp {

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
  struct Told {
    std::shared_ptr<NeighbourListener> listener;
    int status;
  };

  bool add_locked(Waiting waiting);
  /// False when its listener has been told, or is about to be.
  bool take_back(uint64_t number);
  /// Looks at the table for those whose next hop is in `changed`; null: for all. Returns those of
  /// which the end is known, which are not waiting any more.
  std::vector<Told> settle_locked(const std::vector<NextHop>* changed);
  void waiting_changed_locked();

  Progress& progress_;
  std::mutex mutex_;  // a leaf but for the slots of `progress_`
  uint64_t last_number_ = 0;
  std::vector<Waiting> waiting_;
  int fd_ = -1;  // open while anything waits
  Progress::Ticket ticket_ = 0;
};

}  // namespace uwarp
