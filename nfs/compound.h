// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The client's side of COMPOUND, the one procedure of NFS version 4 (RFC 7530, section 15.2):
// operations are put one behind the other, and their results are taken in the same order.
#pragma once

#include <cstdint>

#include "nfs/nfs4.h"

namespace uwarp::nfs {

class CompoundRequest {
 public:
  /// Most bytes of a COMPOUND's results besides those of its operations: we send no tag.
  static constexpr size_t kReplyBytes = 12;
  /// Operation and status.
  static constexpr size_t kResultBytes = 8;

  /// Append the arguments of the operation to the result.
  XdrWriter& add(Nfs4Operation operation);
  void put_handle(const FileHandle& handle);

  void encode(XdrWriter& out) const;

 private:
  XdrWriter operations_;
  uint32_t count_ = 0;
};

class CompoundReply {
 public:
  /// Takes the results off `in` as they are asked for.
  explicit CompoundReply(XdrReader& in);

  /// The status of the next operation, which must be this one. Throws NfsError if an operation
  /// before it has failed.
  NfsStatus status_of(Nfs4Operation operation);
  /// The results behind that status.
  XdrReader& reader() { return in_; }
  /// The results of the next operation, or its status as NfsError.
  XdrReader& results_of(Nfs4Operation operation);

 private:
  XdrReader& in_;
  NfsStatus status_;
  uint32_t count_ = 0;
};

}  // namespace uwarp::nfs
