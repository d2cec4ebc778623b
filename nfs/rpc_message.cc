// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "nfs/rpc_message.h"

#include <unistd.h>

#include <algorithm>

#include "nfs/nfs_types.h"

namespace uwarp::nfs {

namespace {

constexpr uint32_t kCall = 0;
constexpr uint32_t kReply = 1;
constexpr uint32_t kRpcVersion = 2;
constexpr uint32_t kAuthNone = 0;
constexpr uint32_t kAuthTooWeak = 5;
constexpr size_t kAuthBytesMax = 400;
constexpr size_t kMachineNameMax = 255;
constexpr size_t kGidsMax = 16;

void encode_no_verifier(XdrWriter& out) {
  out.u32(kAuthNone);
  out.u32(0);
}

std::string machine_name() {
  char name[kMachineNameMax + 1] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

void encode_caller(XdrWriter& out, const Caller& caller) {
  static const std::string machine = machine_name();
  XdrWriter body;
  body.u32(0);  // stamp
  body.string(machine);
  body.u32(caller.uid);
  body.u32(caller.gid);
  size_t count = std::min(caller.groups.size(), kGidsMax);
  body.u32(static_cast<uint32_t>(count));
  for (size_t i = 0; i < count; ++i) {
    body.u32(caller.groups[i]);
  }
  out.u32(kAuthSys);
  out.opaque(body.bytes());
}

Caller decode_caller(ConstBytes body) {
  XdrReader in(body);
  Caller caller;
  in.u32();  // stamp
  in.opaque(kMachineNameMax);
  caller.uid = in.u32();
  caller.gid = in.u32();
  uint32_t count = in.u32();
  if (count > kGidsMax) {
    throw XdrError("XDR: too many groups");
  }
  for (uint32_t i = 0; i < count; ++i) {
    caller.groups.push_back(in.u32());
  }
  return caller;
}

std::string describe(AcceptStatus status) {
  switch (status) {
    case AcceptStatus::kSuccess:
      break;
    case AcceptStatus::kProgramUnavailable:
      return "the server does not have this RPC program";
    case AcceptStatus::kProgramMismatch:
      return "the server has other versions of the program";
    case AcceptStatus::kProcedureUnavailable:
      return "the server does not have this procedure";
    case AcceptStatus::kGarbageArguments:
      return "the server cannot decode the arguments";
    case AcceptStatus::kSystemError:
      return "system error on the server";
  }
  return "RPC accept status " + std::to_string(static_cast<uint32_t>(status));
}

}  // namespace

void encode_call(XdrWriter& out, const CallHeader& header) {
  out.u32(header.xid);
  out.u32(kCall);
  out.u32(kRpcVersion);
  out.u32(header.program);
  out.u32(header.version);
  out.u32(header.procedure);
  encode_caller(out, header.caller);
  encode_no_verifier(out);
}

CallHeader decode_call(XdrReader& in) {
  CallHeader header;
  header.xid = in.u32();
  if (in.u32() != kCall) {
    throw XdrError("not an RPC call");
  }
  if (in.u32() != kRpcVersion) {
    throw CallRejected(header.xid, RejectStatus::kRpcMismatch);
  }
  try {
    header.program = in.u32();
    header.version = in.u32();
    header.procedure = in.u32();
    uint32_t flavor = in.u32();
    auto body = in.opaque(kAuthBytesMax);
    if (flavor == kAuthSys) {
      header.caller = decode_caller(body);
    } else if (flavor == kAuthNone) {
      header.caller = {kNobody, kNobody, {}};
    } else {
      throw CallRejected(header.xid, RejectStatus::kAuthError);
    }
    in.u32();
    in.opaque(kAuthBytesMax);
  } catch (const XdrError&) {
    throw CallRejected(header.xid, RejectStatus::kAuthError);
  }
  return header;
}

void encode_accepted(XdrWriter& out, uint32_t xid, AcceptStatus status, Versions versions) {
  out.u32(xid);
  out.u32(kReply);
  out.u32(0);  // accepted
  encode_no_verifier(out);
  out.u32(static_cast<uint32_t>(status));
  if (status == AcceptStatus::kProgramMismatch) {
    out.u32(versions.lowest);
    out.u32(versions.highest);
  }
}

void encode_rejected(XdrWriter& out, uint32_t xid, RejectStatus status) {
  out.u32(xid);
  out.u32(kReply);
  out.u32(1);  // denied
  out.u32(static_cast<uint32_t>(status));
  if (status == RejectStatus::kRpcMismatch) {
    out.u32(kRpcVersion);
    out.u32(kRpcVersion);
  } else {
    out.u32(kAuthTooWeak);
  }
}

void decode_reply(XdrReader& in, uint32_t xid) {
  if (in.u32() != xid || in.u32() != kReply) {
    throw RpcError("the server's answer is not a reply to the call");
  }
  if (in.u32() != 0) {
    throw RpcRefused(in.u32() == static_cast<uint32_t>(RejectStatus::kAuthError)
                         ? "the server refuses the credentials"
                         : "the server speaks another version of RPC");
  }
  in.u32();
  in.opaque(kAuthBytesMax);
  auto status = static_cast<AcceptStatus>(in.u32());
  if (status != AcceptStatus::kSuccess) {
    throw RpcRefused(describe(status));
  }
}

}  // namespace uwarp::nfs
