// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// MOUNT version 3 (RFC 1813, section 5): numbers and messages that client and server share.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "nfs/nfs3.h"
#include "nfs/xdr.h"

namespace uwarp::nfs {

constexpr uint32_t kMountProgram = 100005;
constexpr uint32_t kMountVersion = 3;
/// A client refuses longer lists: a hostile server could send one without end.
constexpr size_t kExportsMax = 4096;

enum class MountProcedure : uint32_t {
  kNull = 0,
  kMount = 1,
  kDump = 2,
  kUnmount = 3,
  kUnmountAll = 4,
  kExport = 5,
};

struct ExportEntry {
  std::string path;
  std::vector<std::string> groups;  // Hosts that may mount it; empty: all.
};

/// mountres3; throws NfsError with the status (the numbers are those of NFS).
FileHandle decode_mount_result(XdrReader& in);
void encode_mount_result(XdrWriter& out, const FileHandle& root);

std::vector<ExportEntry> decode_exports(XdrReader& in);
void encode_exports(XdrWriter& out, const std::vector<ExportEntry>& exports);

}  // namespace uwarp::nfs
