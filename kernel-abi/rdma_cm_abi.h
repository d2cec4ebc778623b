// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A command of /dev/infiniband/rdma_cm that Linux 6.17 brought; installed headers may be older.
#pragma once

#include <cstdint>

namespace uwarp::rdma_cm_abi {

inline constexpr uint32_t kWriteCmEvent = 24;

/// The kernel's command ends with a longer union; an event that an application may write uses these
/// eight bytes of it.
struct WriteCmEvent {
  uint32_t id;
  uint32_t reserved;
  uint32_t event;
  uint32_t status;
  uint64_t argument;
};

}  // namespace uwarp::rdma_cm_abi
