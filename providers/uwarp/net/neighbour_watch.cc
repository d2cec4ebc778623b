// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "net/neighbour_watch.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "os/clock.h"
#include "os/engine_fds.h"

namespace uwarp {
namespace {

/// After a call that found no memory.
constexpr uint64_t kAgainNs = 10 * kNsPerMs;

/// Reads all that has come. Nullopt if some notifications were lost.
std::optional<std::vector<NextHop>> read_changes(int fd) {
  std::array<std::byte, 8192> buffer;
  std::vector<NextHop> changed;
  bool lost = false;
  for (;;) {
    const long got =
        syscall(SYS_recvfrom, fd, buffer.data(), buffer.size(), MSG_DONTWAIT, nullptr, nullptr);
    if (got > 0) {
      const auto more = changed_neighbours(std::span(buffer).first(static_cast<size_t>(got)));
      changed.insert(changed.end(), more.begin(), more.end());
    } else if (got < 0 && errno == ENOBUFS) {
      lost = true;
    } else if (got == 0 || errno != EINTR) {
      break;
    }
  }
  if (lost) return std::nullopt;
  return changed;
}

}  // namespace

bool NeighbourWatch::wait(const IpAddress& destination, const Route& route, uint64_t deadline_ns,
                          std::weak_ptr<NeighbourListener> listener) {
  const auto hop = neighbour_towards(destination, route);
  if (!hop) return false;
  const NeighbourState before = neighbour_state(*hop);
  if (before == NeighbourState::kPresent || before == NeighbourState::kUntold) return false;
  uint64_t number;
  {
    const std::lock_guard guard(mutex_);
    number = ++last_number_;
    if (!add_locked({number, *hop, deadline_ns, std::move(listener)})) return false;
  }
  const bool asked = ask_for_neighbour(destination, route);
  const NeighbourState now = asked ? neighbour_state(*hop) : NeighbourState::kUntold;
  // Asked for and not in the table: this kind of device has no neighbours.
  const bool waits = now == NeighbourState::kResolving || now == NeighbourState::kFailed;
  if (waits) (void)progress_.start_helper();  // without one, threads that poll serve it
  return waits || !take_back(number);
}

bool NeighbourWatch::add_locked(Waiting waiting) {
  if (fd_ < 0) {
    const int fd = open_neighbour_changes();
    if (fd < 0) return false;
    const auto ticket = progress_.add(*this, fd, EPOLLIN | EPOLLET);
    if (!ticket) {
      close_engine_fd(fd);
      return false;
    }
    fd_ = fd;
    ticket_ = *ticket;
  }
  waiting_.push_back(std::move(waiting));
  waiting_changed_locked();
  return true;
}

bool NeighbourWatch::take_back(uint64_t number) {
  const std::lock_guard guard(mutex_);
  const size_t taken =
      std::erase_if(waiting_, [&](const Waiting& waiting) { return waiting.number == number; });
  if (taken != 0) waiting_changed_locked();
  return taken != 0;
}

void NeighbourWatch::waiting_changed_locked() {
  uint64_t first_ns = 0;
  for (const Waiting& waiting : waiting_)
    first_ns = first_ns == 0 ? waiting.deadline_ns : std::min(first_ns, waiting.deadline_ns);
  progress_.set_deadline(*this, first_ns);
  if (!waiting_.empty() || fd_ < 0) return;
  progress_.remove(std::exchange(ticket_, 0));
  close_engine_fd(std::exchange(fd_, -1));
}

bool NeighbourWatch::ready(uint32_t) {
  std::vector<Told> told;
  {
    const std::lock_guard guard(mutex_);
    if (fd_ < 0) return false;
    const auto changed = read_changes(fd_);
    told = settle_locked(changed ? &*changed : nullptr);
  }
  for (const auto& [listener, status] : told) listener->neighbour_known(status);
  return false;
}

void NeighbourWatch::deadline_passed() {
  std::vector<Told> told;
  {
    const std::lock_guard guard(mutex_);
    told = settle_locked(nullptr);
  }
  for (const auto& [listener, status] : told) listener->neighbour_known(status);
}

/// What was notified is not notified again: all are looked at.
void NeighbourWatch::out_of_memory() { progress_.set_deadline(*this, now_ns() + kAgainNs); }

std::vector<NeighbourWatch::Told> NeighbourWatch::settle_locked(
    const std::vector<NextHop>* changed) {
  std::vector<Told> told;
  std::vector<uint64_t> settled;  // in order, as waiting_ is
  const uint64_t now = now_ns();
  for (const Waiting& waiting : waiting_) {
    const bool time_is_over = now >= waiting.deadline_ns;
    const bool concerned =
        changed == nullptr || time_is_over ||
        std::find(changed->begin(), changed->end(), waiting.hop) != changed->end();
    if (!concerned) continue;
    // A notification may be older than the question: what counts is the table.
    const auto status = outcome_of_waiting(neighbour_state(waiting.hop), time_is_over);
    if (!status) continue;
    settled.push_back(waiting.number);
    if (auto listener = waiting.listener.lock()) told.push_back({std::move(listener), *status});
  }
  // From here on nothing fails.
  std::erase_if(waiting_, [&](const Waiting& waiting) {
    return std::binary_search(settled.begin(), settled.end(), waiting.number);
  });
  waiting_changed_locked();
  return told;
}

}  // namespace uwarp
