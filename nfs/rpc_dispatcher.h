// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The server's side of RPC: makes a reply of the bytes of a call, which may be nonsense.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "nfs/reply_cache.h"
#include "nfs/rpc_service.h"

namespace uwarp::nfs {

class RpcDispatcher {
 public:
  RpcDispatcher();

  void add(std::unique_ptr<RpcService> service) { services_.push_back(std::move(service)); }

  /// Any thread; one call is executed at a time. `client` is where the call came from. Nothing when
  /// the bytes are not even a call.
  std::optional<ServiceReply> handle(const std::string& client, ConstBytes message,
                                     const ReplyRoom& room);

 private:
  ServiceReply execute(const CallHeader& header, XdrReader& arguments, const ReplyRoom& room);
  RpcService* find(const CallHeader& header, AcceptStatus& status, Versions& versions) const;

  std::mutex mutex_;
  std::vector<std::unique_ptr<RpcService>> services_;
  ReplyCache replies_;
};

}  // namespace uwarp::nfs
