// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Memory regions that are changed and removed while queue pairs look them up and copy.
#include <gtest/gtest.h>

#include <mutex>

#include "memory/memory_region.h"
#include "model/explorer.h"
#include "qp/handoff_lock.h"

// Mutant counts_no_version: memory/memory_region.h
// - const uint64_t version = (word_.load(std::memory_order_relaxed) >> 32) + 1;
// + const uint64_t version = 1;
//
// Mutant keeps_the_key: memory/memory_region.h
// - key.store(0);
// - domain_.store(shape.domain, std::memory_order_release);
// + domain_.store(shape.domain, std::memory_order_release);
//
// Mutant reads_once: memory/memory_region.h
// - bool read(Name name, RegionShape& out) const { return out = shape(), key.is_still(name); }
// + bool read(Name name, RegionShape& out) const { return out = shape(), name != 0; }
//
// Mutant guards_nothing: memory/memory_region.h
// - valid_ = place.region->key.load(std::memory_order_acquire) == stag.value;
// + valid_ = stag.value != 0;
//
// Mutant guards_no_window: memory/memory_region.h
// - valid_ = window_->binding == place.binding;
// + valid_ = true;
#include "mutants/regions_test.h"

namespace uwarp::model {
namespace {

#define TYPES_OF(name, space)               \
  struct name {                             \
    using Domain = space::ProtectionDomain; \
    using Shape = space::RegionShape;       \
    using Region = space::MemoryRegion;     \
    using Place = space::RemoteRange;       \
    using Guard = space::RangeGuard;        \
  }
TYPES_OF(Product, uwarp);
TYPES_OF(CountsNoVersion, counts_no_version);
TYPES_OF(KeepsTheKey, keeps_the_key);
TYPES_OF(ReadsOnce, reads_once);
TYPES_OF(GuardsNothing, guards_nothing);
TYPES_OF(GuardsNoWindow, guards_no_window);
#undef TYPES_OF

/// The memory behind a region; the application frees it once the region is removed.
struct Memory {
  Alive alive;
};

/// A region moves from one domain to another, under the same key or a new one. Meanwhile a stream
/// of the new domain looks it up; no lock keeps it from doing so.
template <class Types>
struct Change : Scenario {
  explicit Change(bool same_key) : same_key(same_key) {}
  void start(Threads& threads) override {
    region.change(shape_of(1), 0x100);
    for (const char* name : {"stream", "another"}) {
      threads.add(name, [this] {
        uint64_t word;
        typename Types::Shape seen;
        if (!region.key.names(word = region.key.name(), 0x100) || !region.read(word, seen)) return;
        const uint64_t part = seen.length_bytes;
        check(seen.first == part && seen.domain == domain + part && seen.access == part,
              "a torn range");
        check(part == 1 || same_key, "the range of another key");
      });
    }
    threads.add("changes", [this] {
      region.change(shape_of(2), same_key ? 0x100 : 0x101);
      if (same_key) region.change(shape_of(3), 0x100);
    });
  }
  typename Types::Shape shape_of(uint32_t part) {
    return {.domain = domain + part, .length_bytes = part, .first = part, .access = part};
  }

  const bool same_key;
  typename Types::Domain domain[4];
  typename Types::Region region;
};

constexpr Property kChange{"regions, change",
                           "A look-up of a key finds one whole shape that the region had under it, "
                           "or nothing.",
                           2};

/// A receive side looks up a region in one turn and copies in two more. It gives up the side in
/// between. Meanwhile the application removes the region and frees the memory.
template <class Types>
struct Removal : Scenario {
  void start(Threads& threads) override {
    region.change({.domain = &domain, .address = memory.raw(), .length_bytes = 1}, 0x100);
    threads.add("stream", [this] {
      typename Types::Place place;
      {
        const auto turn = side.begin();
        uint64_t name;
        typename Types::Shape shape;
        if (!turn || !region.key.names(name = region.key.name(), 0x100) ||
            !region.read(name, shape))
          return;
        place.region = &region;
        place.address = static_cast<std::byte*>(shape.address);
        copy(place);
      }
      if (const auto turn = side.begin()) copy(place);
    });
    threads.add("dereg", [this] {
      region.key.store(0);
      { const auto held = side.lock_exclusive(); }  // QueuePair::quiesce()
      memory.destroy();
      region.change({.domain = &domain, .address = nullptr, .length_bytes = 1}, 0x101);
    });
  }
  void copy(const typename Types::Place& place) {
    const typename Types::Guard guard(place, STag{0x100});
    if (!guard) return;
    point("copies");
    reinterpret_cast<Memory*>(place.address)->alive.touch("memory of a region");
  }

  HandoffLock side;
  typename Types::Domain domain;
  Object<Memory> memory;
  typename Types::Region region;
};

constexpr Property kRemoval{"regions, removal",
                            "After ibv_dereg_mr() has returned no thread touches the memory.", 4};

/// The same through a window that is unbound. Unbinding waits for no thread.
template <class Types>
struct Unbinding : Scenario {
  void start(Threads& threads) override {
    window.binding = 1;
    window.change({.domain = &domain, .address = memory.raw(), .length_bytes = 1}, 0x100);
    threads.add("stream", [this] {
      typename Types::Place place;
      {
        const std::lock_guard binding(window.binding_lock);
        uint64_t name;
        typename Types::Shape shape;
        if (!window.key.names(name = window.key.name(), 0x100) || !window.read(name, shape)) return;
        place.region = &window;
        place.address = static_cast<std::byte*>(shape.address);
        place.binding = window.binding;
      }
      const typename Types::Guard guard(place, STag{0x100});
      if (!guard) return;
      point("copies");
      memory.get().alive.touch("memory behind a window");
    });
    threads.add("unbinds", [this] {
      {
        const std::lock_guard binding(window.binding_lock);
        window.key.store(0);
        ++window.binding;
      }
      memory.destroy();
    });
  }

  typename Types::Domain domain;
  Object<Memory> memory;
  typename Types::Region window;
};

constexpr Property kUnbinding{"windows, unbinding",
                              "After a window is unbound no thread touches memory through it.", 4};

TEST(Regions, AreSeenAsAWhole) {
  for (const bool same_key : {true, false}) expect_holds<Change<Product>>(kChange, same_key);
  expect_found<Change<CountsNoVersion>>(kChange, "torn", true);
  expect_found<Change<KeepsTheKey>>(kChange, "torn", true);
  expect_found<Change<ReadsOnce>>(kChange, "torn", true);
  expect_found<Change<ReadsOnce>>(kChange, "", false);
}

TEST(Regions, AreNotTouchedOnceTheyAreRemoved) {
  expect_holds<Removal<Product>>(kRemoval);
  expect_found<Removal<GuardsNothing>>(kRemoval, "use after free");
}

TEST(Regions, AreNotTouchedThroughWindowsThatAreUnbound) {
  expect_holds<Unbinding<Product>>(kUnbinding);
  expect_found<Unbinding<GuardsNoWindow>>(kUnbinding, "use after free");
}

}  // namespace
}  // namespace uwarp::model
