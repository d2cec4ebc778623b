// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The directory of our regions in memory that peers on this host may map.
#pragma once

#include <memory>
#include <mutex>

#include "carrier/ring_carrier.h"
#include "memory/region_directory.h"
#include "memory/region_table.h"

namespace uwarp {

static_assert(sizeof(DirectoryEntry) == 64);

/// Of one process. Any thread.
class PublishedRegions {
 public:
  /// The descriptor of the directory of `table`, always the same one, which is made at the first
  /// call; -1 where that failed.
  int fd(RegionTable& table) {
    std::call_once(once_, [&] {
      auto memory = SharedMemory::create(RegionDirectory::kBytes, "uwarp-regions");
      if (!memory) return;
      memory_ = std::move(*memory);
      directory_ =
          std::make_unique<RegionDirectory>(reinterpret_cast<DirectoryEntry*>(memory_.base()));
      table.enter_into(*directory_);
    });
    return memory_.fd();
  }

 private:
  std::once_flag once_;
  SharedMemory memory_;
  std::unique_ptr<RegionDirectory> directory_;
};

}  // namespace uwarp
