// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A stand-in for libibverbs of one release, as a provider plugin meets it: the registration symbol
// of its number, its verbs_context size and its operation table, written down independently of
// kernel-abi/. FAKE_RELEASE picks the release.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <string>

#include "kernel-abi/provider_abi.h"

/// What the library keeps of its plugin, and what happened to the last context.
struct FakeLibrary {
  const uwarp::provider_abi::DeviceOperations* driver;
  int registrations;
  int uninitialised;
  /// Written where a release keeps sizeof(verbs_context); another value plays an unknown release.
  size_t claimed_size;
};
extern FakeLibrary fake;

/// sizeof(verbs_context) of FAKE_RELEASE.
size_t fake_context_size();
/// The ibv_context inside a block that the plugin returned.
ibv_context* fake_context(void* block);
/// What a call of this operation would reach: null if the release has no such operation, and
/// fake_dummy while the plugin has not set it.
uwarp::provider_abi::AnyFunction fake_operation(const std::string& name);
void fake_dummy();
