// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "datagram/trunk_connection.h"

#include <algorithm>
#include <cerrno>
#include <new>
#include <utility>

#include "base/bytes.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/random.h"
#include "base/tuning.h"
#include "connect/connect_context.h"
#include "connect/connection.h"
#include "connect/rendezvous.h"
#include "connect/rendezvous_port.h"
#include "datagram/datagram_endpoint.h"
#include "datagram/trunk.h"
#include "datagram/trunks.h"
#include "inject/process_faults.h"
#include "os/clock.h"

namespace uwarp {

namespace {

constexpr size_t kNonceBytes = sizeof(TrunkNonce);

void append_nonce(std::vector<std::byte>& bytes, TrunkNonce nonce) {
  bytes.resize(bytes.size() + kNonceBytes);
  store_be64(bytes.data() + bytes.size() - kNonceBytes, nonce);
}

}  // namespace

TrunkNonce draw_nonce() {
  TrunkNonce nonce = 0;
  while (nonce == 0) nonce = random_word();
  return nonce;
}

std::vector<std::byte> TrunkCall::encode() const {
  RendezvousCall call;
  call.source = Qpn{uint32_t{key.own_port} << 8};
  call.target = Qpn{uint32_t{key.port} << 8};
  call.psn = kTrunkVersion;
  call.capabilities = RendezvousCall::kTrunk | (call_back ? RendezvousCall::kCallBack : 0);
  std::vector<std::byte> bytes = call.encode();
  for (const TrunkNonce nonce : nonces) append_nonce(bytes, nonce);
  return bytes;
}

std::vector<TrunkNonce> TrunkCall::nonces_of(std::span<const std::byte> private_data) {
  std::vector<TrunkNonce> nonces;
  if (private_data.size() <= RendezvousCall::kWireSize) return nonces;
  auto rest = private_data.subspan(RendezvousCall::kWireSize);
  for (; rest.size() >= kNonceBytes && nonces.size() < kMostNonces;
       rest = rest.subspan(kNonceBytes))
    nonces.push_back(load_be64(rest.data()));
  return nonces;
}

std::vector<std::byte> encode_accepted(TrunkNonce nonce) {
  std::vector<std::byte> bytes = RendezvousAnswer{}.encode();
  append_nonce(bytes, nonce);
  return bytes;
}

TrunkNonce accepted_nonce(std::span<const std::byte> private_data) {
  if (private_data.size() < RendezvousAnswer::kWireSize + kNonceBytes) return 0;
  return load_be64(private_data.data() + RendezvousAnswer::kWireSize);
}

namespace {

/// A connection over which nothing has gone for one to two of these is closed. One that is used is
/// proved again as often.
constexpr uint64_t kIdleNs = 60 * kNsPerSecond;
/// For what the peer has sent over a connection before it knew of the one that replaces it.
constexpr uint64_t kRetireNs = kNsPerSecond;

}  // namespace

TrunkConnection::TrunkConnection(Trunks& trunks, std::shared_ptr<Trunk> trunk, Role role)
    : trunks_(trunks),
      ifindex_(trunk->device().ifindex),
      trunk_(std::move(trunk)),
      role_(role),
      route_(trunk_->key.peer.bytes(), trunk_->key.own.bytes()) {}

TrunkConnection::~TrunkConnection() {
  if (!trunks_.context().alive()) return;
  if (endpoint_ != nullptr) endpoint_->destroy();
  give_back_kept();
  give_back_buffer();
}

bool TrunkConnection::only_receives() const {
  return role_ == Role::kCallBack && trunk_->key.to_itself();
}

int TrunkConnection::make_endpoint() {
  QpConfig config;
  config.domain = &trunks_.frames().domain();
  config.send_cq = &completions_;
  config.recv_cq = &trunks_.polled();
  config.sink = this;
  config.regions = &trunks_.regions();
  config.max_send_wr = kDepth;
  config.max_recv_wr = 0;
  config.signal_all = true;
  // A script without rules: the transmitter tells the peer of a wire where it asks for faults.
  ProcessFaults* const faults = ProcessFaults::instance();
  if (faults != nullptr && faults->wires().any())
    config.script = std::make_shared<FaultScript>(FaultPlan{}, 0, nullptr);
  auto endpoint = Endpoint::create(trunks_.context(), trunk_->device(), config);
  if (!endpoint) return endpoint.error();
  endpoint_ = std::move(*endpoint);
  return endpoint_->init_for_cm();
}

// --- Connecting

namespace {

/// A connection among those of the process; taken out again unless it comes to be.
class KeptConnection {
 public:
  KeptConnection(Trunks& trunks, TrunkConnection& connection)
      : trunks_(trunks), connection_(connection) {}
  ~KeptConnection() {
    if (!stays) trunks_.let_go(connection_);
  }
  KeptConnection(const KeptConnection&) = delete;
  KeptConnection& operator=(const KeptConnection&) = delete;
  bool stays = false;

