// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "nfs/mount3.h"

#include "nfs/rpc_message.h"

namespace uwarp::nfs {

FileHandle decode_mount_result(XdrReader& in) {
  auto status = static_cast<NfsStatus>(in.u32());
  if (status != NfsStatus::kOk) {
    throw NfsError(status);
  }
  return decode_handle(in);
}

void encode_mount_result(XdrWriter& out, const FileHandle& root) {
  out.u32(static_cast<uint32_t>(NfsStatus::kOk));
  encode_handle(out, root);
  out.u32(1);
  out.u32(kAuthSys);
}

std::vector<ExportEntry> decode_exports(XdrReader& in) {
  std::vector<ExportEntry> exports;
  while (in.boolean()) {
    if (exports.size() == kExportsMax) {
      throw XdrError("XDR: the list of exports is too long");
    }
    ExportEntry entry{in.string(kPathBytesMax), {}};
    while (in.boolean()) {
      entry.groups.push_back(in.string(kNameBytesMax));
    }
    exports.push_back(std::move(entry));
  }
  return exports;
}

void encode_exports(XdrWriter& out, const std::vector<ExportEntry>& exports) {
  for (const ExportEntry& entry : exports) {
    out.boolean(true);
    out.string(entry.path);
    for (const std::string& group : entry.groups) {
      out.boolean(true);
      out.string(group);
    }
    out.boolean(false);
  }
  out.boolean(false);
}

}  // namespace uwarp::nfs
