// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Building and updating of the tree, and removal of those of dead processes.
#include "sysfs/sysfs_tree.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cinttypes>
#include <cstdlib>
#include <cstring>

#include "base/log.h"
#include "base/mutex.h"
#include "base/random.h"
#include "base/settings.h"
#include "events/raw_fds.h"
#include "os/engine_fds.h"
#include "sysfs/private_folder.h"

namespace uwarp {

std::vector<std::string> tree_folders() {
  std::vector<std::string> folders;
  const auto add_named_by = [&](const char* variable) {
    const char* value = secure_getenv(variable);
    if (value != nullptr && value[0] == '/' && value[1] != '\0') folders.emplace_back(value);
  };
  add_named_by("XDG_RUNTIME_DIR");
  // Other users must not be able to take the tree's place there, and it is not as sticky as /tmp.
  if (!folders.empty() && !is_private_folder(folders.front().c_str())) folders.clear();
  folders.insert(folders.end(), {"/tmp", "/dev/shm"});
  add_named_by("TMPDIR");
  add_named_by("HOME");
  folders.insert(folders.end(), {"/run", "/var/tmp"});
  return folders;
}

namespace {

constexpr char kDevices[] = "class/infiniband/";
constexpr char kVerbs[] = "class/infiniband_verbs/";
constexpr char kNodes[] = "dev/infiniband/";
constexpr char kHostNodes[] = "/dev/infiniband/";
// A program that opens a node by its name gets it from the engine; this one is for listings.
constexpr char kNodeStandIn[] = "/dev/full";
constexpr char kBuilding[] = ".building";
constexpr char kGone[] = ".gone";
constexpr char kOwner[] = "owner";
constexpr char kTreePrefix[] = "uwarp-";
// libibverbs composes paths in 256 bytes; ours end in up to 80 below the root.
constexpr size_t kRootMax = 170;

std::string random_name() {
  const uint64_t random = random_word();
  char name[64];
  snprintf(name, sizeof name, "%s%ld-%016" PRIx64, kTreePrefix, syscall(SYS_getpid), random);
  return name;
}

/// The pid in a tree's name; 0 when the name is no tree's.
pid_t pid_of_tree(const std::string& name) {
  if (name.compare(0, sizeof kTreePrefix - 1, kTreePrefix) != 0) return 0;
  char* end = nullptr;
  const long pid = std::strtol(name.c_str() + sizeof kTreePrefix - 1, &end, 10);
  return *end == '-' && pid > 0 ? static_cast<pid_t>(pid) : 0;
}

/// Callers keep the pointer to a root; there are few of them. Without a lock, because one that is
/// held during fork() stays so in the child.
const char* keep_for_ever(std::string text) {
  struct Kept {
    std::string text;
    Kept* next;
  };
  static std::atomic<Kept*> first{nullptr};
  Kept* kept = new Kept{std::move(text), first.load()};
  while (!first.compare_exchange_weak(kept->next, kept)) {
  }
  return kept->text.c_str();
}

std::pair<std::string, std::string> split(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return {".", path};
  return {path.substr(0, slash), path.substr(slash + 1)};
}

bool same_identity(const NetDevice& a, const NetDevice& b) {
  return a.verbs_name == b.verbs_name && a.guid_be == b.guid_be && a.uverbs_name == b.uverbs_name &&
         a.ifindex == b.ifindex;
}

bool put_files(const Folder& folder, const std::string& below,
               const std::map<std::string, std::string>& files) {
  for (const auto& [path, content] : files) {
    const std::string full = below + '/' + path;
    if (!folder.make_folders(full.substr(0, full.rfind('/'))) || !folder.put_file(full, content)) {
      return false;
    }
  }
  return true;
}

/// Other users can fill /tmp with names; each process that starts looks at this many at most. Trees
/// that it does not come to are left for a later one.
constexpr size_t kNamesRead = 16384;

/// Of the process or the system: says nothing about the file that was to be opened.
bool is_shortage(int error) { return error == EMFILE || error == ENFILE || error == ENOMEM; }

bool is_roce() { return settings().persona == Persona::kRoce; }

// Only files below ports/ differ here; replacing those leaves the device folder's time alone.
bool update_device(const Folder& tree, const NetDevice& before, const NetDevice& now) {
  const std::string folder = kDevices + now.verbs_name;
  auto files = device_files(now, is_roce());
  for (const auto& [path, content] : device_files(before, is_roce())) {
    const auto found = files.find(path);
    if (found == files.end())
      tree.remove(folder + '/' + path);
    else if (found->second == content)
      files.erase(found);
  }
  return put_files(tree, folder, files);
}

/// The lock on its owner file tells a live tree; the pid alone would not in another pid namespace
/// or after reuse. Both must say "dead": an application that closes every fd drops the lock.
bool is_dead_tree(const Folder& folder, const std::string& name) {
  const pid_t pid = pid_of_tree(name);
  if (pid == 0 || kill(pid, 0) == 0 || errno != ESRCH) return false;
  if (!folder.may_be_own(name)) return false;
  const Folder tree = folder.open(name);
  if (!tree.is_open()) return false;
  const auto identity = tree.identity_if_private();
  if (!identity || identity->owner != geteuid()) return false;
  const int owner = static_cast<int>(
      syscall(SYS_openat, tree.fd(), kOwner, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (owner < 0) return errno == ENOENT;
  const bool unlocked = flock(owner, LOCK_EX | LOCK_NB) == 0;
  raw_close(owner);
  return unlocked;
}

/// What the host has in a folder, beside our own.
void link_names_of_host(const Folder& tree, const std::string& of_host, const std::string& folder) {
  const Folder host(of_host);
  const std::vector<std::string> real =
      host.is_open() ? host.names(".") : std::vector<std::string>();
  const std::vector<std::string> present = tree.names(folder);
  for (const std::string& name : real) {
    if (std::find(present.begin(), present.end(), name) == present.end())
      tree.link(of_host + name, folder + name);
  }
  // Links whose device has gone.
  for (const std::string& name : present) {
    if (!tree.has(folder + name)) tree.remove(folder + name);
  }
}

}  // namespace

void remove_dead_trees(const std::string& path) {
  const Folder folder(path);
  if (!folder.is_open()) return;
  for (const std::string& name : folder.names(".", kNamesRead)) {
    if (!is_dead_tree(folder, name)) continue;
    log_event("removing %s/%s, left by a process that has ended", path.c_str(), name.c_str());
    folder.remove(name);
  }
}

SysfsTree::~SysfsTree() {
  // A child that libc's fork() did not make has the parent's object.
  if (root_ == nullptr || builder_ != syscall(SYS_getpid)) return;
  try {
    if (open_own_locked().is_open()) {
      const auto [parent, name] = split(root_);
      // Away in one step first: no process must find half a tree.
      const Folder folder(parent);
      const std::string dying = random_name();
      folder.remove(folder.rename(name, dying) ? dying : name);
    }
    close_engine_fd(owner_fd_);
    close_engine_fd(root_fd_);
  } catch (const std::bad_alloc&) {  // it stays until the next process finds it
  }
}

Folder SysfsTree::open_own_locked() const {
  Folder found = Folder::open_itself(root_);
  if (!found.is_open() || found.identity_if_private() == identity_) return found;
  errno = ENOENT;
  return {};
}

const char* SysfsTree::existing_root() const {
  const Lock guard(lock_);
  return root_ != nullptr && identity_if_private(root_) == identity_ ? root_ : nullptr;
}

const char* SysfsTree::root(const std::string& wanted, const NetDeviceTable& devices) {
  const Lock guard(lock_);
  const Folder tree = root_ == nullptr ? Folder() : open_own_locked();
  if (root_ != nullptr && !tree.is_open() && is_shortage(errno)) {
    log_event("sysfs tree %s: no update: %s", root_, std::strerror(errno));
    return root_;
  }
  // A cleaner may have been there, and another user after it.
  if (tree.is_open() && tree.has("class/infiniband_verbs")) {
    if (!update_locked(tree, devices)) {
      log_event("sysfs tree %s: update failed: %s", root_, std::strerror(errno));
    }
    return root_;
  }
  if (root_ != nullptr) log_event("sysfs tree %s was removed: it is made again", root_);
  if (!build_locked(wanted, devices)) {
    const int error = errno;
    log_event("no folder for the sysfs tree (%s): make /tmp writable, or set TMPDIR",
              std::strerror(error));
    errno = error;
    return nullptr;
  }
  return root_;
}

bool SysfsTree::build_locked(const std::string& wanted, const NetDeviceTable& devices) {
  root_ = nullptr;
  if (!wanted.empty()) {
    const auto [folder, name] = split(wanted);
    // After a fork the wanted name is the parent's.
    const pid_t named = pid_of_tree(name);
    const bool ours = named == 0 || named == syscall(SYS_getpid);
    if (build_at_locked(folder, ours ? name : random_name(), devices)) return true;
  }
  for (const std::string& other : tree_folders()) {
    if (build_at_locked(other, random_name(), devices)) return true;
  }
  return false;
}

bool SysfsTree::build_at_locked(const std::string& path, const std::string& name,
                                const NetDeviceTable& devices) {
  if (path.size() + 1 + name.size() > kRootMax) {
    errno = ENAMETOOLONG;
    return false;
  }
  const Folder parent(path);
  if (!parent.is_open()) return false;
  const std::string building = random_name();
  if (!parent.make_folder(building)) return false;
  Folder tree = parent.open(building);
  const auto identity = tree.identity_if_private();
  if (identity && identity->owner == geteuid() && lock_owner_file_locked(tree) &&
      fill_locked(tree, devices) && parent.rename(building, name)) {
    close_engine_fd(root_fd_);
    root_fd_ = adopt_engine_fd(tree.take_fd());
    identity_ = *identity;
    root_ = keep_for_ever(path + '/' + name);
    builder_ = syscall(SYS_getpid);
    log_event("sysfs tree at %s", root_);
    remove_dead_trees(path);
    return true;
  }
  const int error = errno;
  parent.remove(building);
  errno = error;
  return false;
}

bool SysfsTree::lock_owner_file_locked(const Folder& tree) {
  close_engine_fd(owner_fd_);
  owner_fd_ = -1;
  if (!tree.put_file(kOwner, std::to_string(syscall(SYS_getpid)) + '\n')) return false;
  owner_fd_ =
      adopt_engine_fd(static_cast<int>(syscall(SYS_openat, tree.fd(), kOwner, O_RDWR | O_CLOEXEC)));
  if (owner_fd_ < 0) return false;
  // Some file systems have no locks; the pid then has to do.
  flock(owner_fd_, LOCK_EX | LOCK_NB);
  return true;
}

bool SysfsTree::fill_locked(const Folder& tree, const NetDeviceTable& devices) {
  shown_.clear();
  return tree.make_folders("class/infiniband") && tree.make_folders("class/infiniband_verbs") &&
         tree.make_folders("class/misc/rdma_cm") && tree.make_folders("dev/infiniband") &&
         tree.make_folder(kBuilding) && tree.make_folder(kGone) &&
         // The newest ABI of the kernel's uverbs, and the only one of its rdma_cm.
         tree.put_file("class/infiniband_verbs/abi_version", "6\n") &&
         tree.put_file("class/misc/rdma_cm/abi_version", "4\n") &&
         (settings().cm != CmOwner::kUwarp || tree.link(kNodeStandIn, "dev/infiniband/rdma_cm")) &&
         update_locked(tree, devices);
}

bool SysfsTree::update_locked(const Folder& tree, const NetDeviceTable& devices) {
  for (auto it = shown_.begin(); it != shown_.end();) {
    const auto now = devices.by_verbs_name(it->first);
    if (now != nullptr && same_identity(*it->second, *now)) {
      ++it;
      continue;
    }
    remove_device_locked(tree, *it->second);
    it = shown_.erase(it);
  }
  bool done = true;
  for (const auto& device : devices.devices()) {
    auto& shown = shown_[device->verbs_name];
    if (shown == device) continue;
    const bool added =
        shown == nullptr ? add_device_locked(tree, device) : update_device(tree, *shown, *device);
    if (added) {
      shown = device;
    } else {
      done = false;
    }
  }
  std::erase_if(shown_, [](const auto& entry) { return entry.second == nullptr; });
  link_names_of_host(tree, host_sysfs_ + '/' + kDevices, kDevices);
  link_names_of_host(tree, host_sysfs_ + '/' + kVerbs, kVerbs);
  link_names_of_host(tree, kHostNodes, kNodes);
  return done;
}

bool SysfsTree::add_device_locked(const Folder& tree,
                                  const std::shared_ptr<const NetDevice>& device) {
  const std::string building = std::string(kBuilding) + '/' + device->verbs_name;
  const std::string building_verbs = std::string(kBuilding) + '/' + device->uverbs_name;
  tree.remove(building);
  tree.remove(building_verbs);
  tree.remove(kNodes + device->uverbs_name);
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  // Kept when the tree is built again, so that the device stays the same one for libibverbs.
  const timespec created = created_.try_emplace(device->verbs_name, now).first->second;
  return put_files(tree, building, device_files(*device, is_roce())) &&
         put_files(tree, building_verbs, uverbs_files(*device)) &&
         tree.rename(building, kDevices + device->verbs_name) &&
         tree.set_time(kDevices + device->verbs_name, created) &&
         tree.rename(building_verbs, kVerbs + device->uverbs_name) &&
         tree.link(kNodeStandIn, kNodes + device->uverbs_name);
}

void SysfsTree::remove_device_locked(const Folder& tree, const NetDevice& device) {
  const std::string gone = std::string(kGone) + '/' + random_name();
  // What listings start from goes first.
  tree.remove(kNodes + device.uverbs_name);
  if (tree.rename(kVerbs + device.uverbs_name, gone)) tree.remove(gone);
  if (tree.rename(kDevices + device.verbs_name, gone)) tree.remove(gone);
  created_.erase(device.verbs_name);
}

}  // namespace uwarp
