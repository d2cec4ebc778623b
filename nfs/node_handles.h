// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The file handles of our server: the number of a file, and that of the server's run, so that
// handles of an earlier run are known as stale.
#pragma once

#include <cstdint>

#include "nfs/memory_tree.h"

namespace uwarp::nfs {

class NodeHandles {
 public:
  NodeHandles();

  /// Of the run; a write verifier too.
  uint64_t instance() const { return instance_; }
  FileHandle handle_of(NodeId id) const;
  /// Throws NfsError.
  NodeId node_of(const FileHandle& handle) const;

 private:
  uint64_t instance_;
};

}  // namespace uwarp::nfs
