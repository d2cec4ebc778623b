// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// How two uwarps recognise each other on an rdma_cm connection: by STag and Tagged Offset of the
// zero-length RTR Write, which no receiver checks. Described in docs/wire.md.
#pragma once

#include "base/ids.h"

namespace uwarp {

/// ASCII "uwar".
inline constexpr STag kPeerMagicStag{0x75776172};
/// ASCII "p!", then 40 bits of zero, then the version of what a recognised peer may be sent.
inline constexpr TaggedOffset kPeerMagicOffset = 0x7021'0000'0000'0001;

/// STag and offset of an RTR Write that promises nothing.
inline constexpr STag kPlainRtrStag{1};

}  // namespace uwarp
