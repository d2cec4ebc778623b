// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "nfs/pseudo_root.h"

#include "nfs/url.h"

namespace uwarp::nfs {

namespace {

constexpr uint64_t kEntryCookie = 3;  // 1 and 2 are not for entries

}  // namespace

PseudoRoot::PseudoRoot(const std::string& export_path) : names_(split_path(export_path)) {}

size_t PseudoRoot::depth_of(NodeId id) const {
  if (id - kFirst >= names_.size()) {
    throw NfsError(NfsStatus::kStale);
  }
  return id - kFirst;
}

Attributes PseudoRoot::attributes(NodeId id) const {
  depth_of(id);
  Attributes attributes;
  attributes.type = FileType::kDirectory;
  attributes.mode = 0555;
  attributes.link_count = 3;
  attributes.file_id = id;
  return attributes;
}

NodeId PseudoRoot::lookup(NodeId id, const std::string& name) const {
  size_t depth = depth_of(id);
  if (name != names_[depth]) {
    throw NfsError(NfsStatus::kNoent);
  }
  return at(depth + 1);
}

NodeId PseudoRoot::parent(NodeId id) const {
  size_t depth = depth_of(id);
  if (depth == 0) {
    throw NfsError(NfsStatus::kNoent);
  }
  return at(depth - 1);
}

MemoryTree::ListEntry PseudoRoot::entry(NodeId id) const {
  size_t depth = depth_of(id);
  return {kEntryCookie, at(depth + 1), names_[depth]};
}

}  // namespace uwarp::nfs
