// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A connection's thread and the calls that it brings. session_replies.cc has the way back.
#include "verbs/session.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "core/reply_check.h"

namespace rpcrdma::verbs {

using core::DecodedHeader;
using core::Header;
using core::HeaderError;
using core::Procedure;

namespace {

sockaddr_storage address_of(rdma_cm_id* id) {
  sockaddr_storage address{};
  const sockaddr* peer = rdma_get_peer_addr(id);
  if (peer != nullptr) {
    std::memcpy(&address, peer,
                peer->sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in));
  }
  return address;
}

}  // namespace

Session::Session(uint64_t number, const Config& config, std::shared_ptr<Statistics> statistics,
                 std::unique_ptr<Connection> connection, std::unique_ptr<WakeUp> wake,
                 const rpcrdma_settings& settings, bool reads, std::function<void()> on_end)
    : number_(number),
      config_(config),
      statistics_(std::move(statistics)),
      domain_(connection->domain()),
      settings_(settings),
      reads_(reads),
      on_end_(std::move(on_end)),
      peer_(address_of(connection->id())),
      wake_(std::move(wake)),
      connection_(std::move(connection)) {}

void Session::start() {
  if (thread_.joinable() || stopping_) return;
  try {
    thread_ = std::thread(&Session::run, this);
  } catch (const std::exception&) {
    stop();  // threads or memory have run out, for this client only
  }
}

void Session::stop() {
  stopping_ = true;
  wake_->ring();
  if (!thread_.joinable()) ended_ = true;
}

void Session::join() {
  if (thread_.joinable()) thread_.join();
  std::unique_ptr<Connection> connection;
  {
    const std::lock_guard lock(mutex_);
    connection = std::move(connection_);
  }
}

void Session::run() {
  statistics_->add(&rpcrdma_statistics::connections);
  std::array fds{readable(wake_->fd()), readable(connection_->fd())};
  for (bool more = true; more;) {
    ::poll(fds.data(), fds.size(), -1);
    wake_->clear();
    // A client that never stops must not keep its session from stopping.
    for (bool some = true; some && more;) {
      Connection::Turn turn;
      {
        const std::lock_guard lock(mutex_);
        connection_->arm();
        some = connection_->poll(turn);
        more = !connection_->broken() && !stopping_;
      }
      for (const auto& done : turn.done) done(true);
      for (const auto& received : turn.received) take_call(received);
    }
  }
  std::vector<Work::Done> undone;
  {
    const std::lock_guard lock(mutex_);
    connection_->disconnect();
    undone = connection_->tear_down();
  }
  for (const auto& done : undone) done(false);
  ended_ = true;
  on_end_();
}

void Session::take_call(const Connection::Received& received) {
  statistics_->add(&rpcrdma_statistics::receives);
  const DecodedHeader decoded = core::decode_header(received.message);
  const Header& header = decoded.header;
  switch (decoded.verdict) {
    case DecodedHeader::Verdict::kShort:
      return discard(received);
    case DecodedHeader::Verdict::kBadVersion:
      return answer_error(received, header, HeaderError::kVersion);
    case DecodedHeader::Verdict::kBadBody:
    case DecodedHeader::Verdict::kGood:
      break;
  }
  // An error is not answered with an error, and the end of a transfer with nothing.
  if (header.procedure == Procedure::kError || header.procedure == Procedure::kDone)
    return discard(received);
  const bool known = header.procedure == Procedure::kMsg || header.procedure == Procedure::kNomsg;
  if (decoded.verdict != DecodedHeader::Verdict::kGood || !known)
    return answer_error(received, header, HeaderError::kChunk);

  statistics_->add_chunks(header.chunks);
  const auto inline_part = received.message.subspan(decoded.size);
  const auto layout = core::lay_out_call(header, inline_part.size(), config_.call_max);
  if (!layout || (!layout->reads.empty() && !reads_))
    return answer_error(received, header, HeaderError::kChunk);

  Request request(new rpcrdma_request);
  request->session = shared_from_this();
  request->header = header;
  request->slot = received.slot;
  if (layout->reads.empty() && layout->paddings.empty()) {
    const std::lock_guard lock(mutex_);
    request->memory = connection_->receive_buffer();
    request->message = inline_part;
  } else {
    return assemble(*layout, inline_part, std::move(request));
  }
  deliver(std::move(request));
}

void Session::assemble(const core::CallLayout& layout, std::span<const std::byte> inline_part,
                       Request request) {
  request->memory = domain_->take(layout.size);
  if (request->memory == nullptr) return drop(std::move(request));
  std::byte* const base = request->memory->base;
  request->message = {base, layout.size};
  for (const auto& copy : layout.copies)
    std::memcpy(base + copy.to, inline_part.data() + copy.from, copy.length);
  for (const auto& padding : layout.paddings) std::memset(base + padding.to, 0, padding.length);
  if (layout.reads.empty()) return deliver(std::move(request));

  statistics_->add(&rpcrdma_statistics::rdma_reads, layout.reads.size());
  const uint32_t lkey = request->memory->lkey();
  rpcrdma_request* const waiting = request.release();
  const auto whole = [this, waiting](bool completed) {
    Request again(waiting);
    if (completed) deliver(std::move(again));
  };
  const std::lock_guard lock(mutex_);
  for (const auto& read : layout.reads) {
    Work work = Connection::transfer(IBV_WR_RDMA_READ, base + read.to, read.source.length, lkey);
    work.request.wr.rdma.remote_addr = read.source.offset;
    work.request.wr.rdma.rkey = read.source.handle;
    if (&read == &layout.reads.back()) work.done = whole;
    connection_->post(std::move(work));
  }
}

void Session::deliver(Request request) {
  // The transport's XID is that of the RPC message (RFC 8166 4.2.1).
  if (!core::has_xid(request->message, request->header.xid)) {
    const std::lock_guard lock(mutex_);
    connection_->repost(request->slot);
    post_error_locked(request->header.xid, request->header.credits, HeaderError::kChunk);
    return;
  }
  statistics_->add(&rpcrdma_statistics::calls);
  config_.handler(request.release(), config_.context);
}

void Session::answer_error(const Connection::Received& received, const Header& header,
                           HeaderError error) {
  const std::lock_guard lock(mutex_);
  connection_->repost(received.slot);
  post_error_locked(header.xid, header.credits, error);
}

void Session::discard(const Connection::Received& received) {
  statistics_->add(&rpcrdma_statistics::discarded);
  const std::lock_guard lock(mutex_);
  connection_->repost(received.slot);
}

/// As many as the client wants, if there are receives for them, and never none.
uint32_t Session::grant(uint32_t wanted) const { return std::clamp(wanted, 1u, config_.credits); }

}  // namespace rpcrdma::verbs
