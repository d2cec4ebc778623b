// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Copies of payload that live as long as the batch whose bytes they are. Each is one allocation,
// and none throws: a thread that needs a copy holds locks and has work half done.
#pragma once

#include <cstddef>
#include <new>

namespace uwarp {

class PayloadCopies {
 public:
  PayloadCopies() = default;
  ~PayloadCopies() { clear(); }
  PayloadCopies(const PayloadCopies&) = delete;
  PayloadCopies& operator=(const PayloadCopies&) = delete;

  /// Room for `size` bytes; null without memory for it.
  std::byte* add(size_t size) {
    void* const memory = ::operator new(sizeof(Head) + size, std::nothrow);
    if (memory == nullptr) return nullptr;
    first_ = new (memory) Head{first_};
    return reinterpret_cast<std::byte*>(first_ + 1);
  }
  void clear() {
    while (first_ != nullptr) {
      Head* const gone = first_;
      first_ = gone->next;
      ::operator delete(gone);
    }
  }

 private:
  struct alignas(std::max_align_t) Head {
    Head* next;
  };
  Head* first_ = nullptr;
};

}  // namespace uwarp
