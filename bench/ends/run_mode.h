// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// A program's modes by name. Apart from command_line.h, which takes seconds to compile.
#pragma once

#include <cstdio>
#include <map>
#include <string>

namespace uwarp::bench {

template <typename Options>
using Modes = std::map<std::string, void (*)(const Options&)>;

/// Runs the mode of the options. The program's exit status: 2 if there is none of that name.
template <typename Options>
int run_mode(const char* program, const Modes<Options>& modes, const Options& options) {
  const auto mode = modes.find(options.mode);
  if (mode == modes.end()) {
    std::fprintf(stderr, "%s: no mode %s\n", program, options.mode.c_str());
    return 2;
  }
  mode->second(options);
  return 0;
}

}  // namespace uwarp::bench
