// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "nfs/nfs4_service.h"

#include <algorithm>

namespace uwarp::nfs {

namespace {

constexpr uint32_t kOperationsMax = 64;
constexpr uint64_t kLastReservedCookie = 2;
/// Status, empty tag and count in front of the results.
constexpr size_t kHeaderBytes = 12;
/// Operation, status, end of file, length.
constexpr size_t kNfs4ReadFrameBytes = 16;
/// At least: cookie, name, bitmap, values, and whether there is one.
constexpr size_t kEntryBytesMin = 28;

struct OpenRequest {
  uint32_t sequence = 0;
  uint32_t access = 0;
  uint32_t deny = 0;
  OpenFiles::Owner owner;
  bool creates = false;
  CreateHow how = CreateHow::kUnchecked;
  NewAttributes wanted;
  AttributeSet given;
  Verifier verifier{};
  std::string name;
};

std::string take_name(XdrReader& in) {
  std::string name = in.string(kPathBytesMax);
  if (name == "." || name == "..") {
    throw NfsError(NfsStatus::kBadname);
  }
  return name;
}

void decode_creation(XdrReader& in, OpenRequest& request) {
  request.creates = true;
  uint32_t how = in.u32();
  if (how > static_cast<uint32_t>(CreateHow::kExclusive)) {
    throw XdrError("XDR: unknown way to create");
  }
  request.how = static_cast<CreateHow>(how);
  if (request.how == CreateHow::kExclusive) {
    request.verifier = decode_verifier(in);
  } else {
    request.wanted = decode_new_fattr(in, request.given);
  }
}

/// Decodes up to the owner: from there on the operation counts, even if the rest is not valid.
OpenRequest decode_opener(XdrReader& in) {
  OpenRequest request;
  request.sequence = in.u32();
  request.access = in.u32();
  request.deny = in.u32();
  request.owner.client_id = in.u64();
  request.owner.name = in.string(kNfs4OpaqueBytesMax);
  return request;
}

void decode_opened(XdrReader& in, OpenRequest& request) {
  switch (in.u32()) {
    case kOpenNoCreate:
      break;
    case kOpenCreate:
      decode_creation(in, request);
      break;
    default:
      throw XdrError("XDR: unknown way to open");
  }
  uint32_t claim = in.u32();
  if (claim != kClaimNull) {
    // There is no grace period in which files could be claimed again, and no delegation.
    throw NfsError(claim == kClaimPrevious ? NfsStatus::kNoGrace : NfsStatus::kNotsupp);
  }
  request.name = take_name(in);
  if (request.access == 0 || request.access > (kShareAccessRead | kShareAccessWrite)) {
    throw NfsError(NfsStatus::kInval);
  }
  if (request.deny != kShareDenyNone) {
    throw NfsError(NfsStatus::kNotsupp);
  }
}

}  // namespace

struct Nfs4Service::Operation {
  Nfs4Operation number;
  Serve serve;
  bool changes;  // something that a second execution would change again, or fail at
};

const Nfs4Service::Operation Nfs4Service::kOperations[] = {
    {Nfs4Operation::kAccess, &Nfs4Service::access, false},
    {Nfs4Operation::kClose, &Nfs4Service::close, true},
    {Nfs4Operation::kCommit, &Nfs4Service::commit, false},
    {Nfs4Operation::kCreate, &Nfs4Service::create, true},
    {Nfs4Operation::kGetattr, &Nfs4Service::getattr, false},
    {Nfs4Operation::kGetfh, &Nfs4Service::getfh, false},
    {Nfs4Operation::kLink, &Nfs4Service::link, true},
    {Nfs4Operation::kLookup, &Nfs4Service::lookup, false},
    {Nfs4Operation::kLookupp, &Nfs4Service::lookupp, false},
    {Nfs4Operation::kOpen, &Nfs4Service::open, true},
    {Nfs4Operation::kOpenConfirm, &Nfs4Service::open_confirm, true},
    {Nfs4Operation::kPutfh, &Nfs4Service::putfh, false},
    {Nfs4Operation::kPutpubfh, &Nfs4Service::putrootfh, false},
    {Nfs4Operation::kPutrootfh, &Nfs4Service::putrootfh, false},
    {Nfs4Operation::kRead, &Nfs4Service::read, false},
    {Nfs4Operation::kReaddir, &Nfs4Service::readdir, false},
    {Nfs4Operation::kReadlink, &Nfs4Service::readlink, false},
    {Nfs4Operation::kRemove, &Nfs4Service::remove, true},
    {Nfs4Operation::kRename, &Nfs4Service::rename, true},
    {Nfs4Operation::kRenew, &Nfs4Service::renew, false},
    {Nfs4Operation::kRestorefh, &Nfs4Service::restorefh, false},
    {Nfs4Operation::kSavefh, &Nfs4Service::savefh, false},
    {Nfs4Operation::kSecinfo, &Nfs4Service::secinfo, false},
    {Nfs4Operation::kSetattr, &Nfs4Service::setattr, true},
    {Nfs4Operation::kSetclientid, &Nfs4Service::setclientid, true},
    {Nfs4Operation::kSetclientidConfirm, &Nfs4Service::setclientid_confirm, true},
    {Nfs4Operation::kWrite, &Nfs4Service::write, false},
};

Nfs4Service::Nfs4Service(std::shared_ptr<MemoryTree> tree, const NodeHandles& handles,
                         const std::string& export_path, OpenFiles::Now now)
    : tree_(std::move(tree)),
      handles_(handles),
      pseudo_(export_path),
      open_files_(handles.instance(), std::move(now)) {}

NodeId Nfs4Service::Compound::node() const {
  if (!current) {
    throw NfsError(NfsStatus::kNofilehandle);
  }
  return *current;
}

size_t Nfs4Service::Compound::room_left() const {
  return room.message - std::min(room.message, kHeaderBytes + out.size());
}

bool Nfs4Service::is_idempotent(uint32_t procedure) const {
  return procedure != static_cast<uint32_t>(Nfs4Procedure::kCompound);
}

void Nfs4Service::call(uint32_t procedure, const Caller& caller, XdrReader& arguments,
                       const ReplyRoom& room, ServiceReply& reply) {
  switch (static_cast<Nfs4Procedure>(procedure)) {
    case Nfs4Procedure::kNull:
      return;
    case Nfs4Procedure::kCompound: {
      Compound request{caller, arguments, room, reply};
      compound(request);
      return;
    }
  }
  throw NoSuchProcedure();
}

void Nfs4Service::compound(Compound& compound) {
  ConstBytes tag = compound.in.opaque(kTagBytesMax);
  uint32_t minor_version = compound.in.u32();
  uint32_t asked = compound.in.u32();
  NfsStatus status =
      minor_version == kNfs4MinorVersion ? NfsStatus::kOk : NfsStatus::kMinorVersMismatch;
  if (asked > kOperationsMax) {
    status = NfsStatus::kResource;
  }
  uint32_t answered = 0;
  compound.reply.is_repeatable = true;
  while (status == NfsStatus::kOk && answered < asked) {
    ++answered;
    compound.to_come = asked - answered;
    status = execute(compound, compound.in.u32());
  }
  XdrWriter& message = compound.reply.message;
  message.u32(static_cast<uint32_t>(status));
  message.opaque(tag);
  message.u32(answered);
  message.fixed_opaque(compound.out.bytes());
}

NfsStatus Nfs4Service::execute(Compound& compound, uint32_t number) {
  const auto* known =
      std::ranges::find(kOperations, static_cast<Nfs4Operation>(number), &Operation::number);
  bool is_legal = number >= static_cast<uint32_t>(Nfs4Operation::kAccess) &&
                  number <= static_cast<uint32_t>(Nfs4Operation::kReleaseLockowner);
  size_t begin = compound.out.size();
  uint32_t shown = is_legal ? number : static_cast<uint32_t>(Nfs4Operation::kIllegal);
  NfsStatus status = is_legal ? NfsStatus::kNotsupp : NfsStatus::kOpIllegal;
  if (known != std::end(kOperations)) {
    compound.reply.is_repeatable &= !known->changes;
    compound.out.u32(shown);
    compound.out.u32(static_cast<uint32_t>(NfsStatus::kOk));
    try {
      (this->*known->serve)(compound);
      if (kHeaderBytes + compound.out.size() > compound.room.message) {
        throw NfsError(NfsStatus::kResource);
      }
      return NfsStatus::kOk;
    } catch (const NfsError& error) {
      status = error.status();
    } catch (const XdrError&) {
      status = NfsStatus::kBadxdr;
    }
    compound.out.truncate(begin);
  }
  compound.out.u32(shown);
  compound.out.u32(static_cast<uint32_t>(status));
  if (shown == static_cast<uint32_t>(Nfs4Operation::kSetattr)) {
    AttributeSet().encode(compound.out);  // nothing was set
  }
  return status;
}

Nfs4Attributes Nfs4Service::attributes_of(NodeId id) const {
  Nfs4Attributes known;
  known.file = pseudo_.has(id) ? pseudo_.attributes(id) : tree_->attributes(id);
  known.change = uint64_t{known.file.changed.seconds} << 32 | known.file.changed.nanoseconds;
  known.handle = handles_.handle_of(id);
  known.lease_seconds = OpenFiles::kLeaseSeconds;
  known.filesystem = {kTransferBytesMax, kTransferBytesMax, tree_->bytes_max()};
  return known;
}

uint64_t Nfs4Service::change_of(NodeId id) const { return attributes_of(id).change; }

void Nfs4Service::encode_change(Compound& compound, NodeId directory, uint64_t before) const {
  compound.out.boolean(true);  // atomic: one call at a time
  compound.out.u64(before);
  compound.out.u64(change_of(directory));
}

NodeId Nfs4Service::lookup_in(const Caller& caller, NodeId directory,
                              const std::string& name) const {
  if (pseudo_.has(directory)) {
    return pseudo_.lookup(directory, name);
  }
  if (tree_->attributes(directory).type == FileType::kSymlink) {
    throw NfsError(NfsStatus::kSymlink);
  }
  return tree_->lookup(caller, directory, name);
}

NodeId Nfs4Service::parent_of(const Caller& caller, NodeId id) const {
  if (pseudo_.has(id)) {
    return pseudo_.parent(id);
  }
  if (id == MemoryTree::kRoot) {
    if (pseudo_.root() == MemoryTree::kRoot) {
      throw NfsError(NfsStatus::kNoent);
    }
    return pseudo_.parent_of_export();
  }
  return tree_->lookup(caller, id, "..");
}

NodeId Nfs4Service::in_tree(NodeId id) const {
  if (pseudo_.has(id)) {
    throw NfsError(NfsStatus::kRofs);
  }
  return id;
}

NodeId Nfs4Service::tree_node(const Compound& compound) const { return in_tree(compound.node()); }

NodeId Nfs4Service::saved_tree_node(const Compound& compound) const {
  if (!compound.saved) {
    throw NfsError(NfsStatus::kNofilehandle);
  }
  return in_tree(*compound.saved);
}

void Nfs4Service::putfh(Compound& compound) {
  NodeId id = handles_.node_of(decode_handle4(compound.in));
  attributes_of(id);  // or an error
  compound.current = id;
}

void Nfs4Service::putrootfh(Compound& compound) { compound.current = pseudo_.root(); }

void Nfs4Service::getfh(Compound& compound) {
  encode_handle4(compound.out, handles_.handle_of(compound.node()));
}

void Nfs4Service::savefh(Compound& compound) { compound.saved = compound.node(); }

void Nfs4Service::restorefh(Compound& compound) {
  if (!compound.saved) {
    throw NfsError(NfsStatus::kRestorefh);
  }
  compound.current = compound.saved;
}

void Nfs4Service::lookup(Compound& compound) {
  NodeId directory = compound.node();
  compound.current = lookup_in(compound.caller, directory, take_name(compound.in));
}

void Nfs4Service::lookupp(Compound& compound) {
  compound.current = parent_of(compound.caller, compound.node());
}

void Nfs4Service::getattr(Compound& compound) {
  NodeId id = compound.node();
  encode_fattr(compound.out, attributes_of(id), AttributeSet::decode(compound.in));
}

void Nfs4Service::access(Compound& compound) {
  constexpr uint32_t kAll =
      kAccessRead | kAccessLookup | kAccessModify | kAccessExtend | kAccessDelete | kAccessExecute;
  NodeId id = compound.node();
  uint32_t wanted = compound.in.u32() & kAll;
  compound.out.u32(wanted);
  compound.out.u32(pseudo_.has(id) ? wanted & (kAccessRead | kAccessLookup)
                                   : tree_->access(compound.caller, id, wanted));
}

void Nfs4Service::setattr(Compound& compound) {
  NodeId id = tree_node(compound);
  StateId state = decode_state(compound.in);
  AttributeSet given;
  NewAttributes wanted = decode_new_fattr(compound.in, given);
  if (wanted.size) {
    open_files_.check(state, id, kShareAccessWrite);
  }
  tree_->set_attributes(compound.caller, id, wanted, std::nullopt);
  given.encode(compound.out);
}

void Nfs4Service::readlink(Compound& compound) {
  std::string target = tree_->read_link(tree_node(compound));
  if (8 + target.size() > compound.room_left()) {
    throw NfsError(NfsStatus::kResource);
  }
  compound.out.string(target);
}

void Nfs4Service::readdir(Compound& compound) {
  NodeId directory = compound.node();
  uint64_t cookie = std::max(compound.in.u64(), kLastReservedCookie);
  compound.in.u64();  // verifier: our cookies stay valid, so there is nothing to compare
  compound.in.u32();  // dircount
  size_t limit = std::min<size_t>(compound.in.u32(), kListBytesMax);
  limit = std::min(limit, compound.room_left());
  AttributeSet wanted = AttributeSet::decode(compound.in);
  std::vector<MemoryTree::ListEntry> entries;
  if (!pseudo_.has(directory)) {
    entries = tree_->list(compound.caller, directory, cookie, limit / kEntryBytesMin + 1);
  } else if (auto entry = pseudo_.entry(directory); cookie < entry.cookie) {
    entries.push_back(entry);
  }
  XdrWriter& out = compound.out;
  size_t begin = out.size();
  out.u64(handles_.instance());
  size_t listed = 0;
  for (const auto& entry : entries) {
    size_t before = out.size();
    out.boolean(true);
    out.u64(entry.cookie);
    out.string(entry.name);
    encode_fattr(out, attributes_of(entry.id), wanted);
    if (out.size() - begin + 8 > limit) {
      out.truncate(before);
      break;
    }
    ++listed;
  }
  if (out.size() - begin + 8 > limit || (listed == 0 && !entries.empty())) {
    throw NfsError(NfsStatus::kToosmall);
  }
  out.boolean(false);
  out.boolean(listed == entries.size());
}

void Nfs4Service::create(Compound& compound) {
  NodeId directory = tree_node(compound);
  uint32_t type = compound.in.u32();
  std::optional<std::string> target;
  if (type == static_cast<uint32_t>(FileType::kSymlink)) {
    target = compound.in.string(kPathBytesMax);
  } else if (type != static_cast<uint32_t>(FileType::kDirectory)) {
    throw NfsError(NfsStatus::kBadtype);
  }
  std::string name = take_name(compound.in);
  AttributeSet given;
  NewAttributes wanted = decode_new_fattr(compound.in, given);
  uint64_t before = change_of(directory);
  compound.current = target ? tree_->make_symlink(compound.caller, directory, name, *target, wanted)
                            : tree_->make_directory(compound.caller, directory, name, wanted);
  encode_change(compound, directory, before);
  given.encode(compound.out);
}

void Nfs4Service::remove(Compound& compound) {
  NodeId directory = tree_node(compound);
  std::string name = take_name(compound.in);
  uint64_t before = change_of(directory);
  NodeId id = tree_->lookup(compound.caller, directory, name);
  if (tree_->attributes(id).type == FileType::kDirectory) {
    tree_->remove_directory(compound.caller, directory, name);
  } else {
    tree_->remove(compound.caller, directory, name);
  }
  encode_change(compound, directory, before);
}

void Nfs4Service::rename(Compound& compound) {
  NodeId to = tree_node(compound);
  NodeId from = saved_tree_node(compound);
  std::string from_name = take_name(compound.in);
  std::string to_name = take_name(compound.in);
  uint64_t from_before = change_of(from);
  uint64_t to_before = change_of(to);
  tree_->rename(compound.caller, from, from_name, to, to_name);
  encode_change(compound, from, from_before);
  encode_change(compound, to, to_before);
}

void Nfs4Service::link(Compound& compound) {
  NodeId directory = tree_node(compound);
  NodeId file = saved_tree_node(compound);
  std::string name = take_name(compound.in);
  uint64_t before = change_of(directory);
  tree_->link(compound.caller, file, directory, name);
  encode_change(compound, directory, before);
}

void Nfs4Service::secinfo(Compound& compound) {
  lookup_in(compound.caller, compound.node(), take_name(compound.in));
  compound.current.reset();
  compound.out.u32(1);
  compound.out.u32(kAuthSys);
}

void Nfs4Service::setclientid(Compound& compound) {
  Verifier verifier = decode_verifier(compound.in);
  std::string name = compound.in.string(kNfs4OpaqueBytesMax);
  compound.in.u32();                  // program to call back
  compound.in.opaque(kPathBytesMax);  // over which network
  compound.in.opaque(kPathBytesMax);  // where
  compound.in.u32();                  // callback_ident
  auto made = open_files_.introduce(name, verifier);
  compound.out.u64(made.client_id);
  encode(compound.out, made.confirmation);
}

void Nfs4Service::setclientid_confirm(Compound& compound) {
  uint64_t client_id = compound.in.u64();
  open_files_.confirm_client(client_id, decode_verifier(compound.in));
}

void Nfs4Service::renew(Compound& compound) { open_files_.renew(compound.in.u64()); }

/// What a mode forbids its owner is forbidden here, other than for READ and WRITE: this is where a
/// file is opened.
void Nfs4Service::check_may_open(const Caller& caller, NodeId id, uint32_t access) const {
  switch (tree_->attributes(id).type) {
    case FileType::kRegular:
      break;
    case FileType::kDirectory:
      throw NfsError(NfsStatus::kIsdir);
    case FileType::kSymlink:
      throw NfsError(NfsStatus::kSymlink);
    default:
      throw NfsError(NfsStatus::kInval);
  }
  uint32_t wanted = ((access & kShareAccessRead) ? kAccessRead : 0) |
                    ((access & kShareAccessWrite) ? kAccessModify : 0);
  if (tree_->access(caller, id, wanted) != wanted) {
    throw NfsError(NfsStatus::kAcces);
  }
}

void Nfs4Service::open(Compound& compound) {
  NodeId directory = compound.node();
  OpenRequest request = decode_opener(compound.in);
  open_files_.begin_open(request.owner, request.sequence);
  decode_opened(compound.in, request);
  in_tree(directory);
  uint64_t before = change_of(directory);
  NodeId id = 0;
  bool exists = true;
  try {
    id = tree_->lookup(compound.caller, directory, request.name);
  } catch (const NfsError& error) {
    if (!request.creates || error.status() != NfsStatus::kNoent) {
      throw;
    }
    exists = false;
  }
  // The user that makes a file may open it, with any mode.
  if (exists && (!request.creates || request.how == CreateHow::kUnchecked)) {
    check_may_open(compound.caller, id, request.access);
  }
  if (request.creates) {
    id = tree_->create(compound.caller, directory, request.name, request.how, request.wanted,
                       request.verifier);
  }
  auto opened = open_files_.open(request.owner, id, request.access);
  compound.current = id;
  encode(compound.out, opened.state);
  encode_change(compound, directory, before);
  compound.out.u32(opened.unconfirmed ? kOpenResultConfirm : 0);
  request.given.encode(compound.out);
  compound.out.u32(kDelegateNone);
}

void Nfs4Service::open_confirm(Compound& compound) {
  NodeId id = tree_node(compound);
  StateId state = decode_state(compound.in);
  encode(compound.out, open_files_.confirm(state, id, compound.in.u32()));
}

void Nfs4Service::close(Compound& compound) {
  NodeId id = tree_node(compound);
  uint32_t sequence = compound.in.u32();
  StateId state = decode_state(compound.in);
  open_files_.close(state, id, sequence);
  encode(compound.out, state);
}

void Nfs4Service::read(Compound& compound) {
  NodeId id = tree_node(compound);
  StateId state = decode_state(compound.in);
  uint64_t offset = compound.in.u64();
  size_t count = std::min<size_t>(compound.in.u32(), kTransferBytesMax);
  open_files_.check(state, id, kShareAccessRead);
  if (compound.to_come > 0) {
    throw NfsError(NfsStatus::kResource);  // nothing can follow file data in a reply of ours
  }
  size_t left = compound.room_left();
  size_t in_message = left - std::min(left, kNfs4ReadFrameBytes);
  count = std::min(count, compound.room.chunk.value_or(in_message / 4 * 4));
  MemoryTree::Piece piece = tree_->read(compound.caller, id, offset, count);
  compound.out.boolean(piece.end_of_file);
  compound.out.item(piece.data.size());
  compound.reply.item = piece.data;
  compound.reply.item_owner = std::move(piece.owner);
}

void Nfs4Service::write(Compound& compound) {
  NodeId id = tree_node(compound);
  StateId state = decode_state(compound.in);
  uint64_t offset = compound.in.u64();
  compound.in.u32();  // stability: all of it is as stable as memory is
  ConstBytes data = compound.in.opaque(kTransferBytesMax);
  open_files_.check(state, id, kShareAccessWrite);
  tree_->write(compound.caller, id, offset, data);
  compound.out.u32(static_cast<uint32_t>(data.size()));
  compound.out.u32(static_cast<uint32_t>(Stability::kFileSync));
  compound.out.u64(handles_.instance());
}

void Nfs4Service::commit(Compound& compound) {
  tree_->attributes(tree_node(compound));  // or an error
  compound.in.u64();
  compound.in.u32();
  compound.out.u64(handles_.instance());
}

}  // namespace uwarp::nfs
