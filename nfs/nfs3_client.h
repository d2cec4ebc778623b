// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The procedures of NFS version 3 (RFC 1813, section 3.3) as a client needs them. Nothing is kept
// on the server about open files.
#pragma once

#include <functional>
#include <string>

#include "nfs/nfs3.h"
#include "nfs/nfs_client.h"
#include "nfs/rpc_caller.h"

namespace uwarp::nfs {

class Nfs3Client : public NfsClient {
 public:
  Nfs3Client(RpcChannel& channel, Caller caller) : rpc_(channel, std::move(caller)) {}

  unsigned version() const override { return kNfs3Version; }
  RpcChannel& channel() override { return rpc_.channel(); }

  void null() override;
  std::optional<FileHandle> root() override { return std::nullopt; }
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

  OpenFile open(const Found& file) override { return {file.handle, {}}; }
  OpenFile create(const FileHandle& directory, const std::string& name, CreateHow how,
                  const NewAttributes& wanted) override;
  void close(const OpenFile&) override {}

  void prepare_read(RpcCall& call, const OpenFile& file, uint64_t offset, Bytes into,
                    RpcBuffer* buffer) override;
  ReadResult finish_read(const RpcCall& call) override;
  void prepare_write(RpcCall& call, const OpenFile& file, uint64_t offset, ConstBytes data,
                     Stability stability, RpcBuffer* buffer) override;
  WriteResult finish_write(const RpcCall& call) override;
  uint64_t commit(const OpenFile& file) override;

 private:
  void next_page(const FileHandle& directory, ListPage& page) override;
  void read_page(const FileHandle& directory, ListPage& page);

  XdrWriter begin(NfsProcedure procedure) const;
  void call(NfsProcedure procedure, size_t reply_max, const std::function<void(XdrWriter&)>& encode,
            const std::function<void(XdrReader&)>& decode) const;
  FileHandle made(const FileHandle& directory, const std::string& name, XdrReader& in);

  RpcCaller rpc_;
  bool lists_with_attributes_ = true;  // READDIRPLUS, until the server says that it has none
};

}  // namespace uwarp::nfs
