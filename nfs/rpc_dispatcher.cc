// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "nfs/rpc_dispatcher.h"

#include <algorithm>

namespace uwarp::nfs {

namespace {

constexpr size_t kCachedReplies = 1024;

/// Calls that must not be executed twice are small, but for those that bring data.
constexpr size_t kCachedCallBytesMax = 4096;

ReplyRoom without_header(ReplyRoom room) {
  room.message -= std::min(room.message, kReplyHeaderBytes);
  return room;
}

}  // namespace

RpcDispatcher::RpcDispatcher() : replies_(kCachedReplies) {}

RpcService* RpcDispatcher::find(const CallHeader& header, AcceptStatus& status,
                                Versions& versions) const {
  status = AcceptStatus::kProgramUnavailable;
  for (const auto& service : services_) {
    if (service->program() == header.program) {
      if (service->version() == header.version) {
        return service.get();
      }
      bool first = status != AcceptStatus::kProgramMismatch;
      status = AcceptStatus::kProgramMismatch;
      versions.lowest = first ? service->version() : std::min(versions.lowest, service->version());
      versions.highest = std::max(versions.highest, service->version());
    }
  }
  return nullptr;
}

ServiceReply RpcDispatcher::execute(const CallHeader& header, XdrReader& arguments,
                                    const ReplyRoom& room) {
  AcceptStatus status;
  Versions versions;
  ServiceReply reply;
  if (RpcService* service = find(header, status, versions)) {
    try {
      encode_accepted(reply.message, header.xid, AcceptStatus::kSuccess);
      service->call(header.procedure, header.caller, arguments, without_header(room), reply);
      return reply;
    } catch (const XdrError&) {
      status = AcceptStatus::kGarbageArguments;
    } catch (const NoSuchProcedure&) {
      status = AcceptStatus::kProcedureUnavailable;
    } catch (const std::exception&) {
      status = AcceptStatus::kSystemError;  // no memory, for one
    }
  }
  reply = ServiceReply();
  encode_accepted(reply.message, header.xid, status, versions);
  return reply;
}

std::optional<ServiceReply> RpcDispatcher::handle(const std::string& client, ConstBytes message,
                                                  const ReplyRoom& room) {
  XdrReader in(message);
  ServiceReply reply;
  CallHeader header;
  try {
    header = decode_call(in);
  } catch (const CallRejected& rejected) {
    encode_rejected(reply.message, rejected.xid, rejected.status);
    return reply;
  } catch (const XdrError&) {
    return std::nullopt;
  }
  std::lock_guard lock(mutex_);
  AcceptStatus status;
  Versions versions;
  RpcService* service = find(header, status, versions);
  bool keep = service != nullptr && !service->is_idempotent(header.procedure) &&
              message.size() <= kCachedCallBytesMax;
  std::string key;
  if (keep) {
    key = ReplyCache::key(client, message);
    if (const auto* known = replies_.find(key)) {
      reply.message.fixed_opaque(*known);
      return reply;
    }
  }
  reply = execute(header, in, room);
  if (keep && !reply.is_repeatable) {
    replies_.add(key, reply.message.bytes());
  }
  return reply;
}

}  // namespace uwarp::nfs
