// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "nfs/node_handles.h"

#include <random>

#include "nfs/xdr.h"

namespace uwarp::nfs {

namespace {

constexpr size_t kHandleBytes = 16;

uint64_t random_instance() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

}  // namespace

NodeHandles::NodeHandles() : instance_(random_instance()) {}

FileHandle NodeHandles::handle_of(NodeId id) const {
  XdrWriter out;
  out.u64(instance_);
  out.u64(id);
  return std::move(out).take();
}

NodeId NodeHandles::node_of(const FileHandle& handle) const {
  if (handle.size() != kHandleBytes) {
    throw NfsError(NfsStatus::kBadhandle);
  }
  XdrReader fields(handle);
  if (fields.u64() != instance_) {
    throw NfsError(NfsStatus::kStale);
  }
  return fields.u64();
}

}  // namespace uwarp::nfs
