// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "nfs/compound.h"

namespace uwarp::nfs {

XdrWriter& CompoundRequest::add(Nfs4Operation operation) {
  ++count_;
  operations_.u32(static_cast<uint32_t>(operation));
  return operations_;
}

void CompoundRequest::put_handle(const FileHandle& handle) {
  encode_handle4(add(Nfs4Operation::kPutfh), handle);
}

void CompoundRequest::encode(XdrWriter& out) const {
  out.string("");  // tag
  out.u32(kNfs4MinorVersion);
  out.u32(count_);
  out.fixed_opaque(operations_.bytes());
}

CompoundReply::CompoundReply(XdrReader& in) : in_(in), status_(static_cast<NfsStatus>(in.u32())) {
  in.opaque(kTagBytesMax);
  count_ = in.u32();
}

NfsStatus CompoundReply::status_of(Nfs4Operation operation) {
  if (count_ == 0) {
    if (status_ == NfsStatus::kOk) {
      throw XdrError("COMPOUND: fewer results than operations");
    }
    throw NfsError(status_);
  }
  --count_;
  auto answered = static_cast<Nfs4Operation>(in_.u32());
  auto status = static_cast<NfsStatus>(in_.u32());
  // In the place of an operation that the server does not know stands ILLEGAL.
  if (answered != operation && (answered != Nfs4Operation::kIllegal || status == NfsStatus::kOk)) {
    throw XdrError("COMPOUND: the result of another operation");
  }
  return status;
}

XdrReader& CompoundReply::results_of(Nfs4Operation operation) {
  NfsStatus status = status_of(operation);
  if (status != NfsStatus::kOk) {
    throw NfsError(status);
  }
  return in_;
}

}  // namespace uwarp::nfs
