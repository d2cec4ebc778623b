// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "nfs/temporary_name.h"

#include <cstdio>
#include <random>

namespace uwarp::nfs {

std::string temporary_name(const std::string& name) {
  constexpr size_t kKept = 200;
  static std::random_device random;
  char suffix[32];
  snprintf(suffix, sizeof suffix, ".nfs-rdma-%08x", random());
  return "." + name.substr(0, kKept) + suffix;
}

}  // namespace uwarp::nfs
