// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// ibv_dm: memory that a device would have of its own. Ours is the host's, out of the application's
// reach but for the copy calls and regions, which is all that the interface promises.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "verbs/device_context.h"
#include "verbs/named.h"
#include "verbs/region.h"

namespace uwarp {

struct VerbsDm : ibv_dm, Named<VerbsDm, ibv_dm> {
  VerbsDm(DeviceContext& device, Mapping mapping, std::byte* start, size_t length_bytes)
      : ibv_dm{},
        device(device),
        mapping(std::move(mapping)),
        start(start),
        length_bytes(length_bytes) {}
  DeviceContext& device;
  const Mapping mapping;
  std::byte* const start;  // aligned as asked
  const size_t length_bytes;
  std::atomic<uint32_t> users{0};  // regions

  /// Whether [offset, offset + length) is part of it.
  bool contains(uint64_t offset, size_t length) const {
    return offset <= length_bytes && length <= length_bytes - offset;
  }
};

}  // namespace uwarp
