// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The name of a file that is not complete yet.
#pragma once

#include <string>

namespace uwarp::nfs {

/// ".NAME.nfs-rdma-1a2b3c4d", with NAME cut so that it stays a valid name.
std::string temporary_name(const std::string& name);

}  // namespace uwarp::nfs
