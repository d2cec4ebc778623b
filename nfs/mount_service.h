// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The MOUNT program of our server, which has one export.
#pragma once

#include <string>

#include "nfs/mount3.h"
#include "nfs/rpc_service.h"

namespace uwarp::nfs {

class MountService : public RpcService {
 public:
  MountService(std::string export_path, FileHandle root)
      : export_path_(std::move(export_path)), root_(std::move(root)) {}

  uint32_t program() const override { return kMountProgram; }
  uint32_t version() const override { return kMountVersion; }
  void call(uint32_t procedure, const Caller& caller, XdrReader& arguments, const ReplyRoom& room,
            ServiceReply& reply) override;
  bool is_idempotent(uint32_t) const override { return true; }

 private:
  std::string export_path_;
  FileHandle root_;
};

}  // namespace uwarp::nfs
