// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Folder: openat and friends through syscall().
#include "sysfs/tree_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <iterator>
#include <memory>

#include "events/raw_fds.h"
#include "sysfs/sysfs_tree.h"

namespace uwarp {

namespace {

constexpr int kFolderFlags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;

int open_at(int folder, const std::string& path, int flags) {
  return static_cast<int>(syscall(SYS_openat, folder, path.c_str(), flags, 0644));
}

bool write_all(int fd, std::string_view content) {
  while (!content.empty()) {
    const ssize_t written = raw_write(fd, content.data(), content.size());
    if (written < 0 && errno != EINTR) return false;
    if (written > 0) content.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

std::optional<FileIdentity> identity_at(int folder, const char* path, int flags) {
  struct stat status;
  if (syscall(SYS_newfstatat, folder, path, &status, flags) != 0) return std::nullopt;
  if (!S_ISDIR(status.st_mode) || (status.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    errno = EACCES;
    return std::nullopt;
  }
  return FileIdentity{status.st_dev, status.st_ino, status.st_uid};
}

}  // namespace

std::optional<FileIdentity> identity_if_private(const char* path) {
  return identity_at(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW);
}

Folder::Folder(const std::string& path) : fd_(open_at(AT_FDCWD, path, kFolderFlags)) {}

Folder Folder::open_itself(const std::string& path) {
  return Folder(Opened{open_at(AT_FDCWD, path, kFolderFlags | O_NOFOLLOW)});
}

Folder Folder::open(const std::string& path) const {
  return Folder(Opened{open_at(fd_, path, kFolderFlags | O_NOFOLLOW)});
}

std::optional<FileIdentity> Folder::identity_if_private() const {
  return identity_at(fd_, "", AT_EMPTY_PATH);
}

Folder::~Folder() {
  if (fd_ >= 0) raw_close(fd_);
}

Folder& Folder::operator=(Folder&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

bool Folder::has(const std::string& path) const {
  return syscall(SYS_faccessat, fd_, path.c_str(), F_OK) == 0;
}

bool Folder::make_folder(const std::string& path) const {
  return syscall(SYS_mkdirat, fd_, path.c_str(), 0755) == 0;
}

bool Folder::make_folders(const std::string& path) const {
  for (size_t slash = path.find('/'); slash != std::string::npos;
       slash = path.find('/', slash + 1)) {
    if (!make_folder(path.substr(0, slash)) && errno != EEXIST) return false;
  }
  return make_folder(path) || errno == EEXIST;
}

bool Folder::put_file(const std::string& path, std::string_view content) const {
  const std::string fresh = path + ".new";
  constexpr int kFlags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  int fd = open_at(fd_, fresh, kFlags);
  if (fd < 0 && errno == EEXIST) {
    // An earlier attempt did not get to its end.
    syscall(SYS_unlinkat, fd_, fresh.c_str(), 0);
    fd = open_at(fd_, fresh, kFlags);
  }
  if (fd < 0) return false;
  const bool written = write_all(fd, content);
  raw_close(fd);
  return written && rename(fresh, path);
}

bool Folder::link(const std::string& target, const std::string& path) const {
  return syscall(SYS_symlinkat, target.c_str(), fd_, path.c_str()) == 0;
}

bool Folder::rename(const std::string& from, const std::string& to) const {
  return syscall(SYS_renameat2, fd_, from.c_str(), fd_, to.c_str(), 0) == 0;
}

bool Folder::set_time(const std::string& path, const timespec& time) const {
  const timespec both[2] = {time, time};
  return syscall(SYS_utimensat, fd_, path.c_str(), both, AT_SYMLINK_NOFOLLOW) == 0;
}

std::vector<std::string> Folder::names(const std::string& path, size_t most) const {
  std::vector<std::string> result;
  const int fd = open_at(fd_, path, kFolderFlags | O_NOFOLLOW);
  if (fd < 0) return result;
  constexpr auto kClose = [](DIR* open) { closedir(open); };
  const std::unique_ptr<DIR, decltype(kClose)> listing(fdopendir(fd));
  if (listing == nullptr) {
    raw_close(fd);
    return result;
  }
  while (const dirent* entry = readdir(listing.get())) {
    const std::string name = entry->d_name;
    if (name == "." || name == "..") continue;
    if (result.size() == most) break;
    result.push_back(name);
  }
  return result;
}

bool Folder::may_be_own(const std::string& name) const {
  constexpr int kFlags = AT_NO_AUTOMOUNT | AT_STATX_DONT_SYNC;
  struct statx here {
  }, there{};
  if (syscall(SYS_statx, fd_, "", AT_EMPTY_PATH | kFlags, STATX_TYPE, &here) != 0 ||
      syscall(SYS_statx, fd_, name.c_str(), AT_SYMLINK_NOFOLLOW | kFlags, STATX_UID, &there) != 0)
    return errno == ENOSYS || errno == EPERM;  // old sandboxes do not know the call
  return there.stx_uid == static_cast<uid_t>(syscall(SYS_geteuid)) &&
         here.stx_dev_major == there.stx_dev_major && here.stx_dev_minor == there.stx_dev_minor;
}

void Folder::remove(const std::string& path) const {
  if (syscall(SYS_unlinkat, fd_, path.c_str(), 0) == 0 || (errno != EISDIR && errno != EPERM)) {
    return;
  }
  // By descriptor: between two steps another user may exchange a folder of theirs for a link.
  if (const Folder below = open(path); below.is_open()) {
    for (const std::string& name : below.names(".")) below.remove(name);
  }
  syscall(SYS_unlinkat, fd_, path.c_str(), AT_REMOVEDIR);
}

// What the sysfs files of one device say.

namespace {

std::string guid_text(uint64_t guid) {
  char text[32];
  snprintf(text, sizeof text, "%04x:%04x:%04x:%04x\n", static_cast<unsigned>(guid >> 48 & 0xffff),
           static_cast<unsigned>(guid >> 32 & 0xffff), static_cast<unsigned>(guid >> 16 & 0xffff),
           static_cast<unsigned>(guid & 0xffff));
  return text;
}

std::string hex_text(uint32_t number) {
  char text[16];
  snprintf(text, sizeof text, "%x\n", number);
  return text;
}

std::string gid_text(const IpAddress& gid) {
  std::string text;
  for (size_t i = 0; i < IpAddress::kBytes; i += 2) {
    char group[8];
    snprintf(group, sizeof group, "%s%02x%02x", i == 0 ? "" : ":", gid.bytes()[i],
             gid.bytes()[i + 1]);
    text += group;
  }
  return text + '\n';
}

using Totals = DeviceTotals;

uint64_t sent(const Totals& t, MessageKind kind) {
  return t.transmit.messages[static_cast<size_t>(kind)].get();
}
uint64_t received(const Totals& t, MessageKind kind) {
  return t.receive.messages[static_cast<size_t>(kind)].get();
}
uint64_t nothing(const Totals&) { return 0; }
uint64_t sent_fpdus(const Totals& t) { return t.transmit.fpdus.get(); }
uint64_t received_fpdus(const Totals& t) { return t.receive.fpdus.get(); }

struct CounterRow {
  std::string_view folder;
  const char* name;
  uint64_t (*value)(const Totals& totals);
};

constexpr std::string_view kPort = "ports/1/counters/";
constexpr std::string_view kHardware = "ports/1/hw_counters/";

// docs/observability.md says what each one means here. Data are counted in words of four bytes
// (InfiniBand specification, PortCounters); names of RDMA operations are those of irdma.
constexpr CounterRow kCounters[] = {
    {kPort, "port_xmit_data", [](const Totals& t) { return t.transmit.bytes.get() / 4; }},
    {kPort, "port_rcv_data", [](const Totals& t) { return t.receive.bytes.get() / 4; }},
    {kPort, "port_xmit_packets", sent_fpdus},
    {kPort, "port_rcv_packets", received_fpdus},
    {kPort, "unicast_xmit_packets", sent_fpdus},
    {kPort, "unicast_rcv_packets", received_fpdus},
    {kPort, "multicast_xmit_packets", nothing},
    {kPort, "multicast_rcv_packets", nothing},
    {kPort, "port_xmit_discards", nothing},
    {kPort, "port_rcv_errors", [](const Totals& t) { return t.receive.crc_errors.get(); }},
    {kPort, "port_xmit_wait", [](const Totals& t) { return t.transmit.waits.get(); }},
    {kPort, "symbol_error", nothing},
    {kPort, "link_downed", [](const Totals& t) { return t.link_downs; }},
    {kPort, "link_error_recovery", nothing},

    {kHardware, "OutRdmaSends", [](const Totals& t) { return sent(t, MessageKind::kSend); }},
    {kHardware, "OutRdmaWrites", [](const Totals& t) { return sent(t, MessageKind::kWrite); }},
    {kHardware, "OutRdmaReads", [](const Totals& t) { return sent(t, MessageKind::kReadRequest); }},
    {kHardware, "OutRdmaAtomics",
     [](const Totals& t) { return sent(t, MessageKind::kAtomicRequest); }},
    {kHardware, "OutRdmaImmediates",
     [](const Totals& t) { return sent(t, MessageKind::kImmediate); }},
    {kHardware, "InRdmaSends", [](const Totals& t) { return received(t, MessageKind::kSend); }},
    {kHardware, "InRdmaWrites", [](const Totals& t) { return received(t, MessageKind::kWrite); }},
    {kHardware, "InRdmaReads",
     [](const Totals& t) { return received(t, MessageKind::kReadRequest); }},
    {kHardware, "InRdmaAtomics",
     [](const Totals& t) { return received(t, MessageKind::kAtomicRequest); }},
    {kHardware, "InRdmaImmediates",
     [](const Totals& t) { return received(t, MessageKind::kImmediate); }},
    {kHardware, "direct_requests", [](const Totals& t) { return t.transmit.direct.get(); }},
    {kHardware, "direct_unreachable",
     [](const Totals& t) { return t.stream.direct_unreachable.get(); }},
    {kHardware, "direct_refused", [](const Totals& t) { return t.stream.direct_refused.get(); }},
    {kHardware, "connections", [](const Totals& t) { return t.stream.connections.get(); }},
    {kHardware, "peer_closes", [](const Totals& t) { return t.stream.fins.get(); }},
    {kHardware, "peer_resets", [](const Totals& t) { return t.stream.resets.get(); }},
    {kHardware, "peer_timeouts", [](const Totals& t) { return t.stream.timeouts.get(); }},
    {kHardware, "failed_qps", [](const Totals& t) { return t.stream.failures.get(); }},
    {kHardware, "terminates_sent",
     [](const Totals& t) { return sent(t, MessageKind::kTerminate); }},
    {kHardware, "terminates_received",
     [](const Totals& t) { return received(t, MessageKind::kTerminate); }},
    {kHardware, "crc_errors", [](const Totals& t) { return t.receive.crc_errors.get(); }},
    {kHardware, "held_receives", [](const Totals& t) { return t.receive.held.get(); }},
    {kHardware, "rnr_timeouts", [](const Totals& t) { return t.receive.rnr_timeouts.get(); }},
    {kHardware, "dropped_receives", [](const Totals& t) { return t.receive.dropped.get(); }},
    {kHardware, "dropped_sends", [](const Totals& t) { return t.transmit.dropped.get(); }},
    {kHardware, "refused_datagrams", [](const Totals& t) { return t.receive.refused.get(); }},
    {kHardware, "flushed_sends", [](const Totals& t) { return t.transmit.flushed.get(); }},
    {kHardware, "flushed_receives", [](const Totals& t) { return t.receive.flushed.get(); }},
};

constexpr bool names_are_those_of_profiles() {
  return std::equal(std::begin(kCounters), std::end(kCounters), std::begin(kCounterNames),
                    std::end(kCounterNames),
                    [](const CounterRow& row, std::string_view name) { return row.name == name; });
}
static_assert(names_are_those_of_profiles());

uint64_t (*value_of(std::string_view name))(const Totals&) {
  for (const CounterRow& row : kCounters)
    if (row.name == name) return row.value;
  return nothing;
}

/// A profile that names counters of the hardware has these and no others.
bool is_shown(const CounterRow& row, const AdapterProfile& profile) {
  return row.folder != kHardware || profile.hw_counters.empty();
}

void put_counters(const AdapterProfile& profile, std::map<std::string, std::string>& files) {
  for (const CounterRow& row : kCounters)
    if (is_shown(row, profile)) files[std::string(row.folder) + row.name] = "0\n";
  for (const auto& [name, source] : profile.hw_counters)
    files[std::string(kHardware) + name] = "0\n";
}

}  // namespace

std::map<std::string, std::string> device_files(const NetDevice& device, bool roce,
                                                const AdapterProfile& profile) {
  std::map<std::string, std::string> files = {
      // RNIC or channel adapter; libibverbs reads the number.
      {"node_type", roce ? "1: CA\n" : "4: RNIC\n"},
      {"node_guid", guid_text(device.guid())},
      {"sys_image_guid", guid_text(device.guid())},
      {"node_desc", device.verbs_name + '\n'},
      {"fw_ver", profile.firmware() + '\n'},
      {"hw_rev", hex_text(profile.hw_ver)},
      // The plugin takes only devices with this file, so that no foreign one of our name is its.
      {"uwarp", device.name + '\n'},
      // As adapters have it: which netdev belongs to the device.
      {"device/net/" + device.name + "/ifindex", std::to_string(device.ifindex) + '\n'},
      {"device/numa_node", "-1\n"},  // near to no processor
      {"ports/1/link_layer", "Ethernet\n"},
      {"ports/1/state", device.running ? "4: ACTIVE\n" : "1: DOWN\n"},
      {"ports/1/phys_state", device.running ? "5: LinkUp\n" : "3: Disabled\n"},
      {"ports/1/rate", profile.rate() + '\n'},
      {"ports/1/lid", "0x0\n"},
      {"ports/1/sm_lid", "0x0\n"},
      {"ports/1/sm_sl", "0\n"},
      {"ports/1/lid_mask_count", "0\n"},
      {"ports/1/cap_mask", "0x00010000\n"},  // CM supported
      {"ports/1/pkeys/0", "0xffff\n"},
  };
  for (size_t i = 0; i < kGidTableLength; ++i) {
    const std::string index = std::to_string(i);
    const IpAddress gid = i < device.gids.size() ? device.gids[i] : IpAddress();
    files["ports/1/gids/" + index] = gid_text(gid);
    files["ports/1/gid_attrs/types/" + index] = "RoCE v2\n";
    if (i < device.gids.size()) files["ports/1/gid_attrs/ndevs/" + index] = device.name + '\n';
  }
  // Adapters that have no such name have no such file.
  if (!profile.hca_type.empty()) files["hca_type"] = profile.hca_type + '\n';
  if (!profile.board_id.empty()) files["board_id"] = profile.board_id + '\n';
  put_counters(profile, files);
  return files;
}

std::map<std::string, std::string> uverbs_files(const NetDevice& device) {
  return {
      {"ibdev", device.verbs_name + '\n'},
      {"dev", "1:7\n"},  // of /dev/full, which stands in for the node
      {"abi_version", "1\n"},
  };
}

CounterFile counter_file(std::string_view path, const AdapterProfile& profile) {
  constexpr std::string_view prefix = "class/infiniband/";
  if (!path.starts_with(prefix)) return {};
  path.remove_prefix(prefix.size());
  const size_t slash = path.find('/');
  if (slash == std::string_view::npos) return {};
  const std::string device(path.substr(0, slash));
  const std::string_view below = path.substr(slash + 1);
  for (const CounterRow& row : kCounters) {
    if (is_shown(row, profile) && below.starts_with(row.folder) &&
        below.substr(row.folder.size()) == row.name)
      return {device, row.value};
  }
  if (!below.starts_with(kHardware)) return {};
  for (const auto& [name, source] : profile.hw_counters)
    if (below.substr(kHardware.size()) == name) return {device, value_of(source)};
  return {};
}

}  // namespace uwarp
