// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The client's life: connecting, its thread, time limits, and calls that begin and end.
// client_calls.cc has what happens to one call in between.
#include "verbs/client.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <random>

#include "verbs/clock.h"

namespace rpcrdma::verbs {

namespace {

constexpr uint32_t kBackoffFirstMs = 20;
constexpr uint32_t kBackoffMaxMs = 2000;
/// Answers beyond those to calls: a server's mistakes must not find the queue empty.
constexpr uint32_t kSpareReceives = 2;
/// So that a server that never stops does not keep the lock from others.
constexpr int kTurnsMax = 64;

}  // namespace

Client::Client(const std::string& host, const std::string& service,
               const rpcrdma_client_options& options)
    : options_(options),
      connector_(host, service, options.source != nullptr ? options.source : ""),
      table_(options.credits),
      // Two clients at one address must not look like one to a server's cache of replies.
      last_xid_(std::random_device()()) {}

int Client::open() {
  if (wake_.fd() < 0 || stop_.fd() < 0) return -EMFILE;
  Connector::Outcome outcome = connect_once();
  if (outcome.error != 0) return outcome.error;
  install(std::move(outcome));
  thread_ = std::thread(&Client::run, this);
  return 0;
}

Client::~Client() {
  {
    Lock lock(mutex_);
    closing_ = true;
  }
  stop_.ring();
  wake_.ring();
  if (thread_.joinable()) thread_.join();
  Lock lock(mutex_);
  ended_.wait(lock, [this] { return waiters_ == 0; });
}

int Client::prepare(rdma_cm_id* id, std::unique_ptr<Connection>& connection) {
  if (domain_ == nullptr) {
    auto domain = Domain::of(id->verbs);
    if (domain == nullptr) return -ENOMEM;
    const Lock lock(mutex_);
    domain_ = std::move(domain);
    // R says that every handle we hand out can be invalidated, so all are windows, or none is.
    use_windows_ = options_.invalidation != 0 && domain_->has_windows();
    announcement_ = std::make_unique<Announcement>(options_.announce != 0, options_.inline_send,
                                                   options_.inline_receive, use_windows_);
  } else if (domain_->context() != id->verbs) {
    return -EXDEV;  // registered memory belongs to the first device
  }
  const Connection::Config config{announcement_->own().receive_size,
                                  options_.credits + kSpareReceives};
  return Connection::make(domain_, id, config, connection);
}

Connector::Outcome Client::connect_once() {
  return connector_.connect(
      options_.connect_ms,
      [this](rdma_cm_id* id, auto& connection) { return prepare(id, connection); },
      [this] { return announcement_->private_data(); }, stop_);
}

void Client::install(Connector::Outcome outcome) {
  connection_ = std::move(outcome.connection);
  windows_ = use_windows_ ? std::make_unique<WindowPool>(domain_) : nullptr;
  // Nothing of an earlier connection holds any more. RFC 8797-4-a.
  settings_ = announcement_->settle(core::Role::kClient, outcome.private_data);
  ++connection_number_;
  failed_attempts_ = 0;
  statistics_.add(&rpcrdma_statistics::connections);
}

void Client::run() {
  Lock lock(mutex_);
  while (!closing_) {
    if (connection_ != nullptr && connection_->broken()) lose_connection(-ECONNRESET);
    expire();
    if (run_callbacks(lock)) continue;
    if (connection_ == nullptr && table_.waiting()) {
      connect_again(lock);
      continue;
    }
    send_waiting();
    if (!callbacks_.empty() || (connection_ != nullptr && connection_->broken())) continue;
    sleep(lock);
    take_cm_events();
    if (connection_ != nullptr) take_completions();
  }
  abort_all();
  run_callbacks(lock);
}

/// Until there may be something to do. A call that starts meanwhile has its deadline later than
/// this sleep ends, unless it has a limit of its own; then it rings.
void Client::sleep(Lock& lock) {
  std::array fds{readable(wake_.fd()), readable(connector_.channel().fd()), pollfd{-1, 0, 0}};
  if (connection_ != nullptr) fds[2] = readable(connection_->fd());
  uint64_t limit_ns = uint64_t{options_.timeout_ms} * 1'000'000;
  if (const auto deadline = table_.next_deadline()) {
    const uint64_t now = now_ns();
    limit_ns = std::min(limit_ns, *deadline > now ? *deadline - now : 0);
  }
  lock.unlock();
  // Rounded up, so as not to find that the time has not quite come.
  ::poll(fds.data(), fds.size(),
         static_cast<int>(std::min<uint64_t>(limit_ns / 1'000'000 + 1, INT32_MAX)));
  wake_.clear();
  lock.lock();
}

void Client::connect_again(Lock& lock) {
  lock.unlock();
  Connector::Outcome outcome = connect_once();
  lock.lock();
  if (closing_) return;
  if (outcome.error == 0) {
    install(std::move(outcome));
    return;
  }
  const uint32_t backoff =
      std::min(kBackoffMaxMs, kBackoffFirstMs << std::min(failed_attempts_, 10u));
  ++failed_attempts_;
  for (const uint32_t xid : table_.all()) retry_or_finish(xid, outcome.error);
  run_callbacks(lock);
  if (!table_.waiting()) return;
  lock.unlock();
  pollfd stop = readable(stop_.fd());
  ::poll(&stop, 1, static_cast<int>(backoff));
  lock.lock();
}

bool Client::run_callbacks(Lock& lock) {
  if (callbacks_.empty()) return false;
  const auto callbacks = std::exchange(callbacks_, {});
  lock.unlock();
  for (rpcrdma_call* call : callbacks) call->done(call);
  lock.lock();
  return true;
}

void Client::take_cm_events() {
  while (const auto event = connector_.channel().next()) {
    if (connection_ == nullptr || event->id != connection_->id()) continue;
    switch (event->type) {
      case RDMA_CM_EVENT_DISCONNECTED:
      case RDMA_CM_EVENT_DEVICE_REMOVAL:
      case RDMA_CM_EVENT_TIMEWAIT_EXIT:
        connection_->set_broken();
        break;
      default:
        break;
    }
  }
}

void Client::take_completions() {
  connection_->arm();
  Connection::Turn turn;
  // What came before the end of a connection counts.
  int turns = 0;
  while (connection_->poll(turn)) {
    for (const auto& done : turn.done) done(true);
    for (const auto& received : turn.received) {
      take_reply(received);
      connection_->repost(received.slot);
    }
    turn = {};
    if (++turns == kTurnsMax) {
      wake_.ring();
      return;
    }
  }
}

void Client::lose_connection(int reason) {
  for (const auto& done : connection_->tear_down()) done(false);
  // The server cannot reach the memory of a call any more, so calls with a reply are done.
  for (const uint32_t xid : table_.all()) {
    if (calls_.at(xid).replied) memory_closed(xid);
  }
  for (const uint32_t xid : table_.connection_lost()) retry_or_finish(xid, reason);
  windows_.reset();
  connection_.reset();
}

/// The connection or the attempt at one has failed under this call.
void Client::retry_or_finish(uint32_t xid, int reason) {
  Outgoing& outgoing = calls_.at(xid);
  outgoing.exposures.reset();
  outgoing.bounce.reset();
  outgoing.offered = {};
  if (outgoing.cancelled) {
    finish(xid, -ECANCELED);
  } else if (outgoing.attempts >= options_.retries ||
             (connection_ != nullptr && (outgoing.call->flags & RPCRDMA_CALL_ONCE) != 0)) {
    finish(xid, reason);
  } else {
    ++outgoing.attempts;
  }
}

/// A call is not sent twice on one connection, because the server would count it twice against its
/// credits: it takes a new one (RFC 8166 3.3; RFC 5531 9).
void Client::expire() {
  if (connection_ != nullptr && table_.overdue(now_ns())) {
    connection_->disconnect();
    lose_connection(-ETIMEDOUT);
  }
}

void Client::abort_all() {
  if (connection_ != nullptr) {
    connection_->disconnect();
    for (const auto& done : connection_->tear_down()) done(false);
  }
  for (const uint32_t xid : table_.all()) finish(xid, -ECONNABORTED);
  windows_.reset();
  connection_.reset();
}

int Client::start(rpcrdma_call& call) {
  const auto message = core::Message::of({call.pieces, call.piece_count});
  if (!message || call.reply == nullptr || call.reply_size < core::Message::kSizeMin)
    return -EINVAL;
  if (call.flags & ~unsigned{RPCRDMA_CALL_ONCE | RPCRDMA_CALL_CHUNKS}) return -EINVAL;
  if (call.piece_count > core::kSegmentsMax || call.result_count > core::kSegmentsMax)
    return -EMSGSIZE;
  for (unsigned i = 0; i < call.piece_count; ++i) {
    const rpcrdma_piece& piece = call.pieces[i];
    if (piece.memory != nullptr && !piece.memory->covers(piece.base, piece.length)) return -EINVAL;
  }
  for (unsigned i = 0; i < call.result_count; ++i) {
    rpcrdma_result& result = call.results[i];
    if ((result.flags & ~unsigned{RPCRDMA_PIECE_CONTINUED}) != 0 || result.length > UINT32_MAX ||
        (i == 0 && result.flags != 0) ||
        (result.memory != nullptr && !result.memory->covers(result.base, result.length)))
      return -EINVAL;
    result.received = 0;
  }
  if (call.reply_memory != nullptr && !call.reply_memory->covers(call.reply, call.reply_size))
    return -EINVAL;

  const Lock lock(mutex_);
  if (closing_) return -ECONNABORTED;
  if (xids_.count(&call) != 0 || !table_.add(message->xid())) return -EEXIST;
  call.status = -EINPROGRESS;
  call.reply_length = 0;
  calls_.try_emplace(message->xid(), call, *message);
  xids_[&call] = message->xid();
  send_waiting();
  const bool short_limit = call.timeout_ms != 0 && call.timeout_ms < options_.timeout_ms;
  if (connection_ == nullptr || connection_->broken() || short_limit || !callbacks_.empty())
    wake_.ring();
  return 0;
}

int Client::wait(rpcrdma_call& call) {
  Lock lock(mutex_);
  ++waiters_;
  ended_.wait(lock, [&] { return xids_.count(&call) == 0; });
  const int status = call.status;
  --waiters_;
  if (closing_) ended_.notify_all();
  return status;
}

int Client::cancel(rpcrdma_call& call) {
  const Lock lock(mutex_);
  const auto found = xids_.find(&call);
  if (found == xids_.end()) return -ENOENT;
  const uint32_t xid = found->second;
  Outgoing& outgoing = calls_.at(xid);
  if (outgoing.replied || outgoing.cancelled) return 0;  // it ends when its memory is closed
  if (!table_.is_sent(xid)) {
    finish(xid, -ECANCELED);
  } else {
    // The server may answer still, so credit and XID stay in use until it does.
    outgoing.cancelled = true;
    close_memory(xid);
  }
  wake_.ring();
  return 0;
}

int Client::register_memory(void* base, size_t length, rpcrdma_memory*& memory) {
  const Lock lock(mutex_);
  if (domain_ == nullptr) return -ENOTCONN;
  const int access =
      use_windows_ ? IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND
                   : IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
  ibv_mr* mr = domain_->register_memory(base, length, access);
  if (mr == nullptr) return -errno;
  memory = new rpcrdma_memory{domain_, mr};
  return 0;
}

uint32_t Client::next_xid() {
  const Lock lock(mutex_);
  while (table_.contains(++last_xid_)) {
  }
  return last_xid_;
}

rpcrdma_settings Client::settings() {
  const Lock lock(mutex_);
  rpcrdma_settings settings = settings_;
  settings.credits = table_.credits().granted();
  return settings;
}

/// The call's memory is closed. The caller gets the status given here.
void Client::finish(uint32_t xid, int status) {
  const auto found = calls_.find(xid);
  rpcrdma_call* call = found->second.call;
  const size_t length = found->second.reply_length;
  calls_.erase(found);
  table_.remove(xid);
  if (call != nullptr) tell(*call, status, length);
}

void Client::tell(rpcrdma_call& call, int status, size_t reply_length) {
  call.status = status;
  call.reply_length = status == 0 ? reply_length : 0;
  xids_.erase(&call);
  if (call.done != nullptr)
    callbacks_.push_back(&call);
  else
    ended_.notify_all();
}

}  // namespace rpcrdma::verbs
