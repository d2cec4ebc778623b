// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// How the probe leaves a peer that has accepted: the connection opens as any other (RFC 6581 9.2)
// and ends in order, because some servers give up altogether when one fails half-way.
#pragma once

#include <vector>

#include "dialogue.h"

namespace doctor {

/// The first FPDUs of an initiator with nothing to say: ready-to-receive message, and a second one
/// behind it, without which the Linux siw module may not wake up. They show a uwarp what it needs
/// to answer with its persona; no other peer looks at that. Empty: none is due.
std::vector<std::byte> opening_frames(const uwarp::MpaNegotiated& negotiated,
                                      uwarp::PersonaWrite::Said own);

/// Opens, leaves the peer time to notice, ends, and reads what comes until the peer has ended too,
/// for a second at most. Returns the first bytes that came.
std::vector<std::byte> leave_in_order(int fd, const uwarp::MpaNegotiated& negotiated,
                                      uwarp::PersonaWrite::Said own, Clock::time_point end);

}  // namespace doctor
