// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "datagram/trunk_line.h"

#include <cerrno>
#include <new>
#include <utility>

#include "base/log.h"
#include "base/tuning.h"
#include "connect/connect_context.h"
#include "connect/connection.h"
#include "connect/rendezvous_message.h"
#include "connect/rendezvous_port.h"
#include "datagram/datagram_endpoint.h"
#include "datagram/trunk.h"
#include "datagram/trunks.h"
#include "os/clock.h"

namespace uwarp {
namespace {

/// A line over which nothing has gone for one to two of these is closed.
constexpr uint64_t kIdleNs = 60 * kNsPerSecond;
/// Of what goes over a trunk: docs/wire.md.
constexpr uint32_t kTrunkVersion = 1;

}  // namespace

TrunkLine::TrunkLine(Trunks& trunks, const TrunkKey& key, const NetDevice& device,
                     std::weak_ptr<Trunk> trunk, bool dialed)
    : trunks_(trunks),
      ifindex_(device.ifindex),
      trunk_(std::move(trunk)),
      dialed_(dialed),
      route_(key.peer.bytes(), key.own.bytes()) {}

TrunkLine::~TrunkLine() {
  if (endpoint_ != nullptr) endpoint_->destroy();
}

int TrunkLine::make_endpoint(const NetDevice& device) {
  QpConfig config;
  config.domain = &trunks_.frames().domain();
  config.send_cq = &completions_;
  config.recv_cq = &trunks_.polled();
  config.sink = this;
  config.regions = &trunks_.regions();
  config.max_send_wr = kDepth;
  config.max_recv_wr = 0;
  config.signal_all = true;
  auto endpoint = Endpoint::create(trunks_.context(), device, config);
  if (!endpoint) return endpoint.error();
  endpoint_ = std::move(*endpoint);
  QpAttributes init;
  init.state = QpState::kInit;
  return endpoint_->modify(init, kAttrState | kAttrAccess | kAttrPort);
}

// --- Connecting

Result<std::shared_ptr<TrunkLine>> TrunkLine::dial(Trunks& trunks, const TrunkKey& key,
                                                   const NetDevice& device, Qpn source,
                                                   std::weak_ptr<Trunk> trunk) {
  std::shared_ptr<TrunkLine> line(new TrunkLine(trunks, key, device, std::move(trunk), true));
  if (int error = line->make_endpoint(device)) return Error{error};
  Connection::ConnectOptions options;
  (void)key.own.to_sockaddr(options.local, 0);
  (void)key.peer.to_sockaddr(options.remote, key.port);
  RendezvousCall call;
  call.source = source;
  call.target = Qpn{uint32_t{key.port} << 8};
  call.psn = kTrunkVersion;
  call.capabilities = RendezvousCall::kTrunk;
  ConnectParameters parameters;
  parameters.private_data = call.encode();
  trunks.keep(line);
  auto connection = Connection::connect(trunks.context(), line->endpoint_, std::move(options),
                                        std::move(parameters), line);
  if (!connection) {
    trunks.let_go(*line);
    return Error{connection.error()};
  }
  line->set_connection(std::move(*connection));
  return line;
}

Result<std::shared_ptr<TrunkLine>> TrunkLine::answer(Trunks& trunks, const TrunkKey& key,
                                                     const NetDevice& device,
                                                     const std::shared_ptr<Connection>& request,
                                                     std::weak_ptr<Trunk> trunk) {
  std::shared_ptr<TrunkLine> line(new TrunkLine(trunks, key, device, std::move(trunk), false));
  if (int error = line->make_endpoint(device)) return Error{error};
  line->set_connection(request);
  ConnectParameters parameters;
  parameters.private_data = RendezvousAnswer{}.encode();
  trunks.keep(line);
  if (int error = request->accept(line->endpoint_, parameters, line)) {
    trunks.let_go(*line);
    return Error{error};
  }
  return line;
}

void TrunkLine::close() {
  std::shared_ptr<Connection> connection;
  {
    const std::lock_guard lock(lock_);
    connection = connection_;
  }
  if (connection == nullptr || connection->disconnect() == 0) return;
  connection->abort();
  over(0);
}

void TrunkLine::connection_established(const std::shared_ptr<Connection>&, const sockaddr_storage&,
                                       const ConnectParameters&) {
  open_.store(true, std::memory_order_relaxed);
  idle_at_ns_.store(now_ns() + kIdleNs, std::memory_order_relaxed);
  trunks_.context().progress.set_deadline(*this, idle_at_ns_.load(std::memory_order_relaxed));
  if (const auto trunk = trunk_.lock()) trunk->line_open(shared_line());
}

void TrunkLine::connection_rejected(const std::shared_ptr<Connection>&, int status,
                                    std::span<const std::byte>) {
  over(status != 0 ? status : -ECONNREFUSED);
}

void TrunkLine::connection_failed(const std::shared_ptr<Connection>&, int status) { over(status); }

void TrunkLine::connection_ended(const std::shared_ptr<Connection>&) { over(0); }

void TrunkLine::over(int status) {
  const auto self = shared_from_this();
  trunks_.context().progress.set_deadline(*this, 0);
  endpoint_->destroy();
  set_connection(nullptr);
  const auto trunk = trunk_.lock();
  if (trunk != nullptr && (dialed_ || open_.load(std::memory_order_relaxed)))
    trunk->line_over(this, status);
  trunks_.let_go(*this);
}

void TrunkLine::deadline_passed() {
  go_on(false);
  const uint64_t now = now_ns();
  uint64_t idle_at = idle_at_ns_.load(std::memory_order_relaxed);
  if (now >= idle_at) {
    if (!used_.exchange(false, std::memory_order_relaxed)) return close();
    idle_at_ns_.store(idle_at = now + kIdleNs, std::memory_order_relaxed);
  }
  trunks_.context().progress.set_deadline(*this, idle_at);
}

// --- Sending

bool TrunkLine::post(const Frame& frame) {
  const Sge sge{reinterpret_cast<uintptr_t>(frame.bytes), frame.size, frame.lkey};
  SendRequest request;
  request.opcode = SendOpcode::kSend;
  request.sges = {&sge, 1};
  const std::lock_guard lock(endpoint_->qp().post_lock());
  return endpoint_->qp().post_send_locked(request) == 0;
}

size_t TrunkLine::take_done() {
  WorkCompletion done[kDepth];
  const int count = completions_.poll(done, kDepth);
  return count > 0 ? static_cast<size_t>(count) : 0;
}

void TrunkLine::pump(uint32_t frames, uint64_t bytes) {
  if (!used_.load(std::memory_order_relaxed)) used_.store(true, std::memory_order_relaxed);
  endpoint_->qp().flush_late_posts();
  endpoint_->pump(frames, bytes);
}

void TrunkLine::transmit() { endpoint_->stream().transmit(); }

// With locks of the queue pair held.
void TrunkLine::completion_event() {
  if (const auto trunk = trunk_.lock()) trunks_.context().progress.revisit(*trunk);
}

// --- Receiving

std::span<std::byte> TrunkLine::room() {
  if (next_ < filled_) deliver();
  if (next_ < filled_) return {};
  if (buffer_ == nullptr) {
    buffer_.reset(new (std::nothrow) std::byte[kFrameBytes]);
    if (buffer_ == nullptr) {
      trunks_.context().progress.revisit(*this);
      return {};
    }
  }
  return {buffer_.get(), kFrameBytes};
}

void TrunkLine::arrived(size_t bytes) {
  if (!used_.load(std::memory_order_relaxed)) used_.store(true, std::memory_order_relaxed);
  filled_ = bytes;
  next_ = 0;
  deliver();
}

void TrunkLine::deliver() {
  while (filled_ - next_ >= DatagramHeader::kWireSize) {
    const std::byte* const at = buffer_.get() + next_;
    const DatagramHeader header = DatagramHeader::decode(at);
    const size_t size = DatagramHeader::kWireSize + header.payload_bytes;
    // Whoever sends such a thing loses what is behind it in the frame.
    if (header.payload_bytes > kMaxDatagramBytes || size > filled_ - next_) break;
    if (!deliver_one(header, at + DatagramHeader::kWireSize)) return;
    next_ += size;
  }
  filled_ = next_ = 0;
}

// False: it waits for a receive. An application that receives in a loop is behind for a moment at
// most; on a network with flow control the link would pause as well. Only once for each time that
// it has posted one, so that a queue pair that nobody looks after holds nobody up.
bool TrunkLine::deliver_one(const DatagramHeader& header, const std::byte* payload) {
  DatagramEndpoint* const endpoint = recent_.find(trunks_.endpoints(), header.destination);
  if (endpoint == nullptr || endpoint->device().ifindex != ifindex_) return true;
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
    if (waiting_ || qp.hold_for_receive(shared_line())) {
      waiting_ = true;
      return false;
    }
  }
  patience_until_ns_ = 0;
  return true;
}

bool TrunkLine::wait_for_receive(DatagramQueuePair& qp) {
  const uint64_t now = now_ns();
  if (patience_until_ns_ != 0) return now < patience_until_ns_;
  if (!qp.claim_grace()) return false;
  patience_until_ns_ = now + (several_ ? tuning::kReceiveGraceNs : tuning::kSoleReceiverGraceNs);
  trunks_.context().progress.set_deadline(*this, patience_until_ns_);
  return true;
}

// A receive has come (`told`), or the time for it is over.
void TrunkLine::go_on(bool told) {
  {
    const auto receive = endpoint_->qp().receive_side().hold();
    if (told) waiting_ = false;
    if (next_ < filled_) deliver();
    if (next_ < filled_) return;
  }
  endpoint_->resume();
}

bool TrunkLine::ready(uint32_t) {
  go_on(false);
  return false;
}

}  // namespace uwarp
