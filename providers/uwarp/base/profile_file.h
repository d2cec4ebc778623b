// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The file of a profile: where it lies, and what it says.
#pragma once

#include <string>

#include "base/adapter_profile.h"

namespace uwarp {

struct ProfileFile {
  /// Finds and reads the profile. `wanted`: a path if there is a slash in it, else the name of a
  /// profile that comes with uwarp. `folder`: of the library or program that asks, from where the
  /// installed profiles are looked for. Raw system calls.
  static ProfileFile read(const std::string& wanted, const std::string& folder);

  std::string path;
  AdapterProfile profile;
  std::string error;  // empty: the profile is whole
};

/// The folder of the library or program that this function is in.
std::string own_library_folder();

}  // namespace uwarp
