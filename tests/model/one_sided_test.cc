// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// carrier/one_sided.h, memory/region_directory.h: a peer copies by itself while the owner of the
// memory takes it away.
#include "carrier/one_sided.h"

#include <gtest/gtest.h>

#include "memory/region_directory.h"
#include "model/explorer.h"

// Mutant says_nothing: carrier/one_sided.h
// - control_.in_use.store(uint64_t{++uses_} << 32 | (uint64_t{entry} + 1));
// + (void)entry;
//
// Mutant ends_early: carrier/one_sided.h
// - return (gate & ~uint64_t{7}) == domain && domain != 0 && (gate & rights) == rights;
// + control_.in_use.store(0);
// + return (gate & ~uint64_t{7}) == domain && domain != 0 && (gate & rights) == rights;
//
// Mutant waits_for_another: carrier/one_sided.h
// - return named != 0 && (entry == kAnything || named == entry + 1) ? use : 0;
// + return named != 0 && (entry == kAnything || named == entry) ? use : 0;
//
// Mutant waits_for_nothing: carrier/one_sided.h
// - return named != 0 && (entry == kAnything || named == entry + 1) ? use : 0;
// + return named != 0 && named == entry + 1 ? use : 0;
//
// Mutant shows_it_half_entered: memory/region_directory.h memory/region_directory.cc
// - if (entry.key.load(std::memory_order_relaxed) != 0) continue;
// + if (entry.key.load(std::memory_order_relaxed) != 0) continue;
// + entry.key.store(key);
//
// Mutant removes_nothing: memory/region_directory.h memory/region_directory.cc
// - if (at != kNowhere) entries_[at].key.store(0);
// + (void)at;
//
// Mutant shuts_nothing: carrier/one_sided.h
// - void shut() { control_.gate.store(0); }
// + void shut() {}
#include "mutants/one_sided_test.h"

namespace uwarp::model {
namespace {

#define TYPES_OF(name, of_gate, of_regions)        \
  struct name {                                    \
    using Control = of_gate::OneSidedControl;      \
    using Use = of_gate::RemoteUse;                \
    using Gate = of_gate::TargetGate;              \
    using Entry = of_regions::DirectoryEntry;      \
    using Directory = of_regions::RegionDirectory; \
    using Peer = of_regions::PeerRegions;          \
  }
TYPES_OF(Product, uwarp, uwarp);
TYPES_OF(SaysNothing, says_nothing, uwarp);
TYPES_OF(EndsEarly, ends_early, uwarp);
TYPES_OF(WaitsForAnother, waits_for_another, uwarp);
TYPES_OF(WaitsForNothing, waits_for_nothing, uwarp);
TYPES_OF(ShowsItHalfEntered, uwarp, shows_it_half_entered);
TYPES_OF(RemovesNothing, uwarp, removes_nothing);
TYPES_OF(ShutsNothing, shuts_nothing, uwarp);
#undef TYPES_OF

constexpr uint32_t kKey = 0x300, kOther = 0x301;  // both may stand in entry 3 of four
constexpr uint32_t kWrites = kAccessRemoteWrite | kAccessLocalWrite;

enum class Ends : uint8_t { kDeregister, kChange, kShut };

/// The peer copies twice. The owner lets one of two memories go, or all.
template <class Types>
struct Revocation : Scenario {
  explicit Revocation(Ends ends) : ends(ends) {
    directory.enter(kKey, shape(0));
    gate.open(&domain, kWrites);
  }
  void start(Threads& threads) override {
    threads.add("peer", [this] {
      for (int i = 0; i < 2; ++i) copy();
    });
    threads.add("owner", [this] {
      uint32_t waits_for = Types::Gate::kAnything;
      if (ends == Ends::kShut)
        gate.shut();
      else
        waits_for = directory.remove(kKey);
      for (const uint64_t use = gate.use_of(waits_for); gate.goes_on(use);) yield();
      revoked[0].store(true);
      if (ends == Ends::kChange) directory.enter(kKey, shape(1));
    });
  }
  void copy() {
    const uint32_t entry = peer.find(kKey);
    if (entry == RegionDirectory::kNowhere) return;
    use.begin(entry);
    const auto region = peer.read(entry, kKey);
    if (region && use.admits(region->domain, kAccessRemoteWrite)) {
      check(region->length_bytes == (region->address == 0x1000 ? 8u : 16u),
            "half of one region and half of another");
      const size_t which = region->address == 0x1000 ? 0 : 1;
      check(!revoked[which].load(), "bytes come after the memory was let go of");
    }
    use.end();
  }
  RegionShape shape(size_t which) {
    return {&domain, reinterpret_cast<void*>(which == 0 ? 0x1000 : 0x2000), which == 0 ? 8u : 16u,
            0, kWrites};
  }

  const Ends ends;
  ProtectionDomain domain;
  typename Types::Entry entries[4];
  typename Types::Directory directory{entries, 4};
  typename Types::Peer peer{entries, 4};
  typename Types::Control control;
  typename Types::Gate gate{control};
  typename Types::Use use{control};
  Atomic<bool> revoked[2] = {};
};

constexpr Property kRevocation{
    "One-sided copies", "Once memory has been let go of, no byte comes to it by a peer's copy.", 3};

TEST(OneSidedModel, MemoryIsLetGoOfOnceNoCopyIsUnderWay) {
  for (const Ends ends : {Ends::kDeregister, Ends::kChange, Ends::kShut})
    expect_holds<Revocation<Product>>(kRevocation, ends);
}

TEST(OneSidedModel, FindsCopiesThatAreOverlooked) {
  const char* const late = "bytes come after";
  expect_found<Revocation<SaysNothing>>(kRevocation, late, Ends::kDeregister);
  expect_found<Revocation<EndsEarly>>(kRevocation, late, Ends::kDeregister);
  expect_found<Revocation<WaitsForAnother>>(kRevocation, late, Ends::kDeregister);
  expect_found<Revocation<WaitsForNothing>>(kRevocation, late, Ends::kShut);
  expect_found<Revocation<RemovesNothing>>(kRevocation, late, Ends::kDeregister);
  expect_found<Revocation<ShutsNothing>>(kRevocation, late, Ends::kShut);
  expect_found<Revocation<ShowsItHalfEntered>>(kRevocation, "half of one", Ends::kChange);
}

}  // namespace
}  // namespace uwarp::model
