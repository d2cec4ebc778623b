// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Copies files and trees from the server. A file is written under a temporary name and renamed when
// it is complete. The server chooses names and types of files, but no path outside the destination.
#pragma once

#include <string>

#include "nfs/file_reader.h"
#include "nfs/nfs_client.h"
#include "nfs/transfer_slots.h"

namespace uwarp::nfs {

struct CopyOptions {
  bool recursive = false;
  bool preserve_times = false;
};

class Getter {
 public:
  Getter(NfsClient& client, TransferSlots& slots, const CopyOptions& options)
      : client_(client), reader_(client, slots), options_(options) {}

  /// Where something goes: a name in an open directory, and how messages call it.
  struct LocalRange {
    int directory;
    std::string name;
    std::string shown;
  };

  /// `shown` is how messages call the remote file.
  void get(const Found& from, const LocalRange& to, const std::string& shown);

 private:
  void get_node(const Found& from, const LocalRange& to, const std::string& shown, unsigned depth);
  void get_file(const Found& from, const LocalRange& to, const std::string& shown);
  void get_symlink(const Found& from, const LocalRange& to);
  void get_directory(const Found& from, const LocalRange& to, const std::string& shown,
                     unsigned depth);

  NfsClient& client_;
  FileReader reader_;
  CopyOptions options_;
};

}  // namespace uwarp::nfs
