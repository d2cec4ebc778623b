// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "nfs/nfs3_service.h"

#include <algorithm>

namespace uwarp::nfs {

namespace {

constexpr uint32_t kPropertyLink = 0x01;
constexpr uint32_t kPropertySymlink = 0x02;
constexpr uint32_t kPropertyHomogeneous = 0x08;
constexpr uint32_t kPropertyCanSetTime = 0x10;
constexpr size_t kAttributesBytes = 84;
/// Attributes, verifier, and the two words at the end of a listing.
constexpr size_t kListFrameBytes = 4 + kAttributesBytes + 8 + 4 + 4;
constexpr size_t kReadFrameBytes = 4 + 4 + kAttributesBytes + 4 + 4 + 4;

}  // namespace

const std::array<Nfs3Service::Procedure, kNfsProcedureCount> Nfs3Service::kProcedures = {{
    {&Nfs3Service::null, 0, true},     {&Nfs3Service::getattr, 0, true},
    {&Nfs3Service::setattr, 2, false}, {&Nfs3Service::lookup, 1, true},
    {&Nfs3Service::access, 1, true},   {&Nfs3Service::readlink, 1, true},
    {&Nfs3Service::read, 1, true},     {&Nfs3Service::write, 2, true},
    {&Nfs3Service::create, 2, false},  {&Nfs3Service::mkdir, 2, false},
    {&Nfs3Service::symlink, 2, false}, {&Nfs3Service::mknod, 2, true},  // always refused
    {&Nfs3Service::remove, 2, false},  {&Nfs3Service::rmdir, 2, false},
    {&Nfs3Service::rename, 4, false},  {&Nfs3Service::link, 3, false},
    {&Nfs3Service::readdir, 1, true},  {&Nfs3Service::readdirplus, 1, true},
    {&Nfs3Service::fsstat, 1, true},   {&Nfs3Service::fsinfo, 1, true},
    {&Nfs3Service::pathconf, 1, true}, {&Nfs3Service::commit, 2, true},
}};

bool Nfs3Service::is_idempotent(uint32_t procedure) const {
  return procedure >= kNfsProcedureCount || kProcedures[procedure].idempotent;
}

void Nfs3Service::call(uint32_t number, const Caller& caller, XdrReader& arguments,
                       const ReplyRoom& room, ServiceReply& reply) {
  if (number >= kNfsProcedureCount) {
    throw NoSuchProcedure();
  }
  const Procedure& procedure = kProcedures[number];
  size_t begin = reply.message.size();
  Request request{caller, arguments, room, reply, reply.message};
  try {
    (this->*procedure.serve)(request);
  } catch (const NfsError& error) {
    reply.message.truncate(begin);
    reply.message.u32(static_cast<uint32_t>(error.status()));
    for (unsigned i = 0; i < procedure.failure_words; ++i) {
      reply.message.boolean(false);
    }
  }
}

void Nfs3Service::begin_success(Request& request) const {
  request.out.u32(static_cast<uint32_t>(NfsStatus::kOk));
}

void Nfs3Service::encode_attributes(XdrWriter& out, NodeId id) const {
  out.boolean(true);
  encode(out, tree_->attributes(id));
}

void Nfs3Service::encode_weak_cache_data(XdrWriter& out, NodeId id) const {
  out.boolean(false);  // nothing about before the operation
  encode_attributes(out, id);
}

void Nfs3Service::encode_made(Request& request, NodeId made, NodeId directory) const {
  begin_success(request);
  request.out.boolean(true);
  encode_handle(request.out, handles_.handle_of(made));
  encode_attributes(request.out, made);
  encode_weak_cache_data(request.out, directory);
}

void Nfs3Service::getattr(Request& request) {
  Attributes attributes = tree_->attributes(decode_node(request.in));
  begin_success(request);
  encode(request.out, attributes);
}

void Nfs3Service::setattr(Request& request) {
  NodeId id = decode_node(request.in);
  NewAttributes wanted = decode_new_attributes(request.in);
  std::optional<NfsTime> guard;
  if (request.in.boolean()) {
    guard.emplace();
    guard->seconds = request.in.u32();
    guard->nanoseconds = request.in.u32();
  }
  tree_->set_attributes(request.caller, id, wanted, guard);
  begin_success(request);
  encode_weak_cache_data(request.out, id);
}

void Nfs3Service::lookup(Request& request) {
  NodeId directory = decode_node(request.in);
  NodeId found = tree_->lookup(request.caller, directory, request.in.string(kPathBytesMax));
  begin_success(request);
  encode_handle(request.out, handles_.handle_of(found));
  encode_attributes(request.out, found);
  encode_attributes(request.out, directory);
}

void Nfs3Service::access(Request& request) {
  NodeId id = decode_node(request.in);
  uint32_t granted = tree_->access(request.caller, id, request.in.u32());
  begin_success(request);
  encode_attributes(request.out, id);
  request.out.u32(granted);
}

void Nfs3Service::readlink(Request& request) {
  NodeId id = decode_node(request.in);
  std::string target = tree_->read_link(id);
  begin_success(request);
  encode_attributes(request.out, id);
  request.out.string(target);
}

void Nfs3Service::read(Request& request) {
  NodeId id = decode_node(request.in);
  uint64_t offset = request.in.u64();
  size_t count = std::min<size_t>(request.in.u32(), kTransferBytesMax);
  const ReplyRoom& room = request.room;
  size_t in_message = room.message - std::min(room.message, kReadFrameBytes);
  count = std::min(count, room.chunk.value_or(in_message / 4 * 4));  // padding needs room too
  MemoryTree::Piece piece = tree_->read(request.caller, id, offset, count);
  begin_success(request);
  encode_attributes(request.out, id);
  request.out.u32(static_cast<uint32_t>(piece.data.size()));
  request.out.boolean(piece.end_of_file);
  request.out.item(piece.data.size());
  request.reply.item = piece.data;
  request.reply.item_owner = std::move(piece.owner);
}

void Nfs3Service::write(Request& request) {
  NodeId id = decode_node(request.in);
  uint64_t offset = request.in.u64();
  size_t count = request.in.u32();
  request.in.u32();  // stability: all of it is as stable as memory is
  ConstBytes data = request.in.opaque(kTransferBytesMax);
  data = data.first(std::min(count, data.size()));
  tree_->write(request.caller, id, offset, data);
  begin_success(request);
  encode_weak_cache_data(request.out, id);
  request.out.u32(static_cast<uint32_t>(data.size()));
  request.out.u32(static_cast<uint32_t>(Stability::kFileSync));
  request.out.u64(handles_.instance());
}

void Nfs3Service::create(Request& request) {
  NodeId directory = decode_node(request.in);
  std::string name = request.in.string(kPathBytesMax);
  uint32_t how = request.in.u32();
  NewAttributes wanted;
  CreateVerifier verifier{};
  if (how == static_cast<uint32_t>(CreateHow::kExclusive)) {
    std::ranges::copy(request.in.fixed_opaque(verifier.size()), verifier.begin());
  } else if (how < static_cast<uint32_t>(CreateHow::kExclusive)) {
    wanted = decode_new_attributes(request.in);
  } else {
    throw XdrError("XDR: unknown way to create");
  }
  NodeId made =
      tree_->create(request.caller, directory, name, static_cast<CreateHow>(how), wanted, verifier);
  encode_made(request, made, directory);
}

void Nfs3Service::mkdir(Request& request) {
  NodeId directory = decode_node(request.in);
  std::string name = request.in.string(kPathBytesMax);
  NewAttributes wanted = decode_new_attributes(request.in);
  NodeId made = tree_->make_directory(request.caller, directory, name, wanted);
  encode_made(request, made, directory);
}

void Nfs3Service::symlink(Request& request) {
  NodeId directory = decode_node(request.in);
  std::string name = request.in.string(kPathBytesMax);
  NewAttributes wanted = decode_new_attributes(request.in);
  std::string target = request.in.string(kPathBytesMax);
  NodeId made = tree_->make_symlink(request.caller, directory, name, target, wanted);
  encode_made(request, made, directory);
}

void Nfs3Service::mknod(Request&) { throw NfsError(NfsStatus::kNotsupp); }

void Nfs3Service::remove(Request& request) {
  NodeId directory = decode_node(request.in);
  tree_->remove(request.caller, directory, request.in.string(kPathBytesMax));
  begin_success(request);
  encode_weak_cache_data(request.out, directory);
}

void Nfs3Service::rmdir(Request& request) {
  NodeId directory = decode_node(request.in);
  tree_->remove_directory(request.caller, directory, request.in.string(kPathBytesMax));
  begin_success(request);
  encode_weak_cache_data(request.out, directory);
}

void Nfs3Service::rename(Request& request) {
  NodeId from = decode_node(request.in);
  std::string from_name = request.in.string(kPathBytesMax);
  NodeId to = decode_node(request.in);
  std::string to_name = request.in.string(kPathBytesMax);
  tree_->rename(request.caller, from, from_name, to, to_name);
  begin_success(request);
  encode_weak_cache_data(request.out, from);
  encode_weak_cache_data(request.out, to);
}

void Nfs3Service::link(Request& request) {
  NodeId file = decode_node(request.in);
  NodeId directory = decode_node(request.in);
  tree_->link(request.caller, file, directory, request.in.string(kPathBytesMax));
  begin_success(request);
  encode_attributes(request.out, file);
  encode_weak_cache_data(request.out, directory);
}

void Nfs3Service::list(Request& request, bool plus) {
  NodeId directory = decode_node(request.in);
  uint64_t cookie = request.in.u64();
  request.in.u64();  // verifier: our cookies stay valid, so there is nothing to compare
  if (plus) {
    request.in.u32();  // dircount
  }
  size_t limit = std::min<size_t>(request.in.u32(), kListBytesMax);
  limit = std::min(limit, request.room.message);
  // No entry takes less than this, so no more of them can fit.
  auto entries = tree_->list(request.caller, directory, cookie, limit / 28 + 1);
  size_t begin = request.out.size();
  begin_success(request);
  encode_attributes(request.out, directory);
  request.out.u64(handles_.instance());
  size_t listed = 0;
  for (const auto& entry : entries) {
    size_t before = request.out.size();
    request.out.boolean(true);
    request.out.u64(entry.id);
    request.out.string(entry.name);
    request.out.u64(entry.cookie);
    if (plus) {
      encode_attributes(request.out, entry.id);
      request.out.boolean(true);
      encode_handle(request.out, handles_.handle_of(entry.id));
    }
    if (request.out.size() - begin + 8 > limit) {
      request.out.truncate(before);
      break;
    }
    ++listed;
  }
  if (limit < kListFrameBytes || (listed == 0 && !entries.empty())) {
    throw NfsError(NfsStatus::kToosmall);
  }
  request.out.boolean(false);
  request.out.boolean(listed == entries.size());
}

void Nfs3Service::readdir(Request& request) { list(request, false); }

void Nfs3Service::readdirplus(Request& request) { list(request, true); }

void Nfs3Service::fsstat(Request& request) {
  NodeId id = decode_node(request.in);
  uint64_t free_bytes = tree_->bytes_max() - std::min(tree_->bytes_max(), tree_->bytes_used());
  tree_->attributes(id);  // or an error
  begin_success(request);
  encode_attributes(request.out, id);
  request.out.u64(tree_->bytes_max());
  request.out.u64(free_bytes);
  request.out.u64(free_bytes);
  request.out.u64(tree_->bytes_max() / MemoryTree::kNodeBytes);
  request.out.u64(free_bytes / MemoryTree::kNodeBytes);
  request.out.u64(free_bytes / MemoryTree::kNodeBytes);
  request.out.u32(0);  // may change at any time
}

void Nfs3Service::fsinfo(Request& request) {
  NodeId id = decode_node(request.in);
  tree_->attributes(id);  // or an error
  begin_success(request);
  encode_attributes(request.out, id);
  for (int i = 0; i < 2; ++i) {  // reading, writing
    request.out.u32(kTransferBytesMax);
    request.out.u32(kTransferBytesMax);
    request.out.u32(4096);
  }
  request.out.u32(kListBytes);
  request.out.u64(tree_->bytes_max());
  request.out.u32(0);  // times are exact to a nanosecond
  request.out.u32(1);
  request.out.u32(kPropertyLink | kPropertySymlink | kPropertyHomogeneous | kPropertyCanSetTime);
}

void Nfs3Service::pathconf(Request& request) {
  NodeId id = decode_node(request.in);
  tree_->attributes(id);  // or an error
  begin_success(request);
  encode_attributes(request.out, id);
  request.out.u32(UINT16_MAX);
  request.out.u32(kNameBytesMax);
  request.out.boolean(true);   // no_trunc
  request.out.boolean(true);   // chown_restricted
  request.out.boolean(false);  // case_insensitive
  request.out.boolean(true);   // case_preserving
}

void Nfs3Service::commit(Request& request) {
  NodeId id = decode_node(request.in);
  tree_->attributes(id);  // or an error
  begin_success(request);
  encode_weak_cache_data(request.out, id);
  request.out.u64(handles_.instance());
}

}  // namespace uwarp::nfs
