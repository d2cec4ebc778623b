// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// How many connections may drain.
#include "connect/draining_connections.h"

#include <sys/resource.h>

#include <optional>
#include <utility>

namespace uwarp {

std::shared_ptr<Connection> DrainingConnections::keep(std::shared_ptr<Connection> connection) {
  rlimit open_files{};
  (void)getrlimit(RLIMIT_NOFILE, &open_files);
  const std::lock_guard guard(mutex_);
  const size_t places = draining_places(open_files.rlim_cur);
  return places_.enter(std::move(connection), places).value_or(nullptr);
}

void DrainingConnections::let_go(const std::shared_ptr<Connection>& connection) {
  std::optional<std::shared_ptr<Connection>> last;  // let go of after the lock
  const std::lock_guard guard(mutex_);
  last = places_.leave(connection);
}

}  // namespace uwarp
