// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Life of the engine over fork and exit, and what spans all endpoints.
#include "engine/engine.h"

#include <sched.h>

#include <cstdlib>
#include <vector>

#include "base/fork.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/process_lock.h"
#include "base/process_own.h"
#include "base/settings.h"
#include "carrier/tcp_socket.h"
#include "carrier/tls_keys.h"
#include "connect/endpoint.h"
#include "datagram/datagram_endpoint.h"
#include "inject/process_faults.h"
#include "net/neighbour.h"
#include "net/net_watch.h"
#include "os/call_cost.h"
#include "os/engine_fds.h"
#include "qp/qp_config.h"

namespace uwarp {

Result<std::unique_ptr<SilentQueuePair>> SilentQueuePair::create(Engine& engine,
                                                                 const NetDevice& device) {
  auto made = std::make_unique<SilentQueuePair>();
  QpConfig config;
  config.domain = &made->domain_;
  config.send_cq = &made->completions_;
  config.recv_cq = &made->completions_;
  config.regions = &engine.regions();
  config.max_recv_wr = 0;
  config.acknowledged = true;  // the peer may ask what became of its messages
  auto endpoint = Endpoint::create(engine.context(), device, config);
  if (!endpoint) return Error{endpoint.error()};
  made->endpoint_ = std::move(*endpoint);
  if (const int error = made->endpoint_->init_for_cm()) return Error{error};
  return made;
}

SilentQueuePair::~SilentQueuePair() {
  if (endpoint_ != nullptr) endpoint_->destroy();
}

namespace {

constinit ProcessOwn<Engine> process_engine;
constinit ProcessLock creation_lock;
constinit std::once_flag exit_once;

/// A signal handler may have forked inside a post: what it still counts is not the parent's.
void leave_stat_page() {
  if (Engine* parents = process_engine.of_parent()) parents->stat_page().leave_to_parent();
}
const InForkedChild leave_it_in_child(leave_stat_page);

/// After the last exit handler: those of the application may still send and receive. By fd and
/// without locks: exit() may have interrupted anything.
[[gnu::destructor]] void end_sockets() {
  if (process_engine.find() != nullptr) visit_engine_fds(TcpSocket::end_in_order);
}

bool has_one_processor() {
  cpu_set_t usable;
  return sched_getaffinity(0, sizeof usable, &usable) == 0 && CPU_COUNT(&usable) == 1;
}

}  // namespace

Engine::Engine()
    : stat_page_(settings().stat != StatShown::kNothing),
      capture_(Capture::create(settings().pcap)),
      trace_(TraceFile::create(settings().trace)),
      regions_(settings().adapter.max_mr, settings().adapter.max_mw),
      one_processor_(has_one_processor()),
      progress_(one_processor_ ? Progress::kOnOneProcessor : Progress::kBesideOthers),
      poller_(progress_, one_processor_),
      context_{progress_, poller_, stat_page_, capture_.get(), trace_.get()},
      trunks_(context_, regions_),
      neighbour_watch_(std::make_shared<NeighbourWatch>(progress_)) {
  if (calls_are_dear())
    log_event("a system call takes %u ns, which is long: fewer are made (UWARP_CALLS)",
              static_cast<unsigned>(call_cost_ns()));
  const TlsKeys& tls = context_.tls;
  if (!tls.error().empty())
    complain_on_stderr("uwarp: " + tls.error() + "; no device can be opened");
  else if (tls.wanted())
    log_event("connections are protected by TLS 1.3, %s", tls.library().c_str());
}

Engine& Engine::instance() {
  if (Engine* engine = process_engine.find()) return *engine;
  const Lock one_at_a_time(creation_lock);
  std::call_once(exit_once, [] { std::atexit(at_exit); });
  return process_engine.get();
}

Engine* Engine::current() { return process_engine.find(); }

void Engine::at_exit() {
  Engine* engine = process_engine.find();
  if (engine == nullptr) return;
  engine->progress_.stop_helper(&engine->trunks_);
  if (ProcessFaults* faults = ProcessFaults::instance(); faults != nullptr && faults->wires().any())
    engine->context_.endpoints.visit(
        [](const std::shared_ptr<Endpoint>& endpoint) { endpoint->stream().hurry(); });
  if (engine->trace_ != nullptr) engine->trace_->finish();
  if (settings().stat != StatShown::kAlsoAtEnd) return;
  for (const std::string& line : engine->stat_page_.totals_at_exit()) complain_on_stderr(line);
}

NetWatch& Engine::net_watch() {
  std::call_once(net_watch_once_, [&] {
    net_watch_ = NetWatch::start(progress_);
    (void)progress_.start_helper();  // without one, threads that poll serve it
  });
  return *net_watch_;
}

// A copy of what is on its way may have been impossible: then the queue pair has failed.
void Engine::notify_failure(Endpoint& endpoint) {
  if (endpoint.qp().flush_due()) endpoint.stream().transmit();
}

void Engine::remove_xrc_queue(XrcDomain& domain, const XrcQueue& queue) {
  domain.leave(queue);
  if (!alive()) return;
  context_.endpoints.visit([&](const std::shared_ptr<Endpoint>& endpoint) {
    if (endpoint->qp().config().xrc != &domain) return;
    endpoint->forget(queue);
    notify_failure(*endpoint);
  });
}

int Engine::remove_region(MemoryRegion& region) {
  if (!alive()) return 0;
  if (int error = regions_.invalidate(region)) return error;
  // Peers on this host that use it by themselves, before the queue pairs: none is held meanwhile.
  context_.gates.wait(regions_.take_out_of_directory(region), region.domain());
  // A queue pair that comes later does not find it.
  context_.endpoints.visit([&](const std::shared_ptr<Endpoint>& endpoint) {
    if (!endpoint->qp().config().may_use(region.domain())) return;
    endpoint->qp().quiesce(region);
    notify_failure(*endpoint);
  });
  // What datagrams use is copied under a lock of theirs.
  trunks_.endpoints().visit([&](const std::shared_ptr<DatagramEndpoint>& endpoint) {
    if (endpoint->qp().config().may_use(region.domain())) (void)endpoint->qp().lock_exclusive();
  });
  regions_.release(region);
  return 0;
}

int Engine::change_region(MemoryRegion& region, const RegionShape& shape) {
  if (!alive()) return 0;
  const Lock one_at_a_time(changes_mutex_);
  context_.gates.wait(regions_.take_out_of_directory(region), region.domain());
  const RegionShape old = region.shape();
  const bool moved = old.domain != shape.domain || old.address != shape.address ||
                     old.length_bytes != shape.length_bytes || old.first != shape.first ||
                     old.memory != shape.memory;
  const bool weaker = (old.access & ~shape.access & kAccessLocalWrite) != 0;
  std::vector<std::shared_ptr<Endpoint>> endpoints;
  std::vector<std::shared_ptr<DatagramEndpoint>> takers;
  trunks_.endpoints().visit(
      [&](std::shared_ptr<DatagramEndpoint> endpoint) { takers.push_back(std::move(endpoint)); });
  context_.endpoints.visit([&](std::shared_ptr<Endpoint> endpoint) {
    const QpConfig& config = endpoint->qp().config();
    if (config.may_use(old.domain) || config.may_use(shape.domain))
      endpoints.push_back(std::move(endpoint));
  });
  {
    std::vector<DatagramQueuePair::Exclusive> datagrams;
    datagrams.reserve(takers.size());
    for (const auto& one : takers) datagrams.push_back(one->qp().lock_exclusive());
    std::vector<QueuePair::Exclusive> held;
    held.reserve(endpoints.size());
    for (const auto& endpoint : endpoints) held.push_back(endpoint->qp().lock_exclusive());
    if (const int error = regions_.change(region, shape)) return error;
    for (const auto& endpoint : endpoints)
      endpoint->qp().region_changed(region, old, moved || weaker);
  }
  for (const auto& endpoint : endpoints) notify_failure(*endpoint);
  return 0;
}

}  // namespace uwarp
