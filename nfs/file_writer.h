// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Writes a local file into a remote one with several WRITEs under way, and has the server commit
// it.
#pragma once

#include <cstdint>

#include "nfs/nfs_client.h"
#include "nfs/progress_bar.h"
#include "nfs/transfer_slots.h"

namespace uwarp::nfs {

class FileWriter {
 public:
  FileWriter(NfsClient& client, TransferSlots& slots) : client_(client), slots_(slots) {}

  /// Throws std::system_error when the local file cannot be read.
  void write(int local, uint64_t size, const OpenFile& file, ProgressBar& progress);

 private:
  NfsClient& client_;
  TransferSlots& slots_;
};

}  // namespace uwarp::nfs
