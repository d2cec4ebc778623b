// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// CmIdTable.
#include "kernel/cm_id_table.h"

#include "kernel/cm_id.h"

namespace uwarp {

CmIdTable::CmIdTable() = default;
CmIdTable::~CmIdTable() = default;

std::shared_ptr<CmId> CmIdTable::create(
    const std::function<std::shared_ptr<CmId>(uint32_t)>& make) {
  const std::lock_guard guard(lock_);
  for (uint32_t tried = 0; tried < kMaxNumber; ++tried) {
    const uint32_t number = next_;
    next_ = next_ == kMaxNumber ? 1 : next_ + 1;
    if (number >= ids_.size()) ids_.resize(number + 1);
    if (ids_[number] != nullptr) continue;
    return ids_[number] = make(number);
  }
  return nullptr;
}

std::shared_ptr<CmId> CmIdTable::find(uint32_t number) const {
  const std::lock_guard guard(lock_);
  return number < ids_.size() ? ids_[number] : nullptr;
}

std::shared_ptr<CmId> CmIdTable::remove(uint32_t number) {
  const std::lock_guard guard(lock_);
  return number < ids_.size() ? std::exchange(ids_[number], nullptr) : nullptr;
}

std::vector<std::shared_ptr<CmId>> CmIdTable::all() const {
  std::vector<std::shared_ptr<CmId>> found;
  const std::lock_guard guard(lock_);
  for (const auto& id : ids_) {
    if (id != nullptr) found.push_back(id);
  }
  return found;
}

}  // namespace uwarp
