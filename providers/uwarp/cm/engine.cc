// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Life of the engine over fork and exit, and what spans all endpoints.
#include "cm/engine.h"

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <optional>
#include <vector>

#include "base/settings.h"
#include "cm/connection.h"
#include "cm/endpoint.h"
#include "cm/neighbour_watch.h"
#include "cm/net_watch.h"
#include "cm/rendezvous_port.h"
#include "io/call_cost.h"
#include "io/engine_fds.h"
#include "io/tcp_socket.h"

namespace uwarp {
namespace {

std::atomic<Engine*> current_engine{nullptr};
/// Held over fork, so that the child finds it in a known state.
std::mutex creation_mutex;

/// After the last exit handler: those of the application may still send and receive. By fd and
/// without locks: exit() may have interrupted anything.
[[gnu::destructor]] void end_sockets() {
  if (current_engine.load() != nullptr) visit_engine_fds(TcpSocket::end_in_order);
}

bool has_one_processor() {
  cpu_set_t usable;
  return sched_getaffinity(0, sizeof usable, &usable) == 0 && CPU_COUNT(&usable) == 1;
}

}  // namespace

Engine::Engine()
    : one_processor_(has_one_processor()),
      stat_page_(settings().stat),
      capture_(Capture::create(settings().pcap)),
      trace_(TraceFile::create(settings().trace)),
      progress_(one_processor_ ? Progress::kOnOneProcessor : Progress::kBesideOthers),
      neighbour_watch_(std::make_shared<NeighbourWatch>(progress_)) {}

// On the only processor nothing can come as long as the caller keeps it. Where system calls are
// dear one of them looks and sleeps.
void Engine::poll_and_give_way(CompletionQueue& cq) {
  if (calls_are_dear) {
    (void)progress_.note_polls(1);
    return progress_.nap();
  }
  const uint32_t polls = look(cq, 1) ? 0 : idle_polls_.load(std::memory_order_relaxed) + 1;
  idle_polls_.store(polls, std::memory_order_relaxed);
  if (polls % kYields != 0)
    sched_yield();
  else if (polls != 0)
    progress_.nap();
}

Engine::~Engine() = default;

Engine& Engine::instance() {
  if (Engine* engine = current_engine.load(std::memory_order_acquire)) return *engine;
  const std::lock_guard guard(creation_mutex);
  if (Engine* engine = current_engine.load(std::memory_order_acquire)) return *engine;
  static bool hooked = false;
  if (!std::exchange(hooked, true)) {
    pthread_atfork(before_fork, after_fork_parent, after_fork_child);
    std::atexit(at_exit);
  }
  auto* engine = new Engine;
  current_engine.store(engine, std::memory_order_release);
  return *engine;
}

Engine* Engine::current() { return current_engine.load(std::memory_order_acquire); }

void Engine::before_fork() { creation_mutex.lock(); }

void Engine::after_fork_parent() { creation_mutex.unlock(); }

void Engine::after_fork_child() {
  // The parent's engine is left as it is: objects of the application may still point to it.
  if (Engine* engine = current_engine.exchange(nullptr)) engine->dead_.store(true);
  close_engine_fds_in_child();
  creation_mutex.unlock();
}

void Engine::at_exit() {
  Engine* engine = current_engine.load(std::memory_order_acquire);
  if (engine == nullptr) return;
  engine->progress_.stop_helper();
  if (engine->trace_ != nullptr) engine->trace_->finish();
}

NetWatch& Engine::net_watch() {
  std::call_once(net_watch_once_, [&] {
    net_watch_ = NetWatch::start(progress_);
    (void)ensure_helper_thread();  // without one, whoever polls serves it
  });
  return *net_watch_;
}

std::shared_ptr<Endpoint> Engine::find(Qpn number) {
  const std::lock_guard guard(endpoints_mutex_);
  const auto found = endpoints_.find(number);
  return found == endpoints_.end() ? nullptr : found->second.lock();
}

template <typename Visit>
void Engine::visit_endpoints(Visit visit) {
  std::array<std::shared_ptr<Endpoint>, 64> some;
  Qpn next{0};
  for (size_t count = some.size(); count == some.size();) {
    count = 0;
    {
      const std::lock_guard guard(endpoints_mutex_);
      for (auto at = endpoints_.lower_bound(next); at != endpoints_.end() && count != some.size();
           ++at) {
        next.value = at->first.value + 1;
        if (some[count] = at->second.lock(); some[count] != nullptr) ++count;
      }
    }
    for (size_t i = 0; i < count; ++i) visit(std::move(some[i]));
  }
}

// A copy of what is on its way may have been impossible: then the queue pair has failed.
void Engine::tell_of_failure(Endpoint& endpoint) {
  if (endpoint.qp().flush_due()) endpoint.stream().transmit();
}

int Engine::remove_region(MemoryRegion& region) {
  if (!alive()) return 0;
  if (int error = regions_.invalidate(region)) return error;
  // A queue pair that comes later does not find it.
  visit_endpoints([&](const std::shared_ptr<Endpoint>& endpoint) {
    if (endpoint->qp().config().domain != region.domain) return;
    endpoint->qp().quiesce(region);
    tell_of_failure(*endpoint);
  });
  regions_.release(region);
  return 0;
}

int Engine::change_region(MemoryRegion& region, const RegionShape& shape) {
  if (!alive()) return 0;
  const std::lock_guard one_at_a_time(changes_mutex_);
  const ProtectionDomain* old_domain = region.domain;
  const std::byte* old_base = region.base;
  const uint64_t old_length = region.length_bytes;
  const bool moved = old_domain != shape.domain || old_base != shape.address ||
                     old_length != shape.length_bytes || region.first != shape.first ||
                     region.memory != shape.memory;
  const bool weaker = (region.access & ~shape.access & kAccessLocalWrite) != 0;
  std::vector<std::shared_ptr<Endpoint>> endpoints;
  visit_endpoints([&](std::shared_ptr<Endpoint> endpoint) {
    const ProtectionDomain* domain = endpoint->qp().config().domain;
    if (domain == old_domain || domain == shape.domain) endpoints.push_back(std::move(endpoint));
  });
  {
    std::vector<QueuePair::Held> held;
    held.reserve(endpoints.size());
    for (const auto& endpoint : endpoints) held.push_back(endpoint->qp().hold());
    if (const int error = regions_.change(region, shape)) return error;
    for (const auto& endpoint : endpoints)
      endpoint->qp().region_changed(region, old_base, old_length, moved || weaker);
  }
  for (const auto& endpoint : endpoints) tell_of_failure(*endpoint);
  return 0;
}

Result<Engine::Place> Engine::reserve(const NetDevice& device) {
  const std::lock_guard guard(ports_mutex_);
  for (const auto& port : ports_) {
    if (port->ifindex() != device.ifindex) continue;
    if (const auto number = port->take_number()) return Place{port, *number};
  }
  auto made = RendezvousPort::reserve(*this, device);
  if (!made) return Error{made.error()};
  ports_.push_back(*made);
  return Place{*made, *(*made)->take_number()};
}

void Engine::enter(Qpn number, std::weak_ptr<Endpoint> endpoint) {
  const std::lock_guard guard(endpoints_mutex_);
  endpoints_[number] = std::move(endpoint);
}

void Engine::leave(const Place& place) {
  {
    const std::lock_guard guard(endpoints_mutex_);
    endpoints_.erase(place.number);
  }
  std::shared_ptr<RendezvousPort> unused;  // closed after the lock
  const std::lock_guard guard(ports_mutex_);
  if (!place.port->give_back(place.number)) return;
  // One that never listened stays for the next queue pair: those of rdma_cm come and go.
  const auto spare = [&](const auto& port) {
    return port->ifindex() == place.port->ifindex() && port->spare();
  };
  if (place.port->spare() && std::count_if(ports_.begin(), ports_.end(), spare) == 1) return;
  const auto found = std::find(ports_.begin(), ports_.end(), place.port);
  if (found == ports_.end()) return;
  unused = std::move(*found);
  ports_.erase(found);
}

std::shared_ptr<Connection> Engine::keep(std::shared_ptr<Connection> connection) {
  rlimit open_files{};
  (void)getrlimit(RLIMIT_NOFILE, &open_files);
  const std::lock_guard guard(draining_mutex_);
  const size_t places = draining_places(open_files.rlim_cur);
  return draining_.enter(std::move(connection), places).value_or(nullptr);
}

void Engine::let_go(Connection& connection) {
  std::optional<std::shared_ptr<Connection>> last;  // let go of after the lock
  const std::lock_guard guard(draining_mutex_);
  last = draining_.leave(connection.shared());
}

}  // namespace uwarp
