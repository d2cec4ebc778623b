// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Whether LD_PRELOAD brings the preloaded library into a program, judged by the program's file.
#pragma once

#include <string>

namespace uwarp {

/// Why a program runs without uwarp, and what the user can do.
struct Unreached {
  std::string why;  // "is a static program, ..."; empty: nothing speaks against it
  std::string cure;
};

/// The file that execvp() would run. Empty: there is none.
std::string find_program(const std::string& name);

/// Static programs, programs for musl or for 32 bits, and programs with more rights than the user.
/// Nothing is said of scripts, and of files that cannot be read.
Unreached why_unreached(const std::string& path);

}  // namespace uwarp
