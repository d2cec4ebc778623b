// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "connect/held_call.h"

#include <array>
#include <new>

#include "os/collapsed_log.h"

namespace uwarp {

void refuse(Connection& request, RendezvousVerdict verdict) try {
  // One for each verdict, so that a flood of one kind does not hide the others.
  static std::array<CollapsedLog, kRendezvousVerdicts> logs;
  logs[static_cast<size_t>(verdict)].event("rendezvous: refused a call of %s: %s",
                                           ip_of(request.remote_address()).to_string().c_str(),
                                           describe(verdict));
  RendezvousAnswer answer;
  answer.verdict = verdict;
  (void)request.reject(answer.encode());
} catch (const std::bad_alloc&) {
  request.abort();
}

}  // namespace uwarp
