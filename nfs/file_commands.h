// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The commands that show and change files on a server. They print to stdout, and throw when
// something fails.
#pragma once

#include <string>

#include "nfs/getter.h"
#include "nfs/session.h"

namespace uwarp::nfs {

struct TransferOptions {
  CopyOptions copy;
  size_t request_bytes = 1 << 20;  // at most; the server may want less
  size_t outstanding = 8;
};

void null_command(Session& session);
void exports_command(Session& session);
void ls_command(Session& session, bool with_attributes);
void stat_command(Session& session);
void get_command(Session& session, const std::string& destination, const TransferOptions& options);
void put_command(Session& session, const std::string& source, const TransferOptions& options);
void rm_command(Session& session, bool recursive);
void mkdir_command(Session& session, bool parents);

}  // namespace uwarp::nfs
