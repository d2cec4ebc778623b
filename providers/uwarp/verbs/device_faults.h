// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What UWARP_FAULT asks of an opened device: asynchronous events without a cause, and a port that
// goes down and up. Makes the scripts of its queue pairs, and is told what they do.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "inject/fault_script.h"
#include "inject/process_faults.h"
#include "progress/source.h"

namespace uwarp {

class DeviceContext;
class Engine;

class DeviceFaults final : public Source, public FaultListener {
 public:
  /// Null unless faults are asked for.
  static std::shared_ptr<DeviceFaults> make(DeviceContext& device);
  explicit DeviceFaults(DeviceContext& device);
  /// The device is being closed: on return it is not used any more.
  void stop();

  std::shared_ptr<FaultScript> make_script(FaultScript::Of of);
  bool port_down() const { return port_down_.load(std::memory_order_acquire); }

  void fault_acts(uint32_t queue_pair, const FaultRule& rule, uint64_t count) override;
  bool ready(uint32_t events) override;
  void deadline_passed() override;

 private:
  /// Something to be done when its time has come.
  struct Due {
    uint64_t at_ns;
    FaultRule rule;
    bool port_up = false;
  };

  void begin();
  void set_deadline_locked();
  bool take_due(Due& out);
  void carry_out_locked(const Due& due);
  void set_port_locked(bool down);

  Engine& engine_;
  std::mutex mutex_;       // held while the device is used
  DeviceContext* device_;  // null once stopped; under mutex_
  std::atomic<bool> port_down_{false};
  std::mutex due_mutex_;  // leaf
  std::vector<Due> due_;  // under due_mutex_
};

}  // namespace uwarp
