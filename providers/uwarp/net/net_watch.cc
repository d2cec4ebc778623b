// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "net/net_watch.h"

#include <sys/epoll.h>

#include "base/log.h"
#include "base/mutex.h"
#include "os/clock.h"

namespace uwarp {

std::shared_ptr<NetWatch> NetWatch::start(Progress& progress) {
  std::shared_ptr<NetWatch> watch(new NetWatch(progress));
  const int fd = net_changes_fd();
  if (fd < 0 || !progress.add(*watch, fd, EPOLLIN | EPOLLET))
    log_event("changes of links and addresses will not be noticed: netlink cannot be watched");
  return watch;
}

void NetWatch::add(std::weak_ptr<NetListener> listener) {
  const Lock guard(mutex_);
  std::erase_if(listeners_, [](const auto& known) { return known.expired(); });
  listeners_.push_back(std::move(listener));
}

bool NetWatch::ready(uint32_t) {
  const Lock guard(notifying_);
  if (drain_net_changes()) notify_locked();
  return false;
}

void NetWatch::deadline_passed() {
  const Lock guard(notifying_);
  notify_locked();
}

void NetWatch::notify_locked() {
  const auto devices = try_refresh_net_devices();
  if (devices == nullptr) return ask_again();
  std::vector<std::shared_ptr<NetListener>> living;
  {
    const Lock guard(mutex_);
    for (const auto& known : listeners_)
      if (auto listener = known.lock()) living.push_back(std::move(listener));
  }
  for (const auto& listener : living) listener->net_changed(*devices);
}

/// What was notified is not notified again.
void NetWatch::ask_again() { progress_.set_deadline(*this, now_ns() + 200 * kNsPerMs); }

}  // namespace uwarp
