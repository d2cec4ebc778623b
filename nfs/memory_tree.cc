// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "nfs/memory_tree.h"

#include <algorithm>
#include <chrono>
#include <new>

namespace uwarp::nfs {

namespace {

constexpr uint32_t kMayExecute = 1;
constexpr uint32_t kMayWrite = 2;
constexpr uint32_t kMayRead = 4;
constexpr uint32_t kModeBits = 07777;
constexpr uint64_t kDirectoryBytes = 4096;
constexpr uint64_t kSelfCookie = 1;
constexpr uint64_t kParentCookie = 2;

NfsTime now() {
  using namespace std::chrono;
  auto since = system_clock::now().time_since_epoch();
  auto whole = duration_cast<seconds>(since);
  return {static_cast<uint32_t>(whole.count()),
          static_cast<uint32_t>(duration_cast<nanoseconds>(since - whole).count())};
}

bool permits(const Caller& caller, const Attributes& attributes, uint32_t wanted) {
  if (caller.uid == 0) {
    // As in other file systems: root may do all, but execute only what some user may execute.
    return !(wanted & kMayExecute) || attributes.type == FileType::kDirectory ||
           (attributes.mode & 0111);
  }
  uint32_t bits = attributes.mode;
  if (caller.uid == attributes.uid) {
    bits >>= 6;
  } else if (caller.gid == attributes.gid ||
             std::ranges::find(caller.groups, attributes.gid) != caller.groups.end()) {
    bits >>= 3;
  }
  return (bits & wanted) == wanted;
}

void demand(const Caller& caller, const Attributes& attributes, uint32_t wanted) {
  if (!permits(caller, attributes, wanted)) {
    throw NfsError(NfsStatus::kAcces);
  }
}

/// The owner may read and write against the mode: a process may have opened the file before its
/// mode changed, which the server cannot know (RFC 1813, section 4.4).
void demand_on_open_file(const Caller& caller, const Attributes& attributes, uint32_t wanted) {
  if (caller.uid != attributes.uid) {
    demand(caller, attributes, wanted);
  }
}

void check_name(const std::string& name) {
  if (name.size() > kNameBytesMax) {
    throw NfsError(NfsStatus::kNametoolong);
  }
  if (name.empty() || name.find('/') != std::string::npos || name.find('\0') != std::string::npos) {
    throw NfsError(NfsStatus::kInval);
  }
}

void check_new_name(const std::string& name) {
  check_name(name);
  if (name == "." || name == "..") {
    throw NfsError(NfsStatus::kExist);
  }
}

void touch(Attributes& attributes) { attributes.modified = attributes.changed = now(); }

}  // namespace

MemoryTree::MemoryTree(uint64_t bytes_max, bool read_only)
    : bytes_max_(bytes_max), read_only_(read_only) {
  Attributes attributes;
  attributes.type = FileType::kDirectory;
  attributes.mode = 0755;
  adopt_root(attributes);
}

MemoryTree::Node& MemoryTree::node(NodeId id) {
  auto found = nodes_.find(id);
  if (found == nodes_.end()) {
    throw NfsError(NfsStatus::kStale);
  }
  return found->second;
}

const MemoryTree::Node& MemoryTree::node(NodeId id) const {
  return const_cast<MemoryTree*>(this)->node(id);
}

MemoryTree::Node& MemoryTree::directory(NodeId id) {
  Node& found = node(id);
  if (found.attributes.type != FileType::kDirectory) {
    throw NfsError(NfsStatus::kNotdir);
  }
  return found;
}

const MemoryTree::Node& MemoryTree::directory(NodeId id) const {
  return const_cast<MemoryTree*>(this)->directory(id);
}

MemoryTree::Node& MemoryTree::file(NodeId id) {
  Node& found = node(id);
  if (found.attributes.type == FileType::kDirectory) {
    throw NfsError(NfsStatus::kIsdir);
  }
  if (found.attributes.type != FileType::kRegular) {
    throw NfsError(NfsStatus::kInval);
  }
  return found;
}

MemoryTree::Node& MemoryTree::directory_to_change(const Caller& caller, NodeId id,
                                                  const std::string& name) {
  Node& found = directory(id);
  check_writable();
  check_new_name(name);
  demand(caller, found.attributes, kMayWrite | kMayExecute);
  return found;
}

void MemoryTree::check_writable() const {
  if (read_only_) {
    throw NfsError(NfsStatus::kRofs);
  }
}

void MemoryTree::charge(uint64_t before, uint64_t after) {
  uint64_t others = bytes_used_ - before;
  if (after > before && (after > bytes_max_ || others > bytes_max_ - after)) {
    throw NfsError(NfsStatus::kNospc);
  }
  bytes_used_ = others + after;
}

Attributes MemoryTree::attributes(NodeId id) const {
  const Node& found = node(id);
  Attributes attributes = found.attributes;
  attributes.file_id = id;
  attributes.filesystem_id = 1;
  switch (attributes.type) {
    case FileType::kRegular:
      attributes.size = found.content.size();
      break;
    case FileType::kSymlink:
      attributes.size = found.target.size();
      break;
    default:
      attributes.size = kDirectoryBytes;
      break;
  }
  attributes.used = attributes.size;
  return attributes;
}

void MemoryTree::resize(Node& file, uint64_t size) {
  charge(file.content.size(), size);
  try {
    file.content.resize(size);
  } catch (const std::bad_alloc&) {
    charge(size, file.content.size());
    throw NfsError(NfsStatus::kNospc);
  }
}

void MemoryTree::apply(Node& changed, const NewAttributes& wanted) {
  using How = NewAttributes::NewTime::How;
  Attributes& attributes = changed.attributes;
  attributes.mode = wanted.mode.value_or(attributes.mode) & kModeBits;
  attributes.uid = wanted.uid.value_or(attributes.uid);
  attributes.gid = wanted.gid.value_or(attributes.gid);
  attributes.changed = now();
  if (wanted.size && *wanted.size != changed.content.size()) {
    resize(changed, *wanted.size);
    attributes.modified = attributes.changed;
  }
  if (wanted.accessed.how != How::kKeep) {
    attributes.accessed =
        wanted.accessed.how == How::kServerTime ? attributes.changed : wanted.accessed.time;
  }
  if (wanted.modified.how != How::kKeep) {
    attributes.modified =
        wanted.modified.how == How::kServerTime ? attributes.changed : wanted.modified.time;
  }
}

void MemoryTree::set_attributes(const Caller& caller, NodeId id, const NewAttributes& wanted,
                                const std::optional<NfsTime>& only_if_changed_at) {
  using How = NewAttributes::NewTime::How;
  Node& changed = node(id);
  check_writable();
  if (only_if_changed_at && *only_if_changed_at != changed.attributes.changed) {
    throw NfsError(NfsStatus::kNotSync);
  }
  bool owner = caller.uid == 0 || caller.uid == changed.attributes.uid;
  bool gives_away = (wanted.uid && *wanted.uid != changed.attributes.uid) ||
                    (wanted.gid && *wanted.gid != changed.attributes.gid);
  if ((gives_away && caller.uid != 0) || (wanted.mode && !owner) ||
      ((wanted.accessed.how == How::kClientTime || wanted.modified.how == How::kClientTime) &&
       !owner)) {
    throw NfsError(NfsStatus::kPerm);
  }
  if (wanted.size) {
    file(id);  // or an error
    demand_on_open_file(caller, changed.attributes, kMayWrite);
  }
  if (!owner &&
      (wanted.accessed.how == How::kServerTime || wanted.modified.how == How::kServerTime)) {
    demand(caller, changed.attributes, kMayWrite);
  }
  apply(changed, wanted);
}

uint32_t MemoryTree::access(const Caller& caller, NodeId id, uint32_t wanted) const {
  const Attributes& attributes = node(id).attributes;
  bool is_directory = attributes.type == FileType::kDirectory;
  uint32_t granted = 0;
  if (permits(caller, attributes, kMayRead)) {
    granted |= kAccessRead;
  }
  if (permits(caller, attributes, kMayExecute)) {
    granted |= is_directory ? kAccessLookup : kAccessExecute;
  }
  if (permits(caller, attributes, kMayWrite) && !read_only_) {
    granted |= kAccessModify | kAccessExtend | (is_directory ? kAccessDelete : 0);
  }
  return granted & wanted;
}

NodeId MemoryTree::lookup(const Caller& caller, NodeId id, const std::string& name) const {
  const Node& searched = directory(id);
  check_name(name);
  demand(caller, searched.attributes, kMayExecute);
  if (name == ".") {
    return id;
  }
  if (name == "..") {
    return searched.parent;
  }
  auto found = searched.entries.find(name);
  if (found == searched.entries.end()) {
    throw NfsError(NfsStatus::kNoent);
  }
  return found->second.id;
}

std::string MemoryTree::read_link(NodeId id) const {
  const Node& found = node(id);
  if (found.attributes.type != FileType::kSymlink) {
    throw NfsError(NfsStatus::kInval);
  }
  return found.target;
}

MemoryTree::Piece MemoryTree::read(const Caller& caller, NodeId id, uint64_t offset, size_t count) {
  Node& read = file(id);
  // A user that may execute a file must be able to read it (RFC 1813, section 4.4).
  if (!permits(caller, read.attributes, kMayExecute)) {
    demand_on_open_file(caller, read.attributes, kMayRead);
  }
  ConstBytes data = read.content.range(offset, count);
  read.attributes.accessed = now();
  return {data, read.content.owner(), offset + data.size() >= read.content.size()};
}

void MemoryTree::write(const Caller& caller, NodeId id, uint64_t offset, ConstBytes data) {
  Node& written = file(id);
  check_writable();
  demand_on_open_file(caller, written.attributes, kMayWrite);
  if (data.size() > UINT64_MAX - offset) {
    throw NfsError(NfsStatus::kFbig);
  }
  if (offset + data.size() > written.content.size() && !data.empty()) {
    resize(written, offset + data.size());
  }
  written.content.write(offset, data);
  touch(written.attributes);
}

void MemoryTree::enter(Node& directory, const std::string& name, NodeId id) {
  uint64_t cookie = directory.next_cookie++;
  directory.entries.emplace(name, Entry{id, cookie});
  directory.names.emplace(cookie, name);
  touch(directory.attributes);
}

void MemoryTree::leave(Node& directory, const std::string& name) {
  auto found = directory.entries.find(name);
  directory.names.erase(found->second.cookie);
  directory.entries.erase(found);
  touch(directory.attributes);
}

NodeId MemoryTree::add(NodeId parent, const std::string& name, const Attributes& attributes) {
  charge(0, kNodeBytes);
  NodeId id = next_id_++;
  Node& added = nodes_[id];
  added.attributes = attributes;
  if (attributes.type == FileType::kDirectory) {
    added.parent = parent;
    added.attributes.link_count = 2;
    ++node(parent).attributes.link_count;
  }
  enter(node(parent), name, id);
  return id;
}

NodeId MemoryTree::make(const Caller& caller, NodeId parent, const std::string& name, FileType type,
                        const NewAttributes& wanted, uint32_t default_mode) {
  Node& into = directory_to_change(caller, parent, name);
  if (into.entries.contains(name)) {
    throw NfsError(NfsStatus::kExist);
  }
  Attributes attributes;
  attributes.type = type;
  attributes.mode = default_mode;
  attributes.uid = caller.uid;
  attributes.gid = caller.gid;
  attributes.accessed = attributes.modified = attributes.changed = now();
  NodeId id = add(parent, name, attributes);
  NewAttributes permitted = wanted;
  if (caller.uid != 0) {
    permitted.uid.reset();
    permitted.gid.reset();
  }
  if (type != FileType::kRegular) {
    permitted.size.reset();
  }
  try {
    apply(node(id), permitted);
  } catch (const NfsError&) {
    leave(node(parent), name);
    unlink(id);
    throw;
  }
  return id;
}

NodeId MemoryTree::create(const Caller& caller, NodeId parent, const std::string& name,
                          CreateHow how, const NewAttributes& wanted,
                          const CreateVerifier& verifier) {
  Node& into = directory_to_change(caller, parent, name);
  auto found = into.entries.find(name);
  if (found == into.entries.end()) {
    NodeId id = make(caller, parent, name, FileType::kRegular, wanted, 0644);
    node(id).verifier = verifier;
    return id;
  }
  NodeId id = found->second.id;
  if (how == CreateHow::kExclusive && node(id).verifier == verifier) {
    return id;  // the same call once more
  }
  if (how != CreateHow::kUnchecked) {
    throw NfsError(NfsStatus::kExist);
  }
  file(id);  // or an error
  NewAttributes only_size;
  only_size.size = wanted.size;
  set_attributes(caller, id, only_size, std::nullopt);
  return id;
}

NodeId MemoryTree::make_directory(const Caller& caller, NodeId parent, const std::string& name,
                                  const NewAttributes& wanted) {
  return make(caller, parent, name, FileType::kDirectory, wanted, 0755);
}

NodeId MemoryTree::make_symlink(const Caller& caller, NodeId parent, const std::string& name,
                                const std::string& target, const NewAttributes& wanted) {
  NodeId id = make(caller, parent, name, FileType::kSymlink, wanted, 0777);
  node(id).target = target;
  return id;
}

void MemoryTree::unlink(NodeId id) {
  Node& unlinked = node(id);
  bool is_directory = unlinked.attributes.type == FileType::kDirectory;
  if (is_directory) {
    --node(unlinked.parent).attributes.link_count;
  } else if (--unlinked.attributes.link_count > 0) {
    unlinked.attributes.changed = now();
    charge(kNodeBytes, 0);
    return;
  }
  charge(unlinked.content.size() + kNodeBytes, 0);
  nodes_.erase(id);
}

void MemoryTree::remove(const Caller& caller, NodeId parent, const std::string& name) {
  NodeId id = lookup(caller, parent, name);
  Node& from = directory_to_change(caller, parent, name);
  if (node(id).attributes.type == FileType::kDirectory) {
    throw NfsError(NfsStatus::kIsdir);
  }
  leave(from, name);
  unlink(id);
}

void MemoryTree::remove_directory(const Caller& caller, NodeId parent, const std::string& name) {
  NodeId id = lookup(caller, parent, name);
  Node& from = directory_to_change(caller, parent, name);
  if (!directory(id).entries.empty()) {
    throw NfsError(NfsStatus::kNotempty);
  }
  leave(from, name);
  unlink(id);
}

bool MemoryTree::is_inside(NodeId id, NodeId ancestor) const {
  while (id != ancestor && id != kRoot) {
    id = node(id).parent;
  }
  return id == ancestor;
}

void MemoryTree::check_replaceable(const Node& moved, const Node& replaced) const {
  bool moves_directory = moved.attributes.type == FileType::kDirectory;
  if (moves_directory != (replaced.attributes.type == FileType::kDirectory)) {
    throw NfsError(NfsStatus::kExist);
  }
  if (!replaced.entries.empty()) {
    throw NfsError(NfsStatus::kNotempty);
  }
}

void MemoryTree::rename(const Caller& caller, NodeId from, const std::string& from_name, NodeId to,
                        const std::string& to_name) {
  Node& source = directory_to_change(caller, from, from_name);
  Node& destination = directory_to_change(caller, to, to_name);
  NodeId id = lookup(caller, from, from_name);
  Node& moved = node(id);
  bool is_directory = moved.attributes.type == FileType::kDirectory;
  if (is_directory && is_inside(to, id)) {
    throw NfsError(NfsStatus::kInval);
  }
  if (auto found = destination.entries.find(to_name); found != destination.entries.end()) {
    NodeId replaced = found->second.id;
    if (replaced == id) {
      return;
    }
    check_replaceable(moved, node(replaced));
    leave(destination, to_name);
    unlink(replaced);
  }
  leave(source, from_name);
  enter(destination, to_name, id);
  if (is_directory) {
    --source.attributes.link_count;
    ++destination.attributes.link_count;
    moved.parent = to;
  }
  moved.attributes.changed = now();
}

void MemoryTree::link(const Caller& caller, NodeId linked, NodeId parent, const std::string& name) {
  Node& into = directory_to_change(caller, parent, name);
  Node& target = node(linked);
  if (target.attributes.type == FileType::kDirectory) {
    throw NfsError(NfsStatus::kIsdir);
  }
  if (into.entries.contains(name)) {
    throw NfsError(NfsStatus::kExist);
  }
  if (target.attributes.link_count == UINT16_MAX) {
    throw NfsError(NfsStatus::kMlink);
  }
  charge(0, kNodeBytes);
  enter(into, name, linked);
  ++target.attributes.link_count;
  target.attributes.changed = now();
}

std::vector<MemoryTree::ListEntry> MemoryTree::list(const Caller& caller, NodeId id,
                                                    uint64_t cookie, size_t count) const {
  const Node& listed = directory(id);
  demand(caller, listed.attributes, kMayRead);
  std::vector<ListEntry> entries;
  if (cookie < kSelfCookie && entries.size() < count) {
    entries.push_back({kSelfCookie, id, "."});
  }
  if (cookie < kParentCookie && entries.size() < count) {
    entries.push_back({kParentCookie, listed.parent, ".."});
  }
  for (auto next = listed.names.upper_bound(cookie);
       next != listed.names.end() && entries.size() < count; ++next) {
    entries.push_back({next->first, listed.entries.at(next->second).id, next->second});
  }
  return entries;
}

NodeId MemoryTree::adopt(NodeId parent, const std::string& name, const Attributes& attributes) {
  check_new_name(name);
  NfsTime modified = node(parent).attributes.modified;
  Attributes adopted = attributes;
  adopted.link_count = 1;
  adopted.mode &= kModeBits;
  NodeId id = add(parent, name, adopted);
  node(parent).attributes.modified = modified;
  return id;
}

void MemoryTree::adopt_content(NodeId id, uint64_t offset, ConstBytes data) {
  Node& written = file(id);
  if (offset + data.size() > written.content.size()) {
    resize(written, offset + data.size());
  }
  written.content.write(offset, data);
}

void MemoryTree::adopt_size(NodeId id, uint64_t size) {
  Node& sized = file(id);
  if (size > sized.content.size()) {
    resize(sized, size);
  }
}

void MemoryTree::adopt_target(NodeId id, const std::string& target) { node(id).target = target; }

void MemoryTree::adopt_root(const Attributes& attributes) {
  Node& root = nodes_[kRoot];
  root.attributes = attributes;
  root.attributes.mode &= kModeBits;
  root.attributes.link_count = 2;
  root.parent = kRoot;
}

}  // namespace uwarp::nfs
