// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// How the probe leaves a peer that has accepted: the connection opens as any other (RFC 6581 9.2)
// and ends in order, because some servers give up altogether when one fails half-way.
#pragma once

#include <vector>

#include "dialogue.h"

namespace doctor {

/// The first FPDUs of an initiator with nothing to say: ready-to-receive message, and a second one
/// behind it, without which the Linux siw module may not wake up. Empty: none is due.
std::vector<std::byte> opening_frames(const uwarp::MpaNegotiated& negotiated);

/// Opens, leaves the peer time to notice, ends, and reads away what comes until the peer has ended
/// too, for a second at most.
void leave_in_order(int fd, const uwarp::MpaNegotiated& negotiated, Clock::time_point end);

}  // namespace doctor
