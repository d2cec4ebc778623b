// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Makes RPC calls of one caller, and decodes the results. Each answer of a server gives results, or
// one error: RpcError, or an error of the program itself.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "nfs/rpc_channel.h"
#include "nfs/rpc_message.h"

namespace uwarp::nfs {

class RpcCaller {
 public:
  RpcCaller(RpcChannel& channel, Caller caller) : channel_(channel), caller_(std::move(caller)) {}

  RpcChannel& channel() const { return channel_; }

  /// A message with the header of a call: its arguments go behind.
  XdrWriter begin(uint32_t program, uint32_t version, uint32_t procedure) const;

  /// A whole call: `encode` writes the arguments, the results are given to `decode`; `reply_max` is
  /// the room for them.
  void call(uint32_t program, uint32_t version, uint32_t procedure, size_t reply_max,
            const std::function<void(XdrWriter&)>& encode,
            const std::function<void(XdrReader&)>& decode) const;

  /// Gives the results of a call that is done to `decode`, which throws XdrError at nonsense; to
  /// the user that is a missing reply too.
  template <typename Decode>
  static auto decoded(const RpcCall& call, Decode decode) {
    try {
      XdrReader in = results_of(call);
      return decode(in);
    } catch (const XdrError& error) {
      throw RpcError(std::string("the server's reply cannot be decoded: ") + error.what());
    }
  }

 private:
  static XdrReader results_of(const RpcCall& call);

  RpcChannel& channel_;
  Caller caller_;
};

/// What a failed call means, in one line.
std::string describe_rpc_status(int status);

}  // namespace uwarp::nfs
