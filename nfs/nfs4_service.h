// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The NFS version 4.0 program of our server (RFC 7530) on a tree in memory: what it takes to list,
// read and write. No locks, share reservations, delegations, or named attributes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "nfs/memory_tree.h"
#include "nfs/nfs4.h"
#include "nfs/node_handles.h"
#include "nfs/open_files.h"
#include "nfs/pseudo_root.h"
#include "nfs/rpc_service.h"

namespace uwarp::nfs {

class Nfs4Service : public RpcService {
 public:
  /// Largest READ and WRITE.
  static constexpr uint32_t kTransferBytesMax = 1 << 20;

  Nfs4Service(std::shared_ptr<MemoryTree> tree, const NodeHandles& handles,
              const std::string& export_path, OpenFiles::Now now = &OpenFiles::Clock::now);

  uint32_t program() const override { return kNfsProgram; }
  uint32_t version() const override { return kNfs4Version; }
  void call(uint32_t procedure, const Caller& caller, XdrReader& arguments, const ReplyRoom& room,
            ServiceReply& reply) override;
  bool is_idempotent(uint32_t procedure) const override;

 private:
  /// A COMPOUND on its way through its operations.
  struct Compound {
    const Caller& caller;
    XdrReader& in;
    const ReplyRoom& room;
    ServiceReply& reply;
    XdrWriter out{};  // results of the operations
    std::optional<NodeId> current{};
    std::optional<NodeId> saved{};
    uint32_t to_come = 0;  // operations behind this one

    /// Of the current handle; throws NOFILEHANDLE.
    NodeId node() const;
    /// Bytes that are left for results.
    size_t room_left() const;
  };
  using Serve = void (Nfs4Service::*)(Compound&);
  struct Operation;
  static const Operation kOperations[];

  void compound(Compound& compound);
  /// Appends its result; the status.
  NfsStatus execute(Compound& compound, uint32_t number);

  void access(Compound&);
  void close(Compound&);
  void commit(Compound&);
  void create(Compound&);
  void getattr(Compound&);
  void getfh(Compound&);
  void link(Compound&);
  void lookup(Compound&);
  void lookupp(Compound&);
  void open(Compound&);
  void open_confirm(Compound&);
  void putfh(Compound&);
  void putrootfh(Compound&);
  void read(Compound&);
  void readdir(Compound&);
  void readlink(Compound&);
  void remove(Compound&);
  void rename(Compound&);
  void renew(Compound&);
  void restorefh(Compound&);
  void savefh(Compound&);
  void secinfo(Compound&);
  void setattr(Compound&);
  void setclientid(Compound&);
  void setclientid_confirm(Compound&);
  void write(Compound&);

  /// Throw ROFS at a directory above the export, which the tree does not know.
  NodeId tree_node(const Compound& compound) const;
  NodeId saved_tree_node(const Compound& compound) const;
  NodeId in_tree(NodeId id) const;
  NodeId lookup_in(const Caller& caller, NodeId directory, const std::string& name) const;
  NodeId parent_of(const Caller& caller, NodeId id) const;
  Nfs4Attributes attributes_of(NodeId id) const;
  uint64_t change_of(NodeId id) const;
  /// change_info4 of a directory that had this attribute before.
  void encode_change(Compound& compound, NodeId directory, uint64_t before) const;
  void check_may_open(const Caller& caller, NodeId id, uint32_t access) const;

  std::shared_ptr<MemoryTree> tree_;
  NodeHandles handles_;
  PseudoRoot pseudo_;
  OpenFiles open_files_;
};

}  // namespace uwarp::nfs
