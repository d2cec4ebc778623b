// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Files on a server, for both versions of NFS. READ and WRITE have a function to start and one to
// finish, so that many can be outstanding. Failures are NfsError (the server refuses) and RpcError
// (no usable reply).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "nfs/nfs_status.h"
#include "nfs/nfs_types.h"
#include "nfs/rpc_channel.h"
#include "nfs/rpc_message.h"

namespace uwarp::nfs {

/// A name in a directory.
struct Place {
  FileHandle directory;
  std::string name;
};

struct Found {
  FileHandle handle;
  Attributes attributes;
  Place place;  // where it was found; no name: the root
};

struct DirectoryEntry {
  std::string name;
  std::optional<Attributes> attributes;
  std::optional<FileHandle> handle;
};

/// What READs and WRITEs go to.
struct OpenFile {
  FileHandle handle;
  StateId state;
};

class NfsClient {
 public:
  struct ReadResult {
    size_t count;
    bool end_of_file;
  };
  struct WriteResult {
    size_t count;
    Stability stability;
    uint64_t verifier;
  };

  virtual ~NfsClient() = default;

  virtual unsigned version() const = 0;
  virtual RpcChannel& channel() = 0;

  virtual void null() = 0;
  /// Where all names of the server begin; nothing if this version wants exports to be mounted.
  virtual std::optional<FileHandle> root() = 0;
  virtual Attributes getattr(const FileHandle& handle) = 0;
  virtual void setattr(const FileHandle& handle, const NewAttributes& wanted) = 0;
  virtual Found lookup(const FileHandle& directory, const std::string& name) = 0;
  virtual std::string read_link(const FileHandle& handle) = 0;
  virtual FileHandle make_directory(const FileHandle& directory, const std::string& name,
                                    const NewAttributes& wanted) = 0;
  virtual void make_symlink(const FileHandle& directory, const std::string& name,
                            const std::string& target) = 0;
  virtual void remove(const FileHandle& directory, const std::string& name) = 0;
  virtual void remove_directory(const FileHandle& directory, const std::string& name) = 0;
  virtual void rename(const FileHandle& from, const std::string& from_name, const FileHandle& to,
                      const std::string& to_name) = 0;
  /// Without "." and ".."; a name that could not be that of a local file is an error.
  std::vector<DirectoryEntry> list(const FileHandle& directory);
  virtual FilesystemInfo filesystem_info(const FileHandle& handle) = 0;

  /// To read from. What is opened or created is closed again, once.
  virtual OpenFile open(const Found& file) = 0;
  /// To write to.
  virtual OpenFile create(const FileHandle& directory, const std::string& name, CreateHow how,
                          const NewAttributes& wanted) = 0;
  virtual void close(const OpenFile& file) = 0;
  /// For cleaning up after an error: reports none, and sends nothing to a server that is silent.
  void abandon(const OpenFile& file) noexcept;

  virtual void prepare_read(RpcCall& call, const OpenFile& file, uint64_t offset, Bytes into,
                            RpcBuffer* buffer) = 0;
  /// All that was read is in the buffer then, by RDMA or copied there out of the reply.
  virtual ReadResult finish_read(const RpcCall& call) = 0;
  virtual void prepare_write(RpcCall& call, const OpenFile& file, uint64_t offset, ConstBytes data,
                             Stability stability, RpcBuffer* buffer) = 0;
  virtual WriteResult finish_write(const RpcCall& call) = 0;
  /// The write verifier.
  virtual uint64_t commit(const OpenFile& file) = 0;

 protected:
  /// Where a listing goes on.
  struct ListPage {
    uint64_t cookie = 0;
    uint64_t verifier = 0;
    bool end = false;
    std::vector<DirectoryEntry> entries;
  };
  /// Replaces the page by the one that follows it.
  virtual void next_page(const FileHandle& directory, ListPage& page) = 0;

  /// The length word of a READ's data and, where RDMA did not bring it, the data itself.
  static size_t take_data(const RpcCall& call, XdrReader& in);
  /// count4, stable_how and writeverf, in this order in both versions.
  static WriteResult decode_written(const RpcCall& call, XdrReader& in);
};

}  // namespace uwarp::nfs
