// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What the client needs of a transport: it takes RPC calls, of which parts may move by RDMA, and
// says when their replies are there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "nfs/xdr.h"

namespace uwarp::nfs {

/// Memory that the transport has prepared for RDMA, to be used over and over.
class RpcBuffer {
 public:
  virtual ~RpcBuffer() = default;
  virtual Bytes bytes() = 0;
};

/// One call. It stays where it is, and so does all that it refers to, from start() until `done`.
struct RpcCall {
  std::vector<std::byte> message;  ///< RPC header and arguments, up to the item
  ConstBytes item;                 ///< DDP-eligible end of the arguments, or nothing
  Bytes result;                    ///< where the DDP-eligible end of the results goes, or nothing
  RpcBuffer* buffer = nullptr;     ///< that `item` and `result` lie in, if any
  size_t reply_max = 0;            ///< longest reply without what goes to `result`
  std::function<void(RpcCall&)> done;  ///< runs in a thread of the transport

  int status = 0;              ///< out: 0, or a negative errno value
  ConstBytes reply;            ///< out: the reply message, as long as the call is not reused
  size_t result_received = 0;  ///< out: bytes in `result`; 0: they are inside `reply`

  std::shared_ptr<void> transport_state;
};

class RpcChannel {
 public:
  virtual ~RpcChannel() = default;
  virtual uint32_t next_xid() = 0;
  /// A call that cannot be started is done at once, with its status.
  virtual void start(RpcCall& call) = 0;
  /// Makes a call end soon; `done` comes in any case.
  virtual void cancel(RpcCall& call) = 0;
  virtual std::unique_ptr<RpcBuffer> make_buffer(size_t size) = 0;
};

}  // namespace uwarp::nfs
