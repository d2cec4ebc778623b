// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What a command needs of a server: the connection, and the files on it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nfs/mount_client.h"
#include "nfs/nfs_client.h"
#include "nfs/rdma_channel.h"
#include "nfs/remote_tree.h"
#include "nfs/url.h"

namespace uwarp::nfs {

struct SessionOptions {
  RdmaChannelOptions channel;
  Caller caller;
  unsigned version = 3;                    // of NFS: 3 or 4
  std::optional<uint16_t> mount_port;      // of mountd, on TCP
  std::optional<std::string> export_path;  // instead of asking for the list
};

class Session {
 public:
  /// Connects, or throws RpcError with host and port in it.
  Session(const Url& url, const SessionOptions& options);

  const Url& url() const { return url_; }
  RdmaChannel& channel() { return *channel_; }
  NfsClient& client() { return *client_; }
  std::vector<ExportEntry> exports() { return mount().exports(); }
  /// Of version 3 the export that the path lies in, mounted when first asked for; of version 4 all
  /// that the server has.
  RemoteTree& tree();

 private:
  MountClient& mount();
  std::unique_ptr<RemoteTree> mount_export();

  Url url_;
  SessionOptions options_;
  std::unique_ptr<RdmaChannel> channel_;
  std::unique_ptr<NfsClient> client_;
  std::unique_ptr<MountClient> mount_;
  std::unique_ptr<RemoteTree> tree_;
};

}  // namespace uwarp::nfs
