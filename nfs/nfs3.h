// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// NFS version 3 (RFC 1813): its procedures, and how handles and attributes stand in XDR.
#pragma once

#include <cstdint>
#include <optional>

#include "nfs/nfs_status.h"
#include "nfs/nfs_types.h"
#include "nfs/xdr.h"

namespace uwarp::nfs {

constexpr uint32_t kNfs3Version = 3;
constexpr size_t kFileHandleBytesMax = 64;

enum class NfsProcedure : uint32_t {
  kNull = 0,
  kGetattr = 1,
  kSetattr = 2,
  kLookup = 3,
  kAccess = 4,
  kReadlink = 5,
  kRead = 6,
  kWrite = 7,
  kCreate = 8,
  kMkdir = 9,
  kSymlink = 10,
  kMknod = 11,
  kRemove = 12,
  kRmdir = 13,
  kRename = 14,
  kLink = 15,
  kReaddir = 16,
  kReaddirplus = 17,
  kFsstat = 18,
  kFsinfo = 19,
  kPathconf = 20,
  kCommit = 21,
};
constexpr uint32_t kNfsProcedureCount = 22;

void encode(XdrWriter& out, const Attributes& attributes);
void encode(XdrWriter& out, const NewAttributes& attributes);
void encode_handle(XdrWriter& out, const FileHandle& handle);

Attributes decode_attributes(XdrReader& in);
NewAttributes decode_new_attributes(XdrReader& in);
FileHandle decode_handle(XdrReader& in);
/// post_op_attr
std::optional<Attributes> decode_optional_attributes(XdrReader& in);
/// post_op_fh3
std::optional<FileHandle> decode_optional_handle(XdrReader& in);
/// wcc_data
void skip_weak_cache_data(XdrReader& in);

}  // namespace uwarp::nfs
