// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "nfs/session.h"

#include "nfs/nfs3_client.h"
#include "nfs/nfs4_client.h"

namespace uwarp::nfs {

Session::Session(const Url& url, const SessionOptions& options) : url_(url), options_(options) {
  try {
    channel_ = std::make_unique<RdmaChannel>(url.host, url.port, options.channel);
  } catch (const RpcError& error) {
    throw RpcError(url.host + " port " + url.port + ": " + error.what());
  }
  if (options.version == kNfs4Version) {
    client_ = std::make_unique<Nfs4Client>(*channel_, options.caller);
  } else {
    client_ = std::make_unique<Nfs3Client>(*channel_, options.caller);
  }
}

MountClient& Session::mount() {
  if (!mount_) {
    auto over_rdma = std::make_unique<ChannelMountClient>(RpcCaller(*channel_, options_.caller));
    if (!options_.mount_port && over_rdma->available()) {
      mount_ = std::move(over_rdma);
    } else {
      mount_ = make_tcp_mount_client(url_.host, options_.mount_port);
    }
  }
  return *mount_;
}

std::unique_ptr<RemoteTree> Session::mount_export() {
  std::string path =
      options_.export_path ? *options_.export_path : choose_export(mount().exports(), url_.path);
  if (!path_is_below(url_.path, path)) {
    throw RpcError(url_.path + ": not in the export " + path);
  }
  try {
    return std::make_unique<RemoteTree>(*client_, path, mount().mount(path));
  } catch (const NfsError& error) {
    throw error.about("export " + path);
  }
}

RemoteTree& Session::tree() {
  if (!tree_) {
    auto root = client_->root();
    tree_ = root ? std::make_unique<RemoteTree>(*client_, "/", *root) : mount_export();
  }
  return *tree_;
}

}  // namespace uwarp::nfs
