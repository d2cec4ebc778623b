// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "nfs/nfs4_client.h"

#include <unistd.h>

#include <algorithm>
#include <random>

namespace uwarp::nfs {

namespace {

using Operation = Nfs4Operation;
using std::chrono::seconds;

constexpr size_t kOwnerBytes = 4 + 132;
constexpr size_t kNfs4AttributesBytes = 12 + 4 + 92 + 2 * kOwnerBytes;
constexpr size_t kNfs4HandleReplyBytes = 4 + kNfs4HandleBytesMax;
/// All results but listings, links and file data are shorter. With the longest RPC header they fit
/// a Send even where the inline threshold is 1024.
constexpr size_t kNfs4SmallResultBytes =
    4 * CompoundRequest::kResultBytes + kNfs4HandleReplyBytes + kNfs4AttributesBytes;
constexpr size_t kLinkBytesMax = kPathBytesMax * 4;
/// PUTFH and WRITE, or PUTFH and READ without its data.
constexpr size_t kTransferResultBytes =
    CompoundRequest::kReplyBytes + 2 * CompoundRequest::kResultBytes + 16;
constexpr uint32_t kLeaseSecondsMax = 3600;
/// An address where no process listens: the server learns that it cannot call back (RFC 7530,
/// section 10.2.1), and grants no delegations.
constexpr char kNoCallbackNetwork[] = "tcp";
constexpr char kNoCallbackAddress[] = "0.0.0.0.0.0";
constexpr uint32_t kNoCallbackProgram = 0;
constexpr char kOpenOwner[] = "nfs-rdma";

constexpr AttributeSet kFileAttributes(Attribute::kType, Attribute::kSize, Attribute::kFsid,
                                       Attribute::kFileid, Attribute::kMode, Attribute::kNumlinks,
                                       Attribute::kOwner, Attribute::kOwnerGroup,
                                       Attribute::kSpaceUsed, Attribute::kTimeAccess,
                                       Attribute::kTimeMetadata, Attribute::kTimeModify);
constexpr AttributeSet kListedAttributes =
    kFileAttributes.with(AttributeSet(Attribute::kRdattrError, Attribute::kFilehandle));
constexpr AttributeSet kNeededAttributes(Attribute::kType, Attribute::kSize);

std::string new_client_name() {
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  std::random_device random;
  return std::string("nfs-rdma ") + host + " " + std::to_string(getpid()) + " " +
         std::to_string(uint64_t{random()} << 32 | random());
}

Verifier new_verifier() {
  std::random_device random;
  Verifier made;
  std::ranges::generate(made, [&] { return static_cast<std::byte>(random()); });
  return made;
}

/// Whether the server counts an operation that ended so (RFC 7530, section 9.1.7).
bool counts(NfsStatus status) {
  switch (status) {
    case NfsStatus::kStaleClientid:
    case NfsStatus::kStaleStateid:
    case NfsStatus::kBadStateid:
    case NfsStatus::kBadSeqid:
    case NfsStatus::kBadxdr:
    case NfsStatus::kResource:
    case NfsStatus::kNofilehandle:
    case NfsStatus::kMoved:
      return false;
    default:
      return true;
  }
}

bool has_forgotten_us(NfsStatus status) {
  return status == NfsStatus::kStaleClientid || status == NfsStatus::kExpired;
}

void add_getattr(CompoundRequest& request, AttributeSet wanted) {
  wanted.encode(request.add(Operation::kGetattr));
}

Attributes take_file_attributes(CompoundReply& reply) {
  auto got = decode_fattr(reply.results_of(Operation::kGetattr), kFileAttributes);
  if (!kNeededAttributes.without(got.present).empty()) {
    throw XdrError("the server leaves out type or size of a file");
  }
  return got.file;
}

FileHandle take_handle(CompoundReply& reply) {
  return decode_handle4(reply.results_of(Operation::kGetfh));
}

void skip_change_info(XdrReader& in) {
  in.boolean();  // atomic
  in.u64();
  in.u64();
}

}  // namespace

Nfs4Client::Nfs4Client(RpcChannel& channel, Caller caller)
    : Nfs4Client(channel, std::move(caller), Patience::machine()) {}

Nfs4Client::Nfs4Client(RpcChannel& channel, Caller caller, Patience::Time time)
    : rpc_(channel, std::move(caller)),
      time_(std::move(time)),
      verifier_(new_verifier()),
      name_(new_client_name()) {}

XdrWriter Nfs4Client::begin(const CompoundRequest& request) const {
  XdrWriter out =
      rpc_.begin(kNfsProgram, kNfs4Version, static_cast<uint32_t>(Nfs4Procedure::kCompound));
  request.encode(out);
  return out;
}

void Nfs4Client::compound_once(size_t result_bytes, const Build& build, const Decode& decode) {
  CompoundRequest request;
  build(request);
  try {
    rpc_.call(
        kNfsProgram, kNfs4Version, static_cast<uint32_t>(Nfs4Procedure::kCompound),
        CompoundRequest::kReplyBytes + result_bytes, [&](XdrWriter& out) { request.encode(out); },
        [&](XdrReader& in) {
          CompoundReply reply(in);
          decode(reply);
        });
  } catch (const RpcUnanswered&) {
    silent_ = true;
    throw;
  }
}

void Nfs4Client::compound(size_t result_bytes, const Build& build, const Decode& decode) {
  Patience patience(time_);
  while (true) {
    try {
      compound_once(result_bytes, build, decode);
      return;
    } catch (const NfsError& error) {
      if (!patience.wait_after(error)) {
        throw;
      }
    }
  }
}

void Nfs4Client::leased_compound(size_t result_bytes, const Build& build, const Decode& decode) {
  renew_if_due();
  compound(result_bytes, build, decode);
}

void Nfs4Client::null() {
  rpc_.call(
      kNfsProgram, kNfs4Version, static_cast<uint32_t>(Nfs4Procedure::kNull), 0, [](XdrWriter&) {},
      [](XdrReader&) {});
}

std::optional<FileHandle> Nfs4Client::root() {
  FileHandle root;
  leased_compound(
      kNfs4SmallResultBytes,
      [](CompoundRequest& request) {
        request.add(Operation::kPutrootfh);
        request.add(Operation::kGetfh);
      },
      [&](CompoundReply& reply) {
        reply.results_of(Operation::kPutrootfh);
        root = take_handle(reply);
      });
  return root;
}

Attributes Nfs4Client::getattr(const FileHandle& handle) {
  Attributes attributes;
  leased_compound(
      kNfs4SmallResultBytes,
      [&](CompoundRequest& request) {
        request.put_handle(handle);
        add_getattr(request, kFileAttributes);
      },
      [&](CompoundReply& reply) {
        reply.results_of(Operation::kPutfh);
        attributes = take_file_attributes(reply);
      });
  return attributes;
}

void Nfs4Client::setattr(const FileHandle& handle, const NewAttributes& wanted) {
  leased_compound(
      kNfs4SmallResultBytes,
      [&](CompoundRequest& request) {
        request.put_handle(handle);
        XdrWriter& out = request.add(Operation::kSetattr);
        encode(out, StateId{});
        encode_fattr(out, wanted);
      },
      [](CompoundReply& reply) {
        reply.results_of(Operation::kPutfh);
        reply.results_of(Operation::kSetattr);
      });
}

Found Nfs4Client::lookup(const FileHandle& directory, const std::string& name) {
  Found found;
  found.place = {directory, name};
  leased_compound(
      kNfs4SmallResultBytes,
      [&](CompoundRequest& request) {
        request.put_handle(directory);
        request.add(Operation::kLookup).string(name);
        request.add(Operation::kGetfh);
        add_getattr(request, kFileAttributes);
      },
      [&](CompoundReply& reply) {
        reply.results_of(Operation::kPutfh);
        reply.results_of(Operation::kLookup);
        found.handle = take_handle(reply);
        found.attributes = take_file_attributes(reply);
      });
  return found;
}

std::string Nfs4Client::read_link(const FileHandle& handle) {
  std::string target;
  leased_compound(
      kNfs4SmallResultBytes + kLinkBytesMax,
      [&](CompoundRequest& request) {
        request.put_handle(handle);
        request.add(Operation::kReadlink);
      },
      [&](CompoundReply& reply) {
        reply.results_of(Operation::kPutfh);
        target = reply.results_of(Operation::kReadlink).string(kLinkBytesMax);
      });
  return target;
}

FileHandle Nfs4Client::make_directory(const FileHandle& directory, const std::string& name,
                                      const NewAttributes& wanted) {
  FileHandle made;
  leased_compound(
      kNfs4SmallResultBytes,
      [&](CompoundRequest& request) {
        request.put_handle(directory);
        XdrWriter& out = request.add(Operation::kCreate);
        out.u32(static_cast<uint32_t>(FileType::kDirectory));
        out.string(name);
        encode_fattr(out, wanted);
        request.add(Operation::kGetfh);
      },
      [&](CompoundReply& reply) {
        reply.results_of(Operation::kPutfh);
        XdrReader& in = reply.results_of(Operation::kCreate);
        skip_change_info(in);
        AttributeSet::decode(in);
        made = take_handle(reply);
      });
  return made;
}

void Nfs4Client::make_symlink(const FileHandle& directory, const std::string& name,
                              const std::string& target) {
  leased_compound(
      kNfs4SmallResultBytes,
      [&](CompoundRequest& request) {
        request.put_handle(directory);
        XdrWriter& out = request.add(Operation::kCreate);
        out.u32(static_cast<uint32_t>(FileType::kSymlink));
        out.string(target);
        out.string(name);
        encode_fattr(out, NewAttributes{});
      },
      [](CompoundReply& reply) {
        reply.results_of(Operation::kPutfh);
        reply.results_of(Operation::kCreate);
      });
}

void Nfs4Client::remove(const FileHandle& directory, const std::string& name) {
  leased_compound(
      kNfs4SmallResultBytes,
      [&](CompoundRequest& request) {
        request.put_handle(directory);
        request.add(Operation::kRemove).string(name);
      },
      [](CompoundReply& reply) {
        reply.results_of(Operation::kPutfh);
        reply.results_of(Operation::kRemove);
      });
}

void Nfs4Client::remove_directory(const FileHandle& directory, const std::string& name) {
  remove(directory, name);  // this version has one operation for both
}

void Nfs4Client::rename(const FileHandle& from, const std::string& from_name, const FileHandle& to,
                        const std::string& to_name) {
  leased_compound(
      kNfs4SmallResultBytes,
      [&](CompoundRequest& request) {
        request.put_handle(from);
        request.add(Operation::kSavefh);
        request.put_handle(to);
        XdrWriter& out = request.add(Operation::kRename);
        out.string(from_name);
        out.string(to_name);
      },
      [](CompoundReply& reply) {
        reply.results_of(Operation::kPutfh);
        reply.results_of(Operation::kSavefh);
        reply.results_of(Operation::kPutfh);
        reply.results_of(Operation::kRename);
      });
}

void Nfs4Client::next_page(const FileHandle& directory, ListPage& page) {
  leased_compound(
      kListBytes + kNfs4SmallResultBytes,
      [&](CompoundRequest& request) {
        request.put_handle(directory);
        XdrWriter& out = request.add(Operation::kReaddir);
        out.u64(page.cookie);
        out.u64(page.verifier);
        out.u32(kListBytes);  // for names and cookies
        out.u32(kListBytes);  // for all
        kListedAttributes.encode(out);
      },
      [&](CompoundReply& reply) {
        reply.results_of(Operation::kPutfh);
        XdrReader& in = reply.results_of(Operation::kReaddir);
        page.verifier = in.u64();
        while (in.boolean()) {
          page.cookie = in.u64();
          DirectoryEntry entry{in.string(kPathBytesMax), {}, {}};
          auto got = decode_fattr(in, kListedAttributes);
          if (kNeededAttributes.without(got.present).empty()) {
            entry.attributes = got.file;
          }
          if (got.present.has(Attribute::kFilehandle)) {
            entry.handle = std::move(got.handle);
          }
          page.entries.push_back(std::move(entry));
        }
        page.end = in.boolean();
      });
}

FilesystemInfo Nfs4Client::filesystem_info(const FileHandle& handle) {
  constexpr AttributeSet kWanted(Attribute::kMaxfilesize, Attribute::kMaxread,
                                 Attribute::kMaxwrite);
  FilesystemInfo info;
  leased_compound(
      kNfs4SmallResultBytes,
      [&](CompoundRequest& request) {
        request.put_handle(handle);
        add_getattr(request, kWanted);
      },
      [&](CompoundReply& reply) {
        reply.results_of(Operation::kPutfh);
        info = decode_fattr(reply.results_of(Operation::kGetattr), kWanted).filesystem;
      });
  return info;
}

void Nfs4Client::become_known() {
  if (client_id_) {
    return;
  }
  uint64_t client_id = 0;
  Verifier confirmation{};
  compound(
      kNfs4SmallResultBytes,
      [&](CompoundRequest& request) {
        XdrWriter& out = request.add(Operation::kSetclientid);
        encode(out, verifier_);
        out.string(name_);
        out.u32(kNoCallbackProgram);
        out.string(kNoCallbackNetwork);
        out.string(kNoCallbackAddress);
        out.u32(0);  // callback_ident
      },
      [&](CompoundReply& reply) {
        XdrReader& in = reply.results_of(Operation::kSetclientid);
        client_id = in.u64();
        confirmation = decode_verifier(in);
      });
  auto begin = time_.now();
  compound(
      kNfs4SmallResultBytes,
      [&](CompoundRequest& request) {
        XdrWriter& out = request.add(Operation::kSetclientidConfirm);
        out.u64(client_id);
        encode(out, confirmation);
        request.add(Operation::kPutrootfh);
        add_getattr(request, AttributeSet(Attribute::kLeaseTime));
      },
      [&](CompoundReply& reply) {
        reply.results_of(Operation::kSetclientidConfirm);
        reply.results_of(Operation::kPutrootfh);
        auto got = decode_fattr(reply.results_of(Operation::kGetattr),
                                AttributeSet(Attribute::kLeaseTime));
        lease_ = seconds(std::clamp(got.lease_seconds, 1u, kLeaseSecondsMax));
      });
  renewed_ = begin;
  client_id_ = client_id;
}

void Nfs4Client::renew_if_due() {
  auto begin = time_.now();
  if (!client_id_ || begin - renewed_ < lease_ / 2) {
    return;
  }
  try {
    compound(
        kNfs4SmallResultBytes,
        [&](CompoundRequest& request) { request.add(Operation::kRenew).u64(*client_id_); },
        [](CompoundReply& reply) { reply.results_of(Operation::kRenew); });
  } catch (const NfsError& error) {
    if (has_forgotten_us(error.status()) && open_files_ == 0) {
      client_id_.reset();  // until something is opened
      return;
    }
    if (error.status() != NfsStatus::kCbPathDown) {  // which renews as well
      throw;
    }
  }
  renewed_ = begin;
}

XdrReader& Nfs4Client::sequenced_results_of(CompoundReply& reply, Operation operation) {
  NfsStatus status = reply.status_of(operation);
  if (counts(status)) {
    ++sequence_;
  }
  if (status != NfsStatus::kOk) {
    throw NfsError(status);
  }
  return reply.reader();
}

OpenFile Nfs4Client::open_at(const Place& place, uint32_t access, const EncodeHow& how) {
  renew_if_due();
  try {
    return open_once(place, access, how);
  } catch (const NfsError& error) {
    if (!has_forgotten_us(error.status()) || open_files_ > 0) {
      throw;
    }
  }
  client_id_.reset();
  return open_once(place, access, how);
}

OpenFile Nfs4Client::open_once(const Place& place, uint32_t access, const EncodeHow& how) {
  become_known();
  OpenFile opened;
  bool unconfirmed = false;
  auto begin = time_.now();
  compound(
      kNfs4SmallResultBytes,
      [&](CompoundRequest& request) {
        request.put_handle(place.directory);
        XdrWriter& out = request.add(Operation::kOpen);
        out.u32(sequence_);
        out.u32(access);
        out.u32(kShareDenyNone);
        out.u64(*client_id_);
        out.string(kOpenOwner);
        how(out);
        out.u32(kClaimNull);
        out.string(place.name);
        request.add(Operation::kGetfh);
      },
      [&](CompoundReply& reply) {
        reply.results_of(Operation::kPutfh);
        XdrReader& in = sequenced_results_of(reply, Operation::kOpen);
        opened.state = decode_state(in);
        skip_change_info(in);
        unconfirmed = (in.u32() & kOpenResultConfirm) != 0;
        AttributeSet::decode(in);
        if (in.u32() != kDelegateNone) {
          throw XdrError("a delegation to a client that cannot be called back");
        }
        opened.handle = take_handle(reply);
      });
  ++open_files_;
  renewed_ = begin;
  if (unconfirmed) {
    confirm(opened);
  }
  return opened;
}

void Nfs4Client::confirm(OpenFile& file) {
  compound(
      kNfs4SmallResultBytes,
      [&](CompoundRequest& request) {
        request.put_handle(file.handle);
        XdrWriter& out = request.add(Operation::kOpenConfirm);
        encode(out, file.state);
        out.u32(sequence_);
      },
      [&](CompoundReply& reply) {
        reply.results_of(Operation::kPutfh);
        file.state = decode_state(sequenced_results_of(reply, Operation::kOpenConfirm));
      });
}

OpenFile Nfs4Client::open(const Found& file) {
  OpenFile opened =
      open_at(file.place, kShareAccessRead, [](XdrWriter& out) { out.u32(kOpenNoCreate); });
  if (opened.handle != file.handle) {
    // Another file has the name now. Its size is not the one that the caller knows.
    abandon(opened);
    throw NfsError(NfsStatus::kStale);
  }
  return opened;
}

OpenFile Nfs4Client::create(const FileHandle& directory, const std::string& name, CreateHow how,
                            const NewAttributes& wanted) {
  return open_at({directory, name}, kShareAccessWrite, [&](XdrWriter& out) {
    out.u32(kOpenCreate);
    out.u32(static_cast<uint32_t>(how));
    if (how == CreateHow::kExclusive) {
      encode(out, verifier_);
    } else {
      encode_fattr(out, wanted);
    }
  });
}

void Nfs4Client::close(const OpenFile& file) {
  --open_files_;
  if (silent_) {
    return;  // to ask once more would take as long again; the lease will end
  }
  compound(
      kNfs4SmallResultBytes,
      [&](CompoundRequest& request) {
        request.put_handle(file.handle);
        XdrWriter& out = request.add(Operation::kClose);
        out.u32(sequence_);
        encode(out, file.state);
      },
      [&](CompoundReply& reply) {
        reply.results_of(Operation::kPutfh);
        sequenced_results_of(reply, Operation::kClose);
      });
}

void Nfs4Client::prepare_read(RpcCall& call, const OpenFile& file, uint64_t offset, Bytes into,
                              RpcBuffer* buffer) {
  CompoundRequest request;
  request.put_handle(file.handle);
  XdrWriter& out = request.add(Operation::kRead);
  encode(out, file.state);
  out.u64(offset);
  out.u32(static_cast<uint32_t>(into.size()));
  call.message = begin(request).take();
  call.item = {};
  call.result = into;
  call.buffer = buffer;
  call.reply_max = kReplyHeaderBytes + kTransferResultBytes;
}

template <typename Take>
auto Nfs4Client::finish_transfer(const RpcCall& call, Operation operation, Take take) {
  try {
    auto result = RpcCaller::decoded(call, [&](XdrReader& in) {
      CompoundReply reply(in);
      reply.results_of(Operation::kPutfh);
      return take(reply.results_of(operation));
    });
    renewed_ = time_.now();  // by the state that the request named
    return result;
  } catch (const RpcUnanswered&) {
    silent_ = true;
    throw;
  }
}

NfsClient::ReadResult Nfs4Client::finish_read(const RpcCall& call) {
  return finish_transfer(call, Operation::kRead, [&](XdrReader& in) -> ReadResult {
    bool end_of_file = in.boolean();
    return {take_data(call, in), end_of_file};
  });
}

void Nfs4Client::prepare_write(RpcCall& call, const OpenFile& file, uint64_t offset,
                               ConstBytes data, Stability stability, RpcBuffer* buffer) {
  CompoundRequest request;
  request.put_handle(file.handle);
  XdrWriter& out = request.add(Operation::kWrite);
  encode(out, file.state);
  out.u64(offset);
  out.u32(static_cast<uint32_t>(stability));
  out.item(data.size());
  call.message = begin(request).take();
  call.item = data;
  call.result = {};
  call.buffer = buffer;
  call.reply_max = kReplyHeaderBytesMax + kTransferResultBytes;
}

NfsClient::WriteResult Nfs4Client::finish_write(const RpcCall& call) {
  return finish_transfer(call, Operation::kWrite,
                         [&](XdrReader& in) { return decode_written(call, in); });
}

uint64_t Nfs4Client::commit(const OpenFile& file) {
  uint64_t verifier = 0;
  leased_compound(
      kNfs4SmallResultBytes,
      [&](CompoundRequest& request) {
        request.put_handle(file.handle);
        XdrWriter& out = request.add(Operation::kCommit);
        out.u64(0);
        out.u32(0);  // the whole file
      },
      [&](CompoundReply& reply) {
        reply.results_of(Operation::kPutfh);
        verifier = reply.results_of(Operation::kCommit).u64();
      });
  return verifier;
}

}  // namespace uwarp::nfs
