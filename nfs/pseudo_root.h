// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The directories that lead to the export (RFC 7530, section 7.3): in NFS version 4 there is no
// MOUNT, and names begin at the root of the server. Each has one entry.
#pragma once

#include <string>
#include <vector>

#include "nfs/memory_tree.h"

namespace uwarp::nfs {

class PseudoRoot {
 public:
  explicit PseudoRoot(const std::string& export_path);

  NodeId root() const { return at(0); }
  /// Whether the node is one of these directories, and not of the tree.
  bool has(NodeId id) const { return id >= kFirst; }
  /// These throw NfsError.
  Attributes attributes(NodeId id) const;
  NodeId lookup(NodeId id, const std::string& name) const;
  NodeId parent(NodeId id) const;
  /// Of the tree's root.
  NodeId parent_of_export() const { return at(names_.empty() ? 0 : names_.size() - 1); }
  MemoryTree::ListEntry entry(NodeId id) const;

 private:
  static constexpr NodeId kFirst = NodeId{1} << 62;

  NodeId at(size_t depth) const {
    return depth == names_.size() ? MemoryTree::kRoot : kFirst + depth;
  }
  size_t depth_of(NodeId id) const;

  std::vector<std::string> names_;
};

}  // namespace uwarp::nfs