 private:
  Trunks& trunks_;
  TrunkConnection& connection_;
};

}  // namespace

int TrunkConnection::dial(const TrunkCall& call) {
  Connection::ConnectOptions options;
  (void)call.key.own.to_sockaddr(options.local, 0);
  (void)call.key.peer.to_sockaddr(options.remote, call.key.port);
  options.falls_back = false;  // either side may be the first with something to send
  ConnectParameters parameters;
  parameters.private_data = call.encode();
  auto connection = Connection::connect(trunks_.context(), endpoint_, std::move(options),
                                        std::move(parameters), shared());
  if (!connection) return connection.error();
  set_connection(std::move(*connection));
  return 0;
}

Result<std::shared_ptr<TrunkConnection>> TrunkConnection::call(Trunks& trunks,
                                                               std::shared_ptr<Trunk> trunk,
                                                               TrunkNonce nonce, bool replaces) {
  const TrunkKey& key = trunk->key;
  auto port = trunks.context().ports.find(trunk->device().ifindex, key.own_port);
  if (port == nullptr) return Error{EADDRNOTAVAIL};
  std::shared_ptr<TrunkConnection> connection(
      new TrunkConnection(trunks, std::move(trunk), Role::kCall));
  connection->nonce_.store(nonce);
  connection->replaces_ = replaces;
  connection->port_ = std::move(port);
  if (int error = connection->make_endpoint()) return Error{error};
  KeptConnection kept(trunks, *connection);
  trunks.keep(connection);
  if (int error = connection->dial({key, false, {nonce}})) return Error{error};
  kept.stays = true;
  return connection;
}

Result<std::shared_ptr<TrunkConnection>> TrunkConnection::call_back(Trunks& trunks,
                                                                    std::shared_ptr<Trunk> trunk,
                                                                    std::vector<TrunkNonce> nonces,
                                                                    bool replaces) {
  const TrunkKey& key = trunk->key;
  std::shared_ptr<TrunkConnection> connection(
      new TrunkConnection(trunks, std::move(trunk), Role::kCallBack));
  connection->replaces_ = replaces;
  if (int error = connection->make_endpoint()) return Error{error};
  KeptConnection kept(trunks, *connection);
  trunks.keep(connection);
  trunks.context().progress.set_deadline(*connection, now_ns() + kCallBackNs);
  if (int error = connection->dial({key, true, std::move(nonces)})) return Error{error};
  kept.stays = true;
  return connection;
}

Result<std::shared_ptr<TrunkConnection>> TrunkConnection::answer(
    Trunks& trunks, const std::shared_ptr<Connection>& request,
    std::shared_ptr<TrunkConnection> call) {
  std::shared_ptr<TrunkConnection> connection(
      new TrunkConnection(trunks, call->trunk(), Role::kAnswer));
  connection->replaces_ = call->replaces();
  connection->nonce_.store(call->nonce());
  {
    const Lock lock(connection->lock_);
    connection->call_ = std::move(call);
  }
  if (int error = connection->make_endpoint()) return Error{error};
  connection->set_connection(request);
  ConnectParameters parameters;
  parameters.private_data = encode_accepted(connection->nonce());
  KeptConnection kept(trunks, *connection);
  trunks.keep(connection);
  if (int error = request->accept(connection->endpoint_, parameters, connection))
    return Error{error};
  kept.stays = true;
  return connection;
}

void TrunkConnection::close() {
  if (!trunk_->connection_closing(*this)) return;
  const auto connection = this->connection();
  if (connection == nullptr || connection->disconnect() == 0) return;
  give_up(0);
}

void TrunkConnection::keep_frames(FrameQueue frames) {
  {
    const Lock lock(lock_);
    kept_ = frames;
    if (!done_) return;
  }
  give_back_kept();
}

void TrunkConnection::give_back_kept() {
  FrameQueue frames;
  {
    const Lock lock(lock_);
    done_ = true;
    frames = std::exchange(kept_, {});
  }
  trunks_.frames().give_back(frames);
}

void TrunkConnection::give_up(int status) {
  if (const auto connection = this->connection()) connection->abort();
  over(status);
}

void TrunkConnection::forget_endpoints() {
  const auto receive = endpoint_->qp().receive_side().lock_exclusive();
  recent_ = {};
}

void TrunkConnection::retire() {
  const auto receive = endpoint_->qp().receive_side().lock_exclusive();
  retired_ = true;
  idle_at_ns_ = now_ns() + kRetireNs;
  set_alarm();
}

// A peer that accepts a call, instead of calling back, keeps to another version.
void TrunkConnection::connection_established(const std::shared_ptr<Connection>&,
                                             const sockaddr_storage&,
                                             const ConnectParameters& peer) {
  if (role_ == Role::kCall) return give_up(-EPROTO);
  if (role_ == Role::kCallBack) nonce_.store(accepted_nonce(peer.private_data));
  open_.store(true);
  {
    const auto receive = endpoint_->qp().receive_side().lock_exclusive();
    idle_at_ns_ = now_ns() + kIdleNs;
    set_alarm();
  }
  if (role_ == Role::kCallBack) trunks_.proved(shared());
  trunk_->connection_open(shared());
  if (const auto call = take_call()) call->over(0);
  if (over_.load())
    trunk_->connection_over(*this, 0);  // meanwhile: over() may not have seen it open
  if (!trunks_.in_use()) close();       // nor the end of the last queue pair
}

void TrunkConnection::connection_rejected(const std::shared_ptr<Connection>&, int status,
                                          std::span<const std::byte> private_data) {
  const auto answer = RendezvousAnswer::decode(private_data);
  const auto verdict = answer ? answer->verdict : RendezvousVerdict::kNotExpected;
  if (role_ == Role::kCall && verdict == RendezvousVerdict::kCallsBack) {
    set_connection(nullptr);
    return trunks_.context().progress.set_deadline(*this, now_ns() + kCallBackNs);
  }
  if (role_ == Role::kCall && verdict == RendezvousVerdict::kHeld) return over(0);
  if (verdict == RendezvousVerdict::kUnknownVersion) status = -EPROTONOSUPPORT;
  if (verdict == RendezvousVerdict::kNoSuchQp) status = -ESRCH;
  over(status != 0 ? status : -ECONNREFUSED);
}

void TrunkConnection::connection_failed(const std::shared_ptr<Connection>&, int status) {
  over(status);
}

void TrunkConnection::connection_ended(const std::shared_ptr<Connection>&) { over(0); }

void TrunkConnection::over(int status) {
  if (over_.exchange(true)) return;
  const auto self = shared_from_this();
  trunks_.context().progress.set_deadline(*this, 0);
  endpoint_->destroy();
  set_connection(nullptr);
  give_back_kept();
  {
    const auto receive = endpoint_->qp().receive_side().lock_exclusive();
    if (next_ == filled_) give_back_buffer();
  }
  if (role_ == Role::kCall)
    trunk_->call_over(nonce(), status);
  else if (open_.load())
    trunk_->connection_over(*this, status);
  else if (const auto call = take_call())
    call->over(status != 0 ? status : -ECONNABORTED);
  port_ = nullptr;
  trunks_.let_go(*this);
  if (role_ == Role::kCallBack && !open_.load()) trunks_.call_back_over(trunk_->key);
}

void TrunkConnection::deadline_passed() {
  if (!open_.load()) return give_up(-ETIMEDOUT);
  go_on(false);
  bool used;
  {
    const auto receive = endpoint_->qp().receive_side().lock_exclusive();
    const uint64_t now = now_ns();
    if (now < idle_at_ns_) return set_alarm();
    used = !retired_ && used_.exchange(false, std::memory_order_relaxed);
    if (used) {
      idle_at_ns_ = now + kIdleNs;
      set_alarm();
    }
  }
  if (used)
    trunk_->prove_again(*this);
  else
    close();
}

// There is one deadline for both. Under the receive side.
void TrunkConnection::set_alarm() {
  trunks_.context().progress.set_deadline(
      *this, patience_until_ns_ != 0 ? std::min(patience_until_ns_, idle_at_ns_) : idle_at_ns_);
}

// --- Sending

bool TrunkConnection::wire_is_full() const {
  return endpoint_->qp().script() != nullptr && endpoint_->stream().wire_is_full();
}

bool TrunkConnection::post(const Frame& frame) {
  const Sge sge{reinterpret_cast<uintptr_t>(frame.bytes), frame.size, frame.lkey};
  SendRequest request;
  request.opcode = SendOpcode::kSend;
  request.sges = {&sge, 1};
  const Lock lock(endpoint_->qp().post_lock());
  return endpoint_->qp().post_send_locked(request) == 0;
}

size_t TrunkConnection::take_done() {
  WorkCompletion done[kDepth];
  const int count = completions_.poll(done, kDepth);
  return count > 0 ? static_cast<size_t>(count) : 0;
}

void TrunkConnection::pump(uint32_t frames, uint64_t bytes) {
  if (!used_.load(std::memory_order_relaxed)) used_.store(true, std::memory_order_relaxed);
  endpoint_->qp().flush_late_posts();
  endpoint_->pump({.messages = frames, .bytes = bytes});
}

// With locks of the queue pair held.
void TrunkConnection::completion_event() { trunk_->flush_soon(); }

// --- Receiving

std::span<std::byte> TrunkConnection::space() {
  if (next_ < filled_) deliver();
  if (next_ < filled_) return {};
  if (buffer_ == nullptr) buffer_ = trunks_.buffers().take();
  if (buffer_ == nullptr) {
    trunks_.context().progress.revisit(*this);
    return {};
  }
  return {buffer_->bytes, kFrameBytes};
}

void TrunkConnection::give_back_buffer() {
  if (buffer_ != nullptr) trunks_.buffers().give_back(*std::exchange(buffer_, nullptr));
}

void TrunkConnection::arrived(size_t bytes) {
  if (!used_.load(std::memory_order_relaxed)) used_.store(true, std::memory_order_relaxed);
  filled_ = bytes;
  next_ = 0;
  deliver();
}

void TrunkConnection::deliver() {
  while (filled_ - next_ >= DatagramHeader::kWireSize) {
    const std::byte* const at = buffer_->bytes + next_;
    const DatagramHeader header = DatagramHeader::decode(at);
    const size_t size = DatagramHeader::kWireSize + header.payload_bytes;
    // A peer that sends such a datagram loses those behind it in the frame.
    if (header.payload_bytes > kMaxDatagramBytes || size > filled_ - next_) break;
    if (!deliver_one(header, at + DatagramHeader::kWireSize)) return;
    next_ += size;
  }
  filled_ = next_ = 0;
  patience_until_ns_ = 0;
}

// False: the datagram waits for a receive. An application that receives in a loop is behind for a
// moment at most; on a network with flow control the link would pause as well. After a wait in vain
// a queue pair gets no other one until it has posted a receive, so that it cannot hold up others.
bool TrunkConnection::deliver_one(const DatagramHeader& header, const std::byte* payload) {
  DatagramEndpoint* const endpoint = recent_.find(trunks_.endpoints(), header.destination);
  if (endpoint == nullptr || endpoint->device().ifindex != ifindex_) {
    end_rnr_block();
    return true;
  }
  if (header.source.value >> 8 != trunk_->key.port) [[unlikely]] {
    endpoint->qp().count_drop();  // it is not from the process that it names
    end_rnr_block();
    return true;
  }
  if (header.destination != first_) [[unlikely]] {
    several_ = first_.value != 0;
    if (!several_) first_ = header.destination;
  }
  DatagramQueuePair& qp = endpoint->qp();
  const auto route = route_.of(header.payload_bytes, header.traffic_class, header.hop_limit);
  while (qp.deliver(header, route, payload) == DatagramQueuePair::Delivery::kNoReceive) {
    if (!wait_for_receive(qp)) {
      qp.count_drop();
      break;
    }
    if (wait_for_receive(*endpoint)) return false;
  }
  end_rnr_block();
  return true;
}

// True: receive_came() is called.
bool TrunkConnection::wait_for_receive(DatagramEndpoint& endpoint) {
  if (rnr_blocked_at_ != nullptr) return true;
  rnr_blocked_at_ = endpoint.shared_from_this();
  if (endpoint.qp().wait_for_receive(shared())) return true;
  rnr_blocked_at_ = nullptr;
  return false;
}

// The datagram for which it held is done with.
void TrunkConnection::end_rnr_block() {
  patience_until_ns_ = 0;
  if (rnr_blocked_at_ != nullptr && rnr_blocked_at_->qp().stop_waiting(*this))
    rnr_blocked_at_ = nullptr;
}

bool TrunkConnection::wait_for_receive(DatagramQueuePair& qp) {
  const uint64_t now = now_ns();
  if (patience_until_ns_ != 0) return now < patience_until_ns_;
  if (!qp.claim_grace()) return false;
  patience_until_ns_ = now + (several_ ? tuning::kReceiveGraceNs : tuning::kSoleReceiverGraceNs);
  set_alarm();
  return true;
}

// A receive has come (`notified`), or the time for it is over.
void TrunkConnection::go_on(bool notified) {
  {
    const auto receive = endpoint_->qp().receive_side().lock_exclusive();
    if (notified) rnr_blocked_at_ = nullptr;
    if (next_ < filled_) deliver();
    if (next_ < filled_) return;
  }
  endpoint_->resume();
}

bool TrunkConnection::ready(uint32_t) {
  go_on(false);
  return false;
}

}  // namespace uwarp
