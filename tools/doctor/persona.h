// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Whether the programs of a peer see the same kind of adapter as those here: docs/wire.md,
// "Personas".
#pragma once

#include <cstddef>
#include <span>

#include "protocol/wire/control_writes.h"

namespace doctor {

/// What FPDUs of a peer say, the first of which begins at the front. The last one may be cut.
uwarp::PersonaWrite::Said persona_in(std::span<const std::byte> fpdus);

}  // namespace doctor
