// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Whether a payload that is taken out of another process by the kernel arrives sooner than one that
// is copied into shared memory and out of it. The kernel looks up each page of the other process,
// which takes longer than a copy of it on some processors and much less on others.
#pragma once

namespace uwarp {

/// False where system calls of this kind are refused, or UWARP_SHM_COPIES=two. Any thread, as the
/// other one: a measurement of some 100 us at the first call.
bool pulls_work();
/// They do, and large payloads are to be taken so: UWARP_SHM_COPIES=one, or the measurement says
/// it.
bool pulls_pay();

}  // namespace uwarp
