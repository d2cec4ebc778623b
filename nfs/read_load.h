// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A load of READs for a fixed time: a fixed number is outstanding, and each that is done is
// replaced by the next.
#pragma once

#include <cstdint>
#include <functional>

#include "nfs/nfs_client.h"
#include "nfs/transfer_slots.h"

namespace uwarp::nfs {

struct LoadFigures {
  uint64_t requests = 0;
  uint64_t bytes = 0;
  double seconds = 0;
  uint64_t chunked = 0;  // replies whose data came by RDMA Write
};

/// `next_offset` says where each READ begins; the requests are as large as the slots.
LoadFigures run_read_load(NfsClient& client, const OpenFile& file, TransferSlots& slots,
                          double seconds, const std::function<uint64_t()>& next_offset);

}  // namespace uwarp::nfs
