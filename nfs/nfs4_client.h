// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// NFS version 4.0 (RFC 7530) as far as it takes to look at files, read and write them. What is open
// on the server is kept by a lease. There are no callbacks, so servers grant no delegations.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "nfs/compound.h"
#include "nfs/nfs4.h"
#include "nfs/nfs_client.h"
#include "nfs/patience.h"
#include "nfs/rpc_caller.h"

namespace uwarp::nfs {

class Nfs4Client : public NfsClient {
 public:
  using Clock = Patience::Clock;

  Nfs4Client(RpcChannel& channel, Caller caller);
  Nfs4Client(RpcChannel& channel, Caller caller, Patience::Time time);

  unsigned version() const override { return kNfs4Version; }
  RpcChannel& channel() override { return rpc_.channel(); }

  void null() override;
  std::optional<FileHandle> root() override;
  Attributes getattr(const FileHandle& handle) override;
  void setattr(const FileHandle& handle, const NewAttributes& wanted) override;
  Found lookup(const FileHandle& directory, const std::string& name) override;
  std::string read_link(const FileHandle& handle) override;
  FileHandle make_directory(const FileHandle& directory, const std::string& name,
                            const NewAttributes& wanted) override;
  void make_symlink(const FileHandle& directory, const std::string& name,
                    const std::string& target) override;
  void remove(const FileHandle& directory, const std::string& name) override;
  void remove_directory(const FileHandle& directory, const std::string& name) override;
  void rename(const FileHandle& from, const std::string& from_name, const FileHandle& to,
              const std::string& to_name) override;
  FilesystemInfo filesystem_info(const FileHandle& handle) override;

  OpenFile open(const Found& file) override;
  OpenFile create(const FileHandle& directory, const std::string& name, CreateHow how,
                  const NewAttributes& wanted) override;
  void close(const OpenFile& file) override;

  void prepare_read(RpcCall& call, const OpenFile& file, uint64_t offset, Bytes into,
                    RpcBuffer* buffer) override;
  ReadResult finish_read(const RpcCall& call) override;
  void prepare_write(RpcCall& call, const OpenFile& file, uint64_t offset, ConstBytes data,
                     Stability stability, RpcBuffer* buffer) override;
  WriteResult finish_write(const RpcCall& call) override;
  uint64_t commit(const OpenFile& file) override;

 private:
  using Build = std::function<void(CompoundRequest&)>;
  using Decode = std::function<void(CompoundReply&)>;
  using EncodeHow = std::function<void(XdrWriter&)>;

  void next_page(const FileHandle& directory, ListPage& page) override;

  XdrWriter begin(const CompoundRequest& request) const;
  /// One COMPOUND. When the server asks for patience it is made again, so `build` says what
  /// there is to say then.
  void compound(size_t result_bytes, const Build& build, const Decode& decode);
  void compound_once(size_t result_bytes, const Build& build, const Decode& decode);
  /// The same, for operations that do not renew the lease themselves.
  void leased_compound(size_t result_bytes, const Build& build, const Decode& decode);
  /// Results of a READ or WRITE, which renew the lease too.
  template <typename Take>
  auto finish_transfer(const RpcCall& call, Nfs4Operation operation, Take take);

  void become_known();
  void renew_if_due();
  OpenFile open_at(const Place& place, uint32_t access, const EncodeHow& how);
  OpenFile open_once(const Place& place, uint32_t access, const EncodeHow& how);
  void confirm(OpenFile& file);
  XdrReader& sequenced_results_of(CompoundReply& reply, Nfs4Operation operation);

  RpcCaller rpc_;
  Patience::Time time_;
  Verifier verifier_;  // of this client's life
  std::string name_;   // of this client; no other has it
  std::optional<uint64_t> client_id_;
  uint32_t sequence_ = 0;  // of the one owner that all our OPENs have
  unsigned open_files_ = 0;
  Clock::duration lease_{};
  Clock::time_point renewed_;
  bool silent_ = false;  // the server did not answer
};

}  // namespace uwarp::nfs
