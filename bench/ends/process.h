// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// What each of the programs does as a process.
#pragma once

#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>

namespace uwarp::bench {

/// Ends the program: `what` has failed, errno says why.
[[noreturn]] inline void die(const char* what) {
  std::perror(what);
  std::exit(1);
}

/// As many open files as the hard limit allows.
inline void raise_file_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) die("getrlimit");
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) die("setrlimit");
}

}  // namespace uwarp::bench
