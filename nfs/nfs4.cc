// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "nfs/nfs4.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <string>

namespace uwarp::nfs {

namespace {

constexpr uint32_t kBitmapWordsMax = 16;
constexpr size_t kFattrBytesMax = 16384;
constexpr uint32_t kSetToServerTime = 0;
constexpr uint32_t kSetToClientTime = 1;
constexpr uint32_t kHandlesStay = 0;  // FH4_PERSISTENT
constexpr uint32_t kNanosecondsMax = 999999999;

void encode_time(XdrWriter& out, const NfsTime& time) {
  out.u64(time.seconds);
  out.u32(time.nanoseconds);
}

/// 64 bits with a sign; what does not fit ours becomes the nearest that does.
NfsTime decode_time4(XdrReader& in) {
  auto seconds = static_cast<int64_t>(in.u64());
  NfsTime time;
  time.seconds =
      static_cast<uint32_t>(std::clamp<int64_t>(seconds, 0, std::numeric_limits<uint32_t>::max()));
  time.nanoseconds = in.u32();
  if (time.nanoseconds > kNanosecondsMax) {
    throw XdrError("XDR: more nanoseconds than a second has");
  }
  return time;
}

std::optional<uint32_t> number_of(const std::string& owner) {
  uint32_t number = 0;
  auto [end, error] = std::from_chars(owner.data(), owner.data() + owner.size(), number);
  if (error != std::errc() || end != owner.data() + owner.size()) {
    return std::nullopt;
  }
  return number;
}

/// Owners are names ("user@domain"), or numbers as text where both sides have AUTH_SYS (RFC 7530,
/// section 5.9).
uint32_t decode_owner(XdrReader& in) {
  return number_of(in.string(kNfs4OpaqueBytesMax)).value_or(kNobody);
}

FileType decode_type(XdrReader& in) {
  uint32_t type = in.u32();
  if (type < static_cast<uint32_t>(FileType::kRegular)) {
    throw XdrError("XDR: unknown file type");
  }
  // Named attributes and their directories are beyond what is looked at here.
  return type > static_cast<uint32_t>(FileType::kFifo) ? FileType::kFifo
                                                       : static_cast<FileType>(type);
}

uint32_t clamped(uint64_t value) {
  return static_cast<uint32_t>(std::min<uint64_t>(value, std::numeric_limits<uint32_t>::max()));
}

/// How one attribute stands in XDR. One that a client never asks for is not decoded, and one that
/// our server does not have is not encoded.
struct Codec {
  Attribute attribute;
  void (*encode)(XdrWriter&, const Nfs4Attributes&);
  void (*decode)(XdrReader&, Nfs4Attributes&);
};

using Known = const Nfs4Attributes&;

/// In the order of their numbers, which is that of their values in a fattr4.
constexpr Codec kCodecs[] = {
    {Attribute::kSupportedAttrs, [](XdrWriter& out, Known) { kServedAttributes.encode(out); },
     nullptr},
    {Attribute::kType,
     [](XdrWriter& out, Known known) { out.u32(static_cast<uint32_t>(known.file.type)); },
     [](XdrReader& in, Nfs4Attributes& made) { made.file.type = decode_type(in); }},
    {Attribute::kFhExpireType, [](XdrWriter& out, Known) { out.u32(kHandlesStay); }, nullptr},
    {Attribute::kChange, [](XdrWriter& out, Known known) { out.u64(known.change); },
     [](XdrReader& in, Nfs4Attributes& made) { made.change = in.u64(); }},
    {Attribute::kSize, [](XdrWriter& out, Known known) { out.u64(known.file.size); },
     [](XdrReader& in, Nfs4Attributes& made) { made.file.size = in.u64(); }},
    {Attribute::kLinkSupport, [](XdrWriter& out, Known) { out.boolean(true); }, nullptr},
    {Attribute::kSymlinkSupport, [](XdrWriter& out, Known) { out.boolean(true); }, nullptr},
    {Attribute::kNamedAttr, [](XdrWriter& out, Known) { out.boolean(false); }, nullptr},
    {Attribute::kFsid,
     [](XdrWriter& out, Known known) {
       out.u64(known.file.filesystem_id);
       out.u64(0);
     },
     [](XdrReader& in, Nfs4Attributes& made) {
       made.file.filesystem_id = in.u64();
       in.u64();  // minor
     }},
    {Attribute::kUniqueHandles, [](XdrWriter& out, Known) { out.boolean(true); }, nullptr},
    {Attribute::kLeaseTime, [](XdrWriter& out, Known known) { out.u32(known.lease_seconds); },
     [](XdrReader& in, Nfs4Attributes& made) { made.lease_seconds = in.u32(); }},
    {Attribute::kRdattrError,
     [](XdrWriter& out, Known known) { out.u32(static_cast<uint32_t>(known.error)); },
     [](XdrReader& in, Nfs4Attributes& made) { made.error = static_cast<NfsStatus>(in.u32()); }},
    {Attribute::kAclSupport, [](XdrWriter& out, Known) { out.u32(0); }, nullptr},
    {Attribute::kCansettime, [](XdrWriter& out, Known) { out.boolean(true); }, nullptr},
    {Attribute::kFilehandle, [](XdrWriter& out, Known known) { encode_handle4(out, known.handle); },
     [](XdrReader& in, Nfs4Attributes& made) { made.handle = decode_handle4(in); }},
    {Attribute::kFileid, [](XdrWriter& out, Known known) { out.u64(known.file.file_id); },
     [](XdrReader& in, Nfs4Attributes& made) { made.file.file_id = in.u64(); }},
    {Attribute::kMaxfilesize,
     [](XdrWriter& out, Known known) { out.u64(known.filesystem.file_bytes_max); },
     [](XdrReader& in, Nfs4Attributes& made) { made.filesystem.file_bytes_max = in.u64(); }},
    {Attribute::kMaxname, [](XdrWriter& out, Known) { out.u32(kNameBytesMax); }, nullptr},
    {Attribute::kMaxread,
     [](XdrWriter& out, Known known) { out.u64(known.filesystem.read_bytes_max); },
     [](XdrReader& in, Nfs4Attributes& made) {
       made.filesystem.read_bytes_max = clamped(in.u64());
     }},
    {Attribute::kMaxwrite,
     [](XdrWriter& out, Known known) { out.u64(known.filesystem.write_bytes_max); },
     [](XdrReader& in, Nfs4Attributes& made) {
       made.filesystem.write_bytes_max = clamped(in.u64());
     }},
    {Attribute::kMode, [](XdrWriter& out, Known known) { out.u32(known.file.mode); },
     [](XdrReader& in, Nfs4Attributes& made) { made.file.mode = in.u32(); }},
    {Attribute::kNumlinks, [](XdrWriter& out, Known known) { out.u32(known.file.link_count); },
     [](XdrReader& in, Nfs4Attributes& made) { made.file.link_count = in.u32(); }},
    {Attribute::kOwner,
     [](XdrWriter& out, Known known) { out.string(std::to_string(known.file.uid)); },
     [](XdrReader& in, Nfs4Attributes& made) { made.file.uid = decode_owner(in); }},
    {Attribute::kOwnerGroup,
     [](XdrWriter& out, Known known) { out.string(std::to_string(known.file.gid)); },
     [](XdrReader& in, Nfs4Attributes& made) { made.file.gid = decode_owner(in); }},
    {Attribute::kSpaceUsed, [](XdrWriter& out, Known known) { out.u64(known.file.used); },
     [](XdrReader& in, Nfs4Attributes& made) { made.file.used = in.u64(); }},
    {Attribute::kTimeAccess,
     [](XdrWriter& out, Known known) { encode_time(out, known.file.accessed); },
     [](XdrReader& in, Nfs4Attributes& made) { made.file.accessed = decode_time4(in); }},
    {Attribute::kTimeMetadata,
     [](XdrWriter& out, Known known) { encode_time(out, known.file.changed); },
     [](XdrReader& in, Nfs4Attributes& made) { made.file.changed = decode_time4(in); }},
    {Attribute::kTimeModify,
     [](XdrWriter& out, Known known) { encode_time(out, known.file.modified); },
     [](XdrReader& in, Nfs4Attributes& made) { made.file.modified = decode_time4(in); }},
    {Attribute::kMountedOnFileid, [](XdrWriter& out, Known known) { out.u64(known.file.file_id); },
     nullptr},
};

constexpr AttributeSet codecs_with(bool decode) {
  AttributeSet made;
  for (const Codec& codec : kCodecs) {
    if (decode ? codec.decode != nullptr : codec.encode != nullptr) {
      made.add(codec.attribute);
    }
  }
  return made;
}

constexpr AttributeSet kSettable(Attribute::kSize, Attribute::kMode, Attribute::kOwner,
                                 Attribute::kOwnerGroup, Attribute::kTimeAccessSet,
                                 Attribute::kTimeModifySet);

void encode_values(XdrWriter& out, AttributeSet present, const XdrWriter& values) {
  present.encode(out);
  out.opaque(values.bytes());
}

void encode_new_time(XdrWriter& out, const NewAttributes::NewTime& time) {
  bool from_client = time.how == NewAttributes::NewTime::How::kClientTime;
  out.u32(from_client ? kSetToClientTime : kSetToServerTime);
  if (from_client) {
    encode_time(out, time.time);
  }
}

NewAttributes::NewTime decode_new_time4(XdrReader& in) {
  using How = NewAttributes::NewTime::How;
  switch (in.u32()) {
    case kSetToServerTime:
      return {How::kServerTime, {}};
    case kSetToClientTime:
      return {How::kClientTime, decode_time4(in)};
    default:
      throw XdrError("XDR: unknown way to set a time");
  }
}

uint32_t decode_new_owner(XdrReader& in) {
  auto number = number_of(in.string(kNfs4OpaqueBytesMax));
  if (!number) {
    throw NfsError(NfsStatus::kBadowner);
  }
  return *number;
}

}  // namespace

constexpr AttributeSet kReadableAttributes = codecs_with(true);
constexpr AttributeSet kServedAttributes = codecs_with(false);

void AttributeSet::encode(XdrWriter& out) const {
  auto first = static_cast<uint32_t>(bits_);
  auto second = static_cast<uint32_t>(bits_ >> 32);
  out.u32(second != 0 ? 2 : first != 0 ? 1 : 0);
  if (bits_ != 0) {
    out.u32(first);
  }
  if (second != 0) {
    out.u32(second);
  }
}

AttributeSet AttributeSet::decode(XdrReader& in) {
  uint32_t words = in.u32();
  if (words > kBitmapWordsMax) {
    throw XdrError("XDR: a bitmap is longer than allowed");
  }
  uint64_t bits = 0;
  for (uint32_t i = 0; i < words; ++i) {
    uint64_t word = in.u32();
    if (i < 2) {
      bits |= word << (32 * i);
    } else if (word != 0) {
      throw XdrError("XDR: an attribute that this version does not have");
    }
  }
  return from(bits);
}

Nfs4Attributes decode_fattr(XdrReader& in, AttributeSet asked) {
  Nfs4Attributes made;
  made.present = AttributeSet::decode(in);
  if (!made.present.without(asked.both(kReadableAttributes)).empty()) {
    throw XdrError("XDR: an attribute that was not asked for");
  }
  XdrReader values(in.opaque(kFattrBytesMax));
  for (const Codec& codec : kCodecs) {
    if (made.present.has(codec.attribute)) {
      codec.decode(values, made);
    }
  }
  if (values.remaining() != 0) {
    throw XdrError("XDR: more attribute values than attributes");
  }
  return made;
}

void encode_fattr(XdrWriter& out, const Nfs4Attributes& attributes, AttributeSet wanted) {
  XdrWriter values;
  AttributeSet present = wanted.both(kServedAttributes);
  for (const Codec& codec : kCodecs) {
    if (present.has(codec.attribute)) {
      codec.encode(values, attributes);
    }
  }
  encode_values(out, present, values);
}

void encode_fattr(XdrWriter& out, const NewAttributes& wanted) {
  using How = NewAttributes::NewTime::How;
  XdrWriter values;
  AttributeSet present;
  // In the order of their numbers.
  if (wanted.size) {
    present.add(Attribute::kSize);
    values.u64(*wanted.size);
  }
  if (wanted.mode) {
    present.add(Attribute::kMode);
    values.u32(*wanted.mode);
  }
  if (wanted.uid) {
    present.add(Attribute::kOwner);
    values.string(std::to_string(*wanted.uid));
  }
  if (wanted.gid) {
    present.add(Attribute::kOwnerGroup);
    values.string(std::to_string(*wanted.gid));
  }
  if (wanted.accessed.how != How::kKeep) {
    present.add(Attribute::kTimeAccessSet);
    encode_new_time(values, wanted.accessed);
  }
  if (wanted.modified.how != How::kKeep) {
    present.add(Attribute::kTimeModifySet);
    encode_new_time(values, wanted.modified);
  }
  encode_values(out, present, values);
}

NewAttributes decode_new_fattr(XdrReader& in, AttributeSet& given) {
  NewAttributes made;
  given = AttributeSet::decode(in);
  XdrReader values(in.opaque(kFattrBytesMax));
  if (!given.without(kSettable).empty()) {
    throw NfsError(given.both(kServedAttributes).without(kSettable).empty()
                       ? NfsStatus::kAttrnotsupp
                       : NfsStatus::kInval);
  }
  if (given.has(Attribute::kSize)) {
    made.size = values.u64();
  }
  if (given.has(Attribute::kMode)) {
    made.mode = values.u32();
  }
  if (given.has(Attribute::kOwner)) {
    made.uid = decode_new_owner(values);
  }
  if (given.has(Attribute::kOwnerGroup)) {
    made.gid = decode_new_owner(values);
  }
  if (given.has(Attribute::kTimeAccessSet)) {
    made.accessed = decode_new_time4(values);
  }
  if (given.has(Attribute::kTimeModifySet)) {
    made.modified = decode_new_time4(values);
  }
  if (values.remaining() != 0) {
    throw XdrError("XDR: more attribute values than attributes");
  }
  return made;
}

void encode(XdrWriter& out, const StateId& state) {
  out.u32(state.sequence);
  out.fixed_opaque(state.other);
}

StateId decode_state(XdrReader& in) {
  StateId state;
  state.sequence = in.u32();
  std::ranges::copy(in.fixed_opaque(state.other.size()), state.other.begin());
  return state;
}

void encode_handle4(XdrWriter& out, const FileHandle& handle) { out.opaque(handle); }

FileHandle decode_handle4(XdrReader& in) {
  auto bytes = in.opaque(kNfs4HandleBytesMax);
  return {bytes.begin(), bytes.end()};
}

void encode(XdrWriter& out, const Verifier& verifier) { out.fixed_opaque(verifier); }

Verifier decode_verifier(XdrReader& in) {
  Verifier verifier{};
  std::ranges::copy(in.fixed_opaque(verifier.size()), verifier.begin());
  return verifier;
}

}  // namespace uwarp::nfs
