// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A connection's replies: results into the client's Write chunks, long ones into its Reply chunk.
#include <cerrno>
#include <unordered_map>

#include "verbs/session.h"

namespace rpcrdma::verbs {

using core::Header;
using core::HeaderError;
using core::Procedure;

/// What a reply needs until its last Send is complete; then the caller is notified.
struct Session::Keep {
  Keep(void (*done_function)(void*), void* done_context)
      : done(done_function), context(done_context) {}
  ~Keep() {
    for (const auto& [piece, mr] : registered) ibv_dereg_mr(mr);
    if (done != nullptr) done(context);
  }
  Keep(const Keep&) = delete;
  Keep& operator=(const Keep&) = delete;

  uint32_t lkey(const rpcrdma_piece& piece) const {
    return piece.memory != nullptr ? piece.memory->mr->lkey : registered.at(&piece)->lkey;
  }

  void (*done)(void*);
  void* context;
  std::vector<std::shared_ptr<Buffer>> result_memory;
  std::unordered_map<const rpcrdma_piece*, ibv_mr*> registered;
  std::shared_ptr<Buffer> send;
  std::shared_ptr<Buffer> long_message;
};

int Session::reply(Request request, std::span<const rpcrdma_piece> pieces, void (*done)(void*),
                   void* context) {
  // Outlives the lock: the caller's function may call us.
  const auto keep = std::make_shared<Keep>(done, context);
  keep->result_memory = std::move(request->result_memory);
  const Header& call = request->header;
  const auto message = core::Message::of(pieces);
  int error = message && message->xid() == call.xid ? 0 : -EINVAL;
  std::optional<core::ReplyPlan> plan;
  if (error == 0) {
    plan = core::plan_reply(*message, call.chunks, call.xid, grant(call.credits),
                            settings_.server_to_client);
    error = plan ? prepare(*message, *plan, *keep) : -EMSGSIZE;
  }

  const std::lock_guard lock(mutex_);
  if (connection_ == nullptr || connection_->broken()) return -ENOTCONN;
  // The credit that the reply gives back has its receive first.
  connection_->repost(request->slot);
  if (error != 0) {
    post_error_locked(call.xid, call.credits, HeaderError::kChunk);
    return error;
  }
  post_reply(*message, *plan, call.chunks, keep);
  if (!connection_->broken()) return 0;
  wake_->ring();
  return -ENOTCONN;
}

int Session::prepare(const core::Message& message, const core::ReplyPlan& plan, Keep& keep) {
  for (size_t i = 0; i < plan.items_written; ++i) {
    for (const rpcrdma_piece& piece : message.items()[i].pieces) {
      if (piece.length == 0) continue;
      if (piece.memory == nullptr) {
        ibv_mr* mr = domain_->register_memory(piece.base, piece.length, 0);
        if (mr == nullptr) return -ENOMEM;
        keep.registered[&piece] = mr;
      } else if (!piece.memory->covers(piece.base, piece.length)) {
        return -EINVAL;
      }
    }
  }
  keep.send = domain_->take(settings_.server_to_client);
  if (!plan.message_writes.empty()) keep.long_message = domain_->take(plan.message_size);
  const bool enough = keep.send && (plan.message_writes.empty() || keep.long_message);
  return enough ? 0 : -ENOMEM;
}

/// Called before the reply is sent, so that a client that has the reply finds it counted.
void Session::count_reply(const core::ReplyPlan& plan, bool invalidates) {
  statistics_->add(&rpcrdma_statistics::sends);
  statistics_->add(&rpcrdma_statistics::replies);
  statistics_->add(&rpcrdma_statistics::remote_invalidations, invalidates);
  statistics_->add(&rpcrdma_statistics::rdma_writes,
                   plan.item_writes.size() + plan.message_writes.size());
  statistics_->add(&rpcrdma_statistics::reply_chunks_used,
                   plan.header.procedure == Procedure::kNomsg);
  statistics_->add_used(plan.header.chunks.writes);
}

void Session::post_reply(const core::Message& message, const core::ReplyPlan& plan,
                         const core::ChunkLists& call, const std::shared_ptr<Keep>& keep) {
  // The client closes one handle less if the Send does it, which both sides must have announced.
  // RFC 8797-4.1-a/c.
  const auto handle = settings_.remote_invalidation != 0 ? call.any_handle() : std::nullopt;
  count_reply(plan, handle.has_value());

  const auto write = [this](const std::byte* from, uint32_t length, uint32_t lkey, uint32_t handle,
                            uint64_t to) {
    Work work = Connection::transfer(IBV_WR_RDMA_WRITE, from, length, lkey);
    work.request.wr.rdma.remote_addr = to;
    work.request.wr.rdma.rkey = handle;
    connection_->post(std::move(work));
  };
  for (const auto& one : plan.item_writes) {
    const auto* from = static_cast<const std::byte*>(one.piece->base) + one.offset;
    write(from, one.length, keep->lkey(*one.piece), one.handle, one.to);
  }
  size_t size = plan.header.encode(keep->send->first(settings_.server_to_client));
  if (plan.header.procedure == Procedure::kMsg) {
    message.copy({keep->send->base + size, plan.message_size}, plan.items_written);
    size += plan.message_size;
  } else {
    const auto long_message = keep->long_message->first(plan.message_size);
    message.copy(long_message, plan.items_written);
    for (const auto& one : plan.message_writes)
      write(long_message.data() + one.offset, one.length, keep->long_message->lkey(), one.handle,
            one.to);
  }

  Work send =
      Connection::transfer(handle ? IBV_WR_SEND_WITH_INV : IBV_WR_SEND, keep->send->base,
                           static_cast<uint32_t>(size), keep->send->lkey(), [keep](bool) {});
  if (handle) send.request.invalidate_rkey = *handle;
  connection_->post(std::move(send));
}

void Session::drop(Request request) {
  const std::lock_guard lock(mutex_);
  if (connection_ != nullptr) connection_->repost(request->slot);
}

void Session::post_error_locked(uint32_t xid, uint32_t credits, HeaderError error) {
  const auto buffer = domain_->take(settings_.server_to_client);
  if (buffer == nullptr) {
    connection_->set_broken();
    wake_->ring();
    return;
  }
  const Header header = Header::make_error(xid, grant(credits), error);
  const size_t size = header.encode(buffer->first(settings_.server_to_client));
  statistics_->add(&rpcrdma_statistics::sends);
  statistics_->add(&rpcrdma_statistics::errors_sent);
  connection_->post(Connection::transfer(IBV_WR_SEND, buffer->base, static_cast<uint32_t>(size),
                                         buffer->lkey(), [buffer](bool) {}));
}

}  // namespace rpcrdma::verbs
