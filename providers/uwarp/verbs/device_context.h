// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// An opened device: which netdev it stands for, where its asynchronous events go, and what the
// application has made on it and not yet destroyed. Knows no private layout of libibverbs.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <unordered_set>
#include <vector>

#include "base/mutex.h"
#include "engine/engine.h"
#include "events/event_channel.h"
#include "inject/fault_script.h"
#include "inject/process_faults.h"
#include "net/net_device.h"
#include "net/net_watch.h"
#include "progress/source.h"
#include "verbs/acknowledgement.h"
#include "verbs/verbs_table.h"

namespace uwarp {

class DeviceContext;
struct VerbsMr;
struct VerbsQp;

/// What UWARP_FAULT asks of an opened device: asynchronous events without a cause, and a port that
/// goes down and up. Makes the scripts of its queue pairs, and is told what they do.
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

  void set_deadline_locked() REQUIRES(due_mutex_);
  bool take_due(Due& out);
  void carry_out_locked(const Due& due) REQUIRES(mutex_);
  void set_port_locked(bool down) REQUIRES(mutex_);

  Engine& engine_;
  Mutex mutex_;                               // held while the device is used
  DeviceContext* device_ GUARDED_BY(mutex_);  // null once stopped
  std::atomic<bool> port_down_{false};
  Mutex due_mutex_;  // leaf
  std::vector<Due> due_ GUARDED_BY(due_mutex_);
};

/// What becomes of an opened device's netdev, as asynchronous events: port active or in error,
/// other addresses, and the device itself gone.
class PortEvents final : public NetListener {
 public:
  explicit PortEvents(DeviceContext& device);
  /// What the port is like now that its changes are told: not one of them.
  void begin(const NetDeviceTable& devices);
  /// The device is being closed: on return it is not used any more.
  void stop();
  void net_changed(const NetDeviceTable& devices) override;

 private:
  Mutex mutex_;
  DeviceContext* device_ GUARDED_BY(mutex_);                  // null once stopped
  std::shared_ptr<const NetDevice> last_ GUARDED_BY(mutex_);  // as it was when it was seen last
  bool running_ GUARDED_BY(mutex_);                           // the port was said to be active
};

class DeviceContext {
 public:
  /// The engine's side of `context`, whose name says which netdev it is. Sets the tail, async_fd
  /// and num_comp_vectors. 0; ENODEV, EMFILE, ENOMEM.
  static int open(ibv_context* context);
  /// The one that open() made.
  static DeviceContext& of(ibv_context* context) {
    auto* tail = reinterpret_cast<uwarp_context_tail*>(context + 1);
    return *static_cast<DeviceContext*>(tail->context);
  }
  /// Ends the queue pairs and regions that were left alive. Their structs stay allocated, since the
  /// application still has pointers to them.
  ~DeviceContext();

  /// The netdev as it was when the device was opened.
  const NetDevice& device() const { return *device_; }
  const std::shared_ptr<const NetDevice>& shared_device() const { return device_; }
  Engine& engine() const { return engine_; }
  /// False in a forked child: everything made on this context is the parent's. Destroying it there
  /// succeeds and does nothing; making more of it fails with ENODEV.
  bool alive() const { return engine_.alive(); }
  /// The netdev is gone. What was made can be destroyed, and nothing else be done, as in the
  /// kernel.
  bool removed() const { return removed_.load(std::memory_order_acquire); }
  /// Why nothing can be made or changed here: ENODEV in a forked child, EIO on a removed device; 0
  /// when it can.
  int refusal() const { return !alive() ? ENODEV : removed() ? EIO : 0; }
  ibv_context* base() const { return base_; }

  /// Where an object that is being made takes room for its events.
  EventChannel& async_channel() { return *async_; }
  /// Queues an asynchronous event. Any thread; takes only the channel's lock. False: dropped, see
  /// EventChannel::send().
  bool raise(ibv_event_type type, const void* element) {
    return async_->send(AsyncEventRecord{reinterpret_cast<uintptr_t>(element), uint32_t{type}, 0});
  }
  /// The same for one that has to be acknowledged before `element` can be destroyed.
  void raise(ibv_event_type type, const void* element, DeliveredCount& delivered) {
    delivered.fetch_add(1, std::memory_order_relaxed);  // first: it may be acknowledged at once
    if (!raise(type, element)) delivered.fetch_sub(1, std::memory_order_relaxed);
  }
  /// libibverbs has read an event: makes room for others.
  void event_read() { async_->records_read(); }
  /// Takes back the unread events of an object that is being destroyed and raises no more. Returns
  /// how many it has given to the application.
  uint32_t take_back_events(const void* element, const DeliveredCount& delivered);

  /// Null unless faults are asked for.
  DeviceFaults* faults() const { return faults_.get(); }
  std::vector<std::shared_ptr<Endpoint>> endpoints();
  /// All queue pairs go to ERR.
  void fail_queue_pairs();
  /// The netdev is gone: DEVICE_FATAL, and all queue pairs go to ERR. Throws std::bad_alloc, and is
  /// to be called again then.
  void remove();

  void add(VerbsQp* qp);
  void remove(VerbsQp* qp) {
    const Lock guard(mutex_);
    queue_pairs_.erase(qp);
  }
  void add(VerbsMr* mr) {
    const Lock guard(mutex_);
    regions_.insert(mr);
  }
  void remove(VerbsMr* mr) {
    const Lock guard(mutex_);
    regions_.erase(mr);
  }

  /// Counts against the limits that query_device reports: false when one more is too many.
  static bool take_place(std::atomic<uint32_t>& count, uint32_t limit);
  std::atomic<uint32_t> pd_count{0};
  std::atomic<uint32_t> ah_count{0};
  std::atomic<uint32_t> cq_count{0};
  std::atomic<uint32_t> srq_count{0};
  std::atomic<uint32_t> qp_count{0};
  std::atomic<uint64_t> dm_bytes{0};

 private:
  DeviceContext(ibv_context* base, std::shared_ptr<const NetDevice> device,
                std::shared_ptr<EventChannel> async);
  /// No other thread looks at this object any more.
  void stop_watching();

  ibv_context* const base_;
  const std::shared_ptr<const NetDevice> device_;
  Engine& engine_;
  const std::shared_ptr<EventChannel> async_;
  const std::shared_ptr<PortEvents> port_events_;
  const std::shared_ptr<DeviceFaults> faults_;
  std::atomic<bool> removed_{false};
  Mutex mutex_;
  std::unordered_set<VerbsQp*> queue_pairs_ GUARDED_BY(mutex_);
  std::unordered_set<VerbsMr*> regions_ GUARDED_BY(mutex_);
};

}  // namespace uwarp
