// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// Which paths are ours: device nodes below /dev/infiniband, the tree below SYSFS_PATH, and
// /sys/class/infiniband* for programs that read it directly.
#pragma once

#include <climits>
#include <cstddef>

namespace uwarp_preload {

enum class PathKind {
  kForeign,  ///< not ours: use the path as it is
  kFile,     ///< a file of our tree: use Resolved::path
  kUverbs,   ///< /dev/infiniband/uverbsN of one of our devices
  kRdmaCm,   ///< /dev/infiniband/rdma_cm
};

constexpr bool is_node(PathKind kind) {
  return kind == PathKind::kUverbs || kind == PathKind::kRdmaCm;
}

struct Resolved {
  PathKind kind = PathKind::kForeign;
  int uverbs_number = 0;
  size_t root_length = 0;  ///< kFile: how much of `path` is the tree's root
  char path[PATH_MAX];     ///< kFile
  /// kFile: the path below the root, without a leading slash.
  const char* below_root() const { return path + root_length + (path[root_length] == '/'); }
};

/// Cheap and async-signal-safe: false means that the path is certainly not ours.
bool may_be_ours(const char* path);

/// The folder whose opening starts a listing of devices; `below_root` as in Resolved.
bool is_listing(const char* below_root);

/// The full answer; loads the engine when the path is of RDMA. Keeps errno.
void resolve(const char* path, Resolved& result);

}  // namespace uwarp_preload
