// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The headers of ONC RPC messages (RFC 5531) with AUTH_SYS credentials, for both sides.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "nfs/xdr.h"

namespace uwarp::nfs {

constexpr uint32_t kAuthSys = 1;  // a flavor of authentication

/// AUTH_SYS, as the caller claims it.
struct Caller {
  uint32_t uid = 0;
  uint32_t gid = 0;
  std::vector<uint32_t> groups;
};

/// No usable reply: the transport failed, or the server did not take the call.
class RpcError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// No reply came: the connection could not be made, broke, or the server is silent.
class RpcUnanswered : public RpcError {
 public:
  using RpcError::RpcError;
};

/// A reply that says the call was not executed: no such program, bad credentials, ...
class RpcRefused : public RpcError {
 public:
  using RpcError::RpcError;
};

struct CallHeader {
  uint32_t xid = 0;
  uint32_t program = 0;
  uint32_t version = 0;
  uint32_t procedure = 0;
  Caller caller;
};

enum class AcceptStatus : uint32_t {
  kSuccess = 0,
  kProgramUnavailable = 1,
  kProgramMismatch = 2,
  kProcedureUnavailable = 3,
  kGarbageArguments = 4,
  kSystemError = 5,
};

enum class RejectStatus : uint32_t { kRpcMismatch = 0, kAuthError = 1 };

/// Why a call is refused before its program is looked at.
class CallRejected : public std::runtime_error {
 public:
  CallRejected(uint32_t xid, RejectStatus status)
      : std::runtime_error("RPC call rejected"), xid(xid), status(status) {}
  uint32_t xid;
  RejectStatus status;
};

/// Most bytes in front of the results of an accepted reply with our verifier.
constexpr size_t kReplyHeaderBytes = 24;
/// The same for foreign servers, whose verifier can have 400 bytes.
constexpr size_t kReplyHeaderBytesMax = kReplyHeaderBytes + 400;

void encode_call(XdrWriter& out, const CallHeader& header);
/// Leaves `in` at the arguments. Throws CallRejected, or XdrError when not even the XID and the
/// message type are there.
CallHeader decode_call(XdrReader& in);

/// The versions are those of the program that there are, for kProgramMismatch.
struct Versions {
  uint32_t lowest = 0;
  uint32_t highest = 0;
};
void encode_accepted(XdrWriter& out, uint32_t xid, AcceptStatus status, Versions versions = {});
void encode_rejected(XdrWriter& out, uint32_t xid, RejectStatus status);
/// Leaves `in` at the results, or throws RpcRefused with the server's reason.
void decode_reply(XdrReader& in, uint32_t xid);

}  // namespace uwarp::nfs
