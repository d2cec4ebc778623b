// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "nfs/rpc_caller.h"

#include <cerrno>
#include <cstring>

#include "nfs/completions.h"

namespace uwarp::nfs {

std::string describe_rpc_status(int status) {
  switch (-status) {
    case ECONNREFUSED:
      return "connection refused";
    case ETIMEDOUT:
      return "no answer from the server in time";
    case EHOSTUNREACH:
      return "host not reachable";
    case EADDRNOTAVAIL:
      return "unknown host";
    case ENODEV:
      return "no RDMA device on the way to the host (is uwarp-run in front?)";
    case ECONNRESET:
      return "the connection broke";
    case ECONNABORTED:
      return "the connection was closed";
    case EPROTONOSUPPORT:
      return "the server speaks another version of RPC-over-RDMA";
    case EREMOTEIO:
      return "the server could not handle the RDMA chunks, or broke the protocol";
    case EMSGSIZE:
      return "the server's reply is too long";
    case ECANCELED:
      return "cancelled";
    default:
      return std::strerror(-status);
  }
}

XdrReader RpcCaller::results_of(const RpcCall& call) {
  if (call.status != 0) {
    throw RpcUnanswered(describe_rpc_status(call.status));
  }
  uint32_t xid = XdrReader(call.message).u32();
  XdrReader in(call.reply);
  decode_reply(in, xid);
  return in;
}

XdrWriter RpcCaller::begin(uint32_t program, uint32_t version, uint32_t procedure) const {
  XdrWriter out;
  encode_call(out, {channel_.next_xid(), program, version, procedure, caller_});
  return out;
}

void RpcCaller::call(uint32_t program, uint32_t version, uint32_t procedure, size_t reply_max,
                     const std::function<void(XdrWriter&)>& encode,
                     const std::function<void(XdrReader&)>& decode) const {
  XdrWriter out = begin(program, version, procedure);
  encode(out);
  RpcCall call;
  call.message = std::move(out).take();
  call.reply_max = kReplyHeaderBytesMax + reply_max;
  Completions completions(channel_);
  completions.start(call);
  completions.wait();
  decoded(call, [&](XdrReader& in) { decode(in); });
}

}  // namespace uwarp::nfs
