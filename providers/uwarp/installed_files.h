// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Where the libraries lie, for the programs that come with them.
#pragma once

#include <string>

namespace uwarp {

inline constexpr const char* kPreloadName = "libuwarp-preload.so";
/// Beside the preloaded library.
inline constexpr const char* kEngineName = "libuwarp.so.0";
inline constexpr const char* kPluginName = "libuwarp-rdmav34.so";

/// The folder of the running program.
std::string own_folder();
/// The preloaded library: first where a build tree or a moved installation has it, then where it
/// was to be installed. Empty: not found.
std::string find_preload();
/// The folder in which it was to be installed.
const char* install_folder();

}  // namespace uwarp
