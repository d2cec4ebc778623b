// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The sysfs tree that libibverbs and librdmacm read instead of the kernel's: a private directory
// of real files with our devices and links to the host's real ones. Built aside and renamed into
// place; later whole device folders come and go by rename, because the time stamp of a device's
// folder is part of its identity in libibverbs.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/settings.h"
#include "net/net_device.h"
#include "observe/stat_page.h"
#include "sysfs/tree_files.h"

namespace uwarp {

/// Where a sysfs tree may be made, in the order in which folders are tried (docs/containers.md has
/// it). The preload, which has to name one before there is an engine, knows the first three.
std::vector<std::string> tree_folders();

/// Files of one device folder, path below class/infiniband/<name> -> content. Pure.
std::map<std::string, std::string> device_files(const NetDevice& device, bool roce,
                                                const AdapterProfile& profile = settings().adapter);
/// Those of class/infiniband_verbs/<uverbsN>.
std::map<std::string, std::string> uverbs_files(const NetDevice& device);

/// A file below class/infiniband/ that counts something.
struct CounterFile {
  std::string device;
  uint64_t (*value)(const DeviceTotals& totals) = nullptr;
};
/// By its path below the tree's root; without a value when it is none.
CounterFile counter_file(std::string_view path, const AdapterProfile& profile = settings().adapter);

class SysfsTree {
 public:
  /// `host_sysfs` is where real devices are looked for ("/sys").
  explicit SysfsTree(std::string host_sysfs) : host_sysfs_(std::move(host_sysfs)) {}
  /// Removes the tree if this process has built it.
  ~SysfsTree();

  /// The root of an existing tree that shows `devices`. `wanted` is tried first; when it is taken,
  /// not writable or empty, other places follow. Null and errno when no place can be written. The
  /// pointer stays valid for ever. Thread-safe.
  const char* root(const std::string& wanted, const NetDeviceTable& devices);
  /// The root as it is; null when there is none yet, or when something else has taken its place.
  const char* existing_root() const;

 private:
  bool build_locked(const std::string& wanted, const NetDeviceTable& devices) REQUIRES(lock_);
  bool build_at_locked(const std::string& path, const std::string& name,
                       const NetDeviceTable& devices) REQUIRES(lock_);
  /// The folder at root_, if that still is the one that was built; else closed, and errno.
  Folder open_own_locked() const REQUIRES(lock_);
  // `tree` is the root, open.
  bool fill_locked(const Folder& tree, const NetDeviceTable& devices) REQUIRES(lock_);
  bool update_locked(const Folder& tree, const NetDeviceTable& devices) REQUIRES(lock_);
  bool add_device_locked(const Folder& tree, const std::shared_ptr<const NetDevice>& device)
      REQUIRES(lock_);
  void remove_device_locked(const Folder& tree, const NetDevice& device) REQUIRES(lock_);
  bool lock_owner_file_locked(const Folder& tree) REQUIRES(lock_);

  const std::string host_sysfs_;
  mutable Mutex lock_;
  const char* root_ GUARDED_BY(lock_) = nullptr;
  long builder_ GUARDED_BY(lock_) = 0;   ///< pid that made the tree at root_
  int owner_fd_ GUARDED_BY(lock_) = -1;  ///< holds a lock on <root>/owner while this process lives
  /// The root stays open, so that no other folder can get its number; and which one it is, as
  /// another user may put something of the same name there once a cleaner has removed it.
  int root_fd_ GUARDED_BY(lock_) = -1;
  FileIdentity identity_ GUARDED_BY(lock_);
  /// By verbs name.
  std::map<std::string, std::shared_ptr<const NetDevice>> shown_ GUARDED_BY(lock_);
  /// Time stamps survive a rebuild of the tree.
  std::map<std::string, timespec> created_ GUARDED_BY(lock_);
};

/// Brings the process's tree up to date, if there is one (host/host_table.cc).
void update_sysfs_tree(const NetDeviceTable& devices);

/// Removes trees in `folder` whose process has died without doing so.
void remove_dead_trees(const std::string& folder);

}  // namespace uwarp
