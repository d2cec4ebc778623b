// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "nfs/rdma_channel.h"

#include <array>
#include <cerrno>
#include <new>

#include "nfs/rpc_caller.h"

namespace uwarp::nfs {

namespace {

constexpr std::align_val_t kBufferAlignment{4096};

rpcrdma::ClientOptions client_options(const RdmaChannelOptions& options) {
  rpcrdma::ClientOptions made;
  if (options.inline_threshold) {
    made.inline_send = made.inline_receive = *options.inline_threshold;
  }
  made.credits = options.credits;
  made.announce = options.announce;
  made.timeout_ms = options.timeout_ms.value_or(made.timeout_ms);
  made.retries = options.retries.value_or(made.retries);
  return made;
}

}  // namespace

/// Registered once, used by many calls.
class RdmaChannel::Buffer : public RpcBuffer {
 public:
  Buffer(rpcrdma::Client& client, size_t size)
      : storage_(static_cast<std::byte*>(::operator new(size, kBufferAlignment))),
        bytes_(storage_.get(), size),
        memory_(client.register_memory(bytes_)) {}

  Bytes bytes() override { return bytes_; }
  rpcrdma_memory* memory() const { return memory_.get(); }

 private:
  struct Free {
    void operator()(std::byte* storage) const { ::operator delete(storage, kBufferAlignment); }
  };
  std::unique_ptr<std::byte, Free> storage_;
  Bytes bytes_;
  rpcrdma::Memory memory_;
};

/// What the library has of a call while it is under way.
struct RdmaChannel::CallState {
  rpcrdma_call call{};
  std::array<rpcrdma_piece, 2> pieces{};
  rpcrdma_result result{};
  std::vector<std::byte> reply;
  RpcCall* owner = nullptr;

  static void done(rpcrdma_call* call) {
    auto* state = static_cast<CallState*>(call->context);
    RpcCall* owner = state->owner;
    owner->status = call->status;
    owner->reply = ConstBytes(state->reply).first(call->status == 0 ? call->reply_length : 0);
    owner->result_received = state->result.received;
    owner->done(*owner);
  }
};

RdmaChannel::RdmaChannel(const std::string& host, const std::string& port,
                         const RdmaChannelOptions& options) {
  try {
    client_ = std::make_unique<rpcrdma::Client>(host, port, client_options(options));
  } catch (const std::system_error& error) {
    throw RpcError(describe_rpc_status(-error.code().value()));
  }
}

void RdmaChannel::start(RpcCall& call) {
  if (!call.transport_state) {
    call.transport_state = std::make_shared<CallState>();
  }
  auto& state = *static_cast<CallState*>(call.transport_state.get());
  auto* buffer = static_cast<Buffer*>(call.buffer);
  rpcrdma_memory* memory = buffer != nullptr ? buffer->memory() : nullptr;
  state.owner = &call;
  state.pieces = {rpcrdma::piece(call.message), rpcrdma::ddp_piece(call.item, memory)};
  state.result = rpcrdma::result(call.result, memory);
  // Room for a small result inside the reply, where it comes when the reply fits a Send.
  size_t inside = call.result.size() <= RPCRDMA_INLINE_MAX ? round_up(call.result.size()) : 0;
  state.reply.resize(call.reply_max + inside);
  state.call = {};
  state.call.pieces = state.pieces.data();
  state.call.piece_count = call.item.empty() ? 1 : 2;
  state.call.reply = state.reply.data();
  state.call.reply_size = state.reply.size();
  state.call.reply_max = call.reply_max;
  state.call.results = call.result.empty() ? nullptr : &state.result;
  state.call.result_count = call.result.empty() ? 0 : 1;
  state.call.done = &CallState::done;
  state.call.context = &state;
  int status = rpcrdma_client_start(client_->get(), &state.call);
  if (status != 0) {
    state.call.status = status;
    CallState::done(&state.call);
  }
}

void RdmaChannel::cancel(RpcCall& call) {
  auto& state = *static_cast<CallState*>(call.transport_state.get());
  rpcrdma_client_cancel(client_->get(), &state.call);
}

std::unique_ptr<RpcBuffer> RdmaChannel::make_buffer(size_t size) {
  try {
    return std::make_unique<Buffer>(*client_, size);
  } catch (const std::system_error& error) {
    throw RpcError(std::string("cannot register memory: ") + error.code().message());
  }
}

}  // namespace uwarp::nfs
