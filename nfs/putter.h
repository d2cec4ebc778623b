// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Copies files and trees to the server. A file is written under a temporary name and renamed when
// the server has all of it.
#pragma once

#include <filesystem>
#include <string>

#include "nfs/file_writer.h"
#include "nfs/getter.h"
#include "nfs/nfs_client.h"
#include "nfs/transfer_slots.h"

namespace uwarp::nfs {

class Putter {
 public:
  Putter(NfsClient& client, TransferSlots& slots, const CopyOptions& options)
      : client_(client), writer_(client, slots), options_(options) {}

  void put(const std::filesystem::path& from, const Place& to);

 private:
  void put_file(const std::filesystem::path& from, const Place& to);
  void put_symlink(const std::filesystem::path& from, const Place& to);
  void put_directory(const std::filesystem::path& from, const Place& to);
  void take_back(const FileHandle& directory, const std::string& name);

  NfsClient& client_;
  FileWriter writer_;
  CopyOptions options_;
};

}  // namespace uwarp::nfs
