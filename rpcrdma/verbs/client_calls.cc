// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The client's calls between start and end: what is sent, what is laid open for the server, and
// what comes back.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "verbs/client.h"
#include "verbs/clock.h"

namespace rpcrdma::verbs {

using core::Header;
using core::Procedure;

void Client::send_waiting() {
  while (connection_ != nullptr && !connection_->broken()) {
    const auto xid = table_.take_next();
    if (!xid) return;
    transmit(*xid);
  }
}

void Client::transmit(uint32_t xid) {
  Outgoing& outgoing = calls_.at(xid);
  const rpcrdma_call& call = *outgoing.call;
  const core::CallWishes wishes{call.reply_max != 0 ? call.reply_max : call.reply_size,
                                call.reply_size,
                                {call.results, call.result_count},
                                (call.flags & RPCRDMA_CALL_CHUNKS) != 0};
  const auto plan = core::plan_call(outgoing.message, wishes, agreement_of(settings_));
  if (!plan) {
    finish(xid, -EMSGSIZE);
    return;
  }
  const auto buffer = domain_->take(settings_.client_to_server);
  outgoing.exposures = std::make_unique<Exposures>(*connection_, windows_.get());
  if (buffer == nullptr || !expose(outgoing, *plan)) {
    outgoing.replied = true;
    outgoing.status = -ENOMEM;
    close_memory(xid);
    return;
  }
  Header header;
  header.xid = xid;
  header.credits = table_.credits().wanted();
  header.procedure = plan->is_long ? Procedure::kNomsg : Procedure::kMsg;
  header.chunks = outgoing.offered;
  size_t size = header.encode(buffer->first(settings_.client_to_server));
  if (!plan->is_long) {
    const size_t left_out = plan->items_by_chunk ? outgoing.message.items().size() : 0;
    const size_t length = outgoing.message.size(left_out);
    outgoing.message.copy({buffer->base + size, length}, left_out);
    size += length;
  }
  // The buffer stays until the Send is complete.
  connection_->post(Connection::transfer(IBV_WR_SEND, buffer->base, static_cast<uint32_t>(size),
                                         buffer->lkey(), [buffer](bool) {}));
  const uint64_t limit_ms = call.timeout_ms != 0 ? call.timeout_ms : options_.timeout_ms;
  table_.set_deadline(xid, now_ns() + limit_ms * 1'000'000);
  statistics_.add(outgoing.transmitted ? &rpcrdma_statistics::retransmissions
                                       : &rpcrdma_statistics::calls);
  outgoing.transmitted = true;
  statistics_.add(&rpcrdma_statistics::sends);
  statistics_.add_chunks(outgoing.offered);
}

bool Client::expose(Outgoing& outgoing, const core::CallPlan& plan) {
  core::ChunkLists& offered = outgoing.offered;
  const rpcrdma_call& call = *outgoing.call;
  offered = {};
  if (plan.is_long) {
    const size_t left_out = plan.items_by_chunk ? outgoing.message.items().size() : 0;
    const size_t length = outgoing.message.size(left_out);
    outgoing.bounce = domain_->take(length);
    if (outgoing.bounce == nullptr) return false;
    outgoing.message.copy(outgoing.bounce->first(length), left_out);
    // The library's buffers can have windows, but are not registered for peers.
    const auto segment =
        outgoing.exposures->open(outgoing.bounce->base, length, Exposures::Right::kRead,
                                 use_windows_ ? &outgoing.bounce->memory : nullptr);
    if (!segment) return false;
    offered.reads.push_back({0, *segment});
  }
  if (plan.items_by_chunk && !expose_items(outgoing)) return false;
  if (plan.results_by_chunk && !expose_results(outgoing)) return false;
  if (plan.reply_chunk) {
    const size_t length = std::min<size_t>(call.reply_size, UINT32_MAX);
    const auto segment =
        outgoing.exposures->open(call.reply, length, Exposures::Right::kWrite, call.reply_memory);
    if (!segment) return false;
    offered.reply = core::Chunk{*segment};
  }
  return true;
}

bool Client::expose_items(Outgoing& outgoing) {
  for (const core::Message::Item& item : outgoing.message.items()) {
    for (const rpcrdma_piece& piece : item.pieces) {
      if (piece.length == 0) continue;
      const auto segment =
          outgoing.exposures->open(piece.base, piece.length, Exposures::Right::kRead, piece.memory);
      if (!segment) return false;
      outgoing.offered.reads.push_back({static_cast<uint32_t>(item.position), *segment});
    }
  }
  return true;
}

bool Client::expose_results(Outgoing& outgoing) {
  for (const rpcrdma_result& result :
       std::span(outgoing.call->results, outgoing.call->result_count)) {
    if ((result.flags & RPCRDMA_PIECE_CONTINUED) == 0) outgoing.offered.writes.emplace_back();
    if (result.length == 0) continue;
    const auto segment = outgoing.exposures->open(result.base, result.length,
                                                  Exposures::Right::kWrite, result.memory);
    if (!segment) return false;
    outgoing.offered.writes.back().push_back(*segment);
  }
  return true;
}

void Client::take_reply(const Connection::Received& received) {
  statistics_.add(&rpcrdma_statistics::receives);
  const core::DecodedHeader decoded = core::decode_header(received.message);
  const Header& header = decoded.header;
  if (received.invalidated) take_invalidation(header.xid, *received.invalidated);

  using Verdict = core::DecodedHeader::Verdict;
  const bool is_answer = header.procedure == Procedure::kMsg ||
                         header.procedure == Procedure::kNomsg ||
                         header.procedure == Procedure::kError;
  const bool readable = decoded.verdict == Verdict::kGood || decoded.verdict == Verdict::kBadBody;
  // A call that the server makes (RFC 8167) ends here too: its XID is none of ours.
  if (!readable || !is_answer || !table_.answered(header.xid, header.credits)) {
    statistics_.add(&rpcrdma_statistics::discarded);
    return;
  }
  statistics_.add(header.procedure == Procedure::kError ? &rpcrdma_statistics::errors_received
                                                        : &rpcrdma_statistics::replies);
  Outgoing& outgoing = calls_.at(header.xid);
  outgoing.replied = true;
  if (outgoing.cancelled) {
    outgoing.status = -ECANCELED;
    if (outgoing.call == nullptr) finish(header.xid, -ECANCELED);
    return;
  }
  const auto check = core::check_reply(decoded, received.message, outgoing.offered);
  if (check.status == 0) statistics_.add_used(header.chunks.writes);
  statistics_.add(&rpcrdma_statistics::reply_chunks_used, check.in_reply_chunk);
  accept(outgoing, check, received.message.subspan(decoded.size));
  close_memory(header.xid);
}

/// A Send with invalidation names a handle of the call that it answers. RFC 8797-4.1-b. Whether the
/// server had announced that it would do so does not matter: Linux does it in any case.
void Client::take_invalidation(uint32_t xid, uint32_t handle) {
  statistics_.add(&rpcrdma_statistics::remote_invalidations);
  const auto mine = calls_.find(xid);
  if (mine != calls_.end() && mine->second.exposures != nullptr &&
      mine->second.exposures->invalidated(handle))
    return;
  // Not a handle of that call, but it is invalid now: perhaps it belongs to another one.
  for (auto& [other, outgoing] : calls_)
    if (outgoing.exposures != nullptr && outgoing.exposures->invalidated(handle)) return;
}

void Client::accept(Outgoing& outgoing, const core::ReplyCheck& check,
                    std::span<const std::byte> inline_message) {
  rpcrdma_call& call = *outgoing.call;
  outgoing.status = check.status;
  if (check.status != 0) return;
  outgoing.in_reply_chunk = check.in_reply_chunk;
  outgoing.reply_length = check.length;
  if (!check.in_reply_chunk) {
    if (check.length > call.reply_size) {
      outgoing.status = -EMSGSIZE;
      return;
    }
    std::memcpy(call.reply, inline_message.data(), check.length);
  }
  auto next = check.received.begin();
  for (rpcrdma_result& result : std::span(call.results, call.result_count))
    if (result.length != 0 && next != check.received.end()) result.received = *next++;
}

/// Closes the memory that the call has given to the server, then calls memory_closed(). The
/// application may read a result only when the server cannot change it (RFC 8166 3.4.6, 7.1).
void Client::close_memory(uint32_t xid) {
  const uint64_t number = connection_number_;
  const unsigned count = calls_.at(xid).exposures->close([this, xid, number](bool completed) {
    if (completed && number == connection_number_) memory_closed(xid);
  });
  statistics_.add(&rpcrdma_statistics::local_invalidations, count);
  if (count == 0) memory_closed(xid);
}

void Client::memory_closed(uint32_t xid) {
  Outgoing& outgoing = calls_.at(xid);
  if (outgoing.replied) {
    const auto* reply = static_cast<const std::byte*>(outgoing.call->reply);
    if (outgoing.in_reply_chunk && !core::has_xid({reply, outgoing.reply_length}, xid))
      outgoing.status = -EREMOTEIO;
    finish(xid, outgoing.status);
    return;
  }
  // Cancelled: an answer is still awaited, but not by the owner.
  rpcrdma_call& call = *std::exchange(outgoing.call, nullptr);
  outgoing.exposures.reset();
  tell(call, -ECANCELED, 0);
}

}  // namespace rpcrdma::verbs
