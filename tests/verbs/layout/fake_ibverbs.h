// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Takes the place of libibverbs of one release, as a provider plugin sees it: the registration
// symbol with its version, the size of verbs_context and the operation table. They are written down
// independently of kernel-abi/. FAKE_RELEASE selects the release.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <string>

#include "kernel-abi/provider_abi.h"

/// What the library stores about its plugin, and what happened to the last context.
struct FakeLibrary {
  const uwarp::provider_abi::DeviceOperations* driver;
  int registrations;
  int uninitialised;
  /// Stored where a release stores sizeof(verbs_context). Another value imitates an unknown
  /// release.
  size_t claimed_size;
};
extern FakeLibrary fake;

/// sizeof(verbs_context) of FAKE_RELEASE.
size_t fake_context_size();
/// The ibv_context inside a block that the plugin returned.
ibv_context* fake_context(void* block);
/// The function that this operation calls: null if the release has no such operation, and
/// fake_dummy while the plugin has not set it.
uwarp::provider_abi::AnyFunction fake_operation(const std::string& name);
void fake_dummy();
