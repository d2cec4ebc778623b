// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The MOUNT program as a client sees it: over the NFS connection (our server), or, as Linux servers
// want it, over TCP.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nfs/mount3.h"
#include "nfs/rpc_caller.h"

namespace uwarp::nfs {

class MountClient {
 public:
  virtual ~MountClient() = default;
  virtual std::vector<ExportEntry> exports() = 0;
  virtual FileHandle mount(const std::string& path) = 0;
};

/// Over a connection that NFS has too.
class ChannelMountClient : public MountClient {
 public:
  explicit ChannelMountClient(RpcCaller rpc) : rpc_(std::move(rpc)) {}
  /// Whether the server has the program there.
  bool available();
  std::vector<ExportEntry> exports() override;
  FileHandle mount(const std::string& path) override;

 private:
  RpcCaller rpc_;
};

/// The export among `exports` that the path lies in: the longest. Throws RpcError that names them.
std::string choose_export(const std::vector<ExportEntry>& exports, const std::string& path);

/// Over TCP, by libtirpc; without a port, that is asked of rpcbind.
std::unique_ptr<MountClient> make_tcp_mount_client(const std::string& host,
                                                   std::optional<uint16_t> port);

}  // namespace uwarp::nfs
