// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "cm/held_call.h"

#include "base/log.h"

namespace uwarp {

void refuse(Connection& request, RendezvousVerdict verdict) {
  log_event("rendezvous: refused a call: %s", describe(verdict));
  RendezvousAnswer answer;
  answer.verdict = verdict;
  (void)request.reject(answer.encode());
}

}  // namespace uwarp
