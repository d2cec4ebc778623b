// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The NFS version 3 program of our server: its procedures (RFC 1813, section 3.3) on a tree in
// memory.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "nfs/memory_tree.h"
#include "nfs/nfs3.h"
#include "nfs/node_handles.h"
#include "nfs/rpc_service.h"

namespace uwarp::nfs {

class Nfs3Service : public RpcService {
 public:
  /// Largest READ and WRITE.
  static constexpr uint32_t kTransferBytesMax = 1 << 20;

  Nfs3Service(std::shared_ptr<MemoryTree> tree, const NodeHandles& handles)
      : tree_(std::move(tree)), handles_(handles) {}

  uint32_t program() const override { return kNfsProgram; }
  uint32_t version() const override { return kNfs3Version; }
  void call(uint32_t procedure, const Caller& caller, XdrReader& arguments, const ReplyRoom& room,
            ServiceReply& reply) override;
  bool is_idempotent(uint32_t procedure) const override;

 private:
  struct Request {
    const Caller& caller;
    XdrReader& in;
    const ReplyRoom& room;
    ServiceReply& reply;
    XdrWriter& out;
  };
  struct Procedure {
    void (Nfs3Service::*serve)(Request&);
    /// How many absent attributes follow the status when the procedure fails.
    unsigned failure_words;
    bool idempotent;
  };
  static const std::array<Procedure, kNfsProcedureCount> kProcedures;

  void null(Request&) {}
  void getattr(Request&);
  void setattr(Request&);
  void lookup(Request&);
  void access(Request&);
  void readlink(Request&);
  void read(Request&);
  void write(Request&);
  void create(Request&);
  void mkdir(Request&);
  void symlink(Request&);
  void mknod(Request&);
  void remove(Request&);
  void rmdir(Request&);
  void rename(Request&);
  void link(Request&);
  void readdir(Request&);
  void readdirplus(Request&);
  void fsstat(Request&);
  void fsinfo(Request&);
  void pathconf(Request&);
  void commit(Request&);

  NodeId decode_node(XdrReader& in) const { return handles_.node_of(decode_handle(in)); }
  void begin_success(Request& request) const;
  void encode_attributes(XdrWriter& out, NodeId id) const;
  void encode_weak_cache_data(XdrWriter& out, NodeId id) const;
  void encode_made(Request& request, NodeId made, NodeId directory) const;
  void list(Request& request, bool plus);

  std::shared_ptr<MemoryTree> tree_;
  NodeHandles handles_;
};

}  // namespace uwarp::nfs
