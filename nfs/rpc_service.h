// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What a server needs of an RPC program: it takes arguments and gives results, of which the end may
// be an item that moves by RDMA from where it lies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>

#include "nfs/rpc_message.h"
#include "nfs/xdr.h"

namespace uwarp::nfs {

/// The room that the client has for the reply.
struct ReplyRoom {
  size_t message;  ///< bytes in the message
  std::optional<size_t>
      chunk;  ///< bytes of a DDP-eligible item that the client takes apart from it
};

struct ServiceReply {
  XdrWriter message;                       ///< RPC header and results, up to the item
  ConstBytes item;                         ///< DDP-eligible end of the results, or nothing
  std::shared_ptr<const void> item_owner;  ///< keeps the item valid
  bool is_repeatable = false;              ///< the call may be executed again
};

class NoSuchProcedure : public std::runtime_error {
 public:
  NoSuchProcedure() : std::runtime_error("no such procedure") {}
};

class RpcService {
 public:
  virtual ~RpcService() = default;
  virtual uint32_t program() const = 0;
  virtual uint32_t version() const = 0;
  /// Appends the results to the reply. Throws XdrError when the arguments are none, and
  /// NoSuchProcedure.
  virtual void call(uint32_t procedure, const Caller& caller, XdrReader& arguments,
                    const ReplyRoom& room, ServiceReply& reply) = 0;
  /// Whether a second execution of the same call has another outcome than the first.
  virtual bool is_idempotent(uint32_t procedure) const = 0;
};

}  // namespace uwarp::nfs
