// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// All rdma_cm ids of the process by number. librdmacm indexes a table of its own with the number,
// over all channels, so it is unique per process and has 16 bits.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace uwarp {

class CmId;

class CmIdTable {
 public:
  static constexpr uint32_t kMaxNumber = 65535;

  CmIdTable();
  ~CmIdTable();

  /// `make` is given the number; null when all are in use. Numbers are reused as late as possible.
  std::shared_ptr<CmId> create(const std::function<std::shared_ptr<CmId>(uint32_t)>& make);
  /// Null when there is none.
  std::shared_ptr<CmId> find(uint32_t number) const;
  /// Takes it out; null when it was out already. Of two callers one gets it.
  std::shared_ptr<CmId> remove(uint32_t number);
  std::vector<std::shared_ptr<CmId>> all() const;
  /// A name for a multicast group that an id joins; not used twice.
  uint32_t name_group() { return next_group_.fetch_add(1, std::memory_order_relaxed); }

 private:
  mutable std::mutex lock_;                 ///< before the lock of the event queues
  std::vector<std::shared_ptr<CmId>> ids_;  ///< by number, grows on demand
  uint32_t next_ = 1;
  std::atomic<uint32_t> next_group_{1};
};

}  // namespace uwarp
