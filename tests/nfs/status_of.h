// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What an action on a tree of files ends with.
#pragma once

#include "nfs/nfs3.h"

namespace uwarp::nfs {

template <typename Action>
NfsStatus status_of(Action action) {
  try {
    action();
    return NfsStatus::kOk;
  } catch (const NfsError& error) {
    return error.status();
  }
}

}  // namespace uwarp::nfs
