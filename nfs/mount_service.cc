// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "nfs/mount_service.h"

namespace uwarp::nfs {

void MountService::call(uint32_t procedure, const Caller&, XdrReader& arguments, const ReplyRoom&,
                        ServiceReply& reply) {
  switch (static_cast<MountProcedure>(procedure)) {
    case MountProcedure::kNull:
      return;
    case MountProcedure::kMount:
      if (arguments.string(kPathBytesMax) == export_path_) {
        encode_mount_result(reply.message, root_);
      } else {
        reply.message.u32(static_cast<uint32_t>(NfsStatus::kNoent));
      }
      return;
    case MountProcedure::kDump:
      reply.message.boolean(false);
      return;
    case MountProcedure::kUnmount:
      arguments.string(kPathBytesMax);
      return;
    case MountProcedure::kUnmountAll:
      return;
    case MountProcedure::kExport:
      encode_exports(reply.message, {{export_path_, {}}});
      return;
  }
  throw NoSuchProcedure();
}

}  // namespace uwarp::nfs
