// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Whether another process is of our own user.
#pragma once

#include <sys/types.h>

namespace uwarp {

/// `uid`: of the other process, as the kernel shows it to this one (SCM_CREDENTIALS, SO_PEERCRED).
/// False also where that number may stand for several users: in a user namespace every user without
/// a number of its own is shown as the overflow uid, 65534 (user_namespaces(7)).
bool is_own_user(uid_t uid);

}  // namespace uwarp
