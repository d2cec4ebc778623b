// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "nfs/mount_client.h"

#include "nfs/url.h"

namespace uwarp::nfs {

namespace {

constexpr size_t kExportListBytes = 64 << 10;
constexpr size_t kMountResultBytes = 4 + 4 + kFileHandleBytesMax + 4 + 16 * 4;

uint32_t number(MountProcedure procedure) { return static_cast<uint32_t>(procedure); }

}  // namespace

std::string choose_export(const std::vector<ExportEntry>& exports, const std::string& path) {
  const std::string* best = nullptr;
  std::string known;
  for (const ExportEntry& entry : exports) {
    if (path_is_below(path, entry.path) && (best == nullptr || entry.path.size() > best->size())) {
      best = &entry.path;
    }
    known += (known.empty() ? "" : ", ") + entry.path;
  }
  if (best == nullptr) {
    throw RpcError(path + ": in no export of the server, which has " +
                   (known.empty() ? "none" : known));
  }
  return *best;
}

bool ChannelMountClient::available() {
  try {
    rpc_.call(
        kMountProgram, kMountVersion, number(MountProcedure::kNull), 0, [](XdrWriter&) {},
        [](XdrReader&) {});
    return true;
  } catch (const RpcRefused&) {
    return false;
  }
}

std::vector<ExportEntry> ChannelMountClient::exports() {
  std::vector<ExportEntry> exports;
  rpc_.call(
      kMountProgram, kMountVersion, number(MountProcedure::kExport), kExportListBytes,
      [](XdrWriter&) {}, [&](XdrReader& in) { exports = decode_exports(in); });
  return exports;
}

FileHandle ChannelMountClient::mount(const std::string& path) {
  FileHandle root;
  rpc_.call(
      kMountProgram, kMountVersion, number(MountProcedure::kMount), kMountResultBytes,
      [&](XdrWriter& out) { out.string(path); },
      [&](XdrReader& in) { root = decode_mount_result(in); });
  return root;
}

}  // namespace uwarp::nfs
