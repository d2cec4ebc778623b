// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Reads a remote file into a local one with several READs under way.
#pragma once

#include <cstdint>

#include "nfs/nfs_client.h"
#include "nfs/progress_bar.h"
#include "nfs/transfer_slots.h"

namespace uwarp::nfs {

class FileReader {
 public:
  FileReader(NfsClient& client, TransferSlots& slots) : client_(client), slots_(slots) {}

  /// Throws std::system_error when the local file cannot be written.
  void read(const OpenFile& file, uint64_t size, int local, ProgressBar& progress);

 private:
  NfsClient& client_;
  TransferSlots& slots_;
};

}  // namespace uwarp::nfs
