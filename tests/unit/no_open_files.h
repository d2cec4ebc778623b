// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// While one exists, this process cannot open another file; open files stay open.
#pragma once

#include <sys/resource.h>

namespace uwarp {

class NoOpenFiles {
 public:
  NoOpenFiles() {
    getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit none{0, before_.rlim_max};
    setrlimit(RLIMIT_NOFILE, &none);
  }
  ~NoOpenFiles() { setrlimit(RLIMIT_NOFILE, &before_); }
  NoOpenFiles(const NoOpenFiles&) = delete;
  NoOpenFiles& operator=(const NoOpenFiles&) = delete;

 private:
  rlimit before_{};
};

}  // namespace uwarp
