// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Several protection domains that a peer may reach by one queue pair: those of the shared receive
// queues of an XRC domain. Looked at on each access, without a lock; changed rarely.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

namespace uwarp {

/// Domains are named by their addresses. contains(): any thread. add() and remove(): one thread at
/// a time.
class DomainSet {
 public:
  DomainSet() = default;
  ~DomainSet() {
    for (Entry* at = first_.load(); at != nullptr;) delete std::exchange(at, at->next);
  }
  DomainSet(const DomainSet&) = delete;
  DomainSet& operator=(const DomainSet&) = delete;

  bool contains(const void* domain) const {
    return domain != nullptr && find(first_.load(std::memory_order_acquire), domain) != nullptr;
  }
  /// Each add() is taken back by one remove(). Throws std::bad_alloc.
  void add(const void* domain) {
    Entry* const first = first_.load(std::memory_order_relaxed);
    Entry* entry = find(first, domain);
    if (entry == nullptr) entry = find(first, nullptr);  // of a domain that has left
    if (entry == nullptr) {
      entry = new Entry{.next = first};
      first_.store(entry, std::memory_order_release);
    }
    ++entry->count;
    entry->domain.store(domain, std::memory_order_release);
  }
  void remove(const void* domain) {
    Entry* const entry = find(first_.load(std::memory_order_relaxed), domain);
    if (--entry->count == 0) entry->domain.store(nullptr, std::memory_order_release);
  }

 private:
  struct Entry {
    std::atomic<const void*> domain{nullptr};
    uint32_t count = 0;
    Entry* next = nullptr;
  };
  static Entry* find(Entry* at, const void* domain) {
    while (at != nullptr && at->domain.load(std::memory_order_acquire) != domain) at = at->next;
    return at;
  }

  std::atomic<Entry*> first_{nullptr};  // entries stay until the end
};

}  // namespace uwarp
