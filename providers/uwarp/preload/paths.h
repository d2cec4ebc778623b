// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// Which paths are ours: /dev/infiniband and the device nodes in it, the tree below SYSFS_PATH, and
// its folders below /sys/class for programs that read them directly (docs/files.md).
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

/// Answers for a device node where libc needs a file.
inline constexpr char kStandIn[] = "/dev/full";

struct Resolved {
  PathKind kind = PathKind::kForeign;
  int uverbs_number = 0;
  size_t root_length = 0;  ///< kFile: how much of `path` is the tree's root
  char path[PATH_MAX];     ///< kFile
  /// kFile: the path below the root, without a leading slash.
  const char* below_root() const { return path + root_length + (path[root_length] == '/'); }
};

/// Cheap and async-signal-safe: false means that the path is certainly not ours. A relative path
/// may be ours once there is an engine, or if it names "infiniband".
bool may_be_ours(const char* path);

/// A folder whose opening starts a listing of devices; `below_root` as in Resolved.
bool is_listing(const char* below_root);
/// The same of an open folder in any process's tree. Keeps errno.
bool is_open_listing(int fd);

/// The full answer; loads the engine when the path is of RDMA. A relative path begins at the open
/// `folder`, or at the current one for AT_FDCWD. Keeps errno.
void resolve(int folder, const char* path, Resolved& result);

/// For by_path(), out of line: a Resolved takes a page of the stack.
template <typename Ours, typename Pass>
[[gnu::noinline]] auto resolve_and_call(int folder, const char* path, Ours ours, Pass pass) {
  Resolved target;
  resolve(folder, path, target);
  return target.kind == PathKind::kForeign ? pass() : ours(target);
}

/// The call `pass` of a path that is not ours, else `ours` with where it leads.
template <typename Ours, typename Pass>
auto by_path(int folder, const char* path, Ours ours, Pass pass) {
  return may_be_ours(path) ? resolve_and_call(folder, path, ours, pass) : pass();
}

}  // namespace uwarp_preload
