// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "nfs/nfs3.h"

namespace uwarp::nfs {

namespace {

void encode(XdrWriter& out, const NfsTime& time) {
  out.u32(time.seconds);
  out.u32(time.nanoseconds);
}

NfsTime decode_time(XdrReader& in) {
  NfsTime time;
  time.seconds = in.u32();
  time.nanoseconds = in.u32();
  return time;
}

template <typename Number>
void encode_optional(XdrWriter& out, const std::optional<Number>& number) {
  out.boolean(number.has_value());
  if (number) {
    if constexpr (sizeof(Number) == 8) {
      out.u64(*number);
    } else {
      out.u32(*number);
    }
  }
}

void encode(XdrWriter& out, const NewAttributes::NewTime& time) {
  out.u32(static_cast<uint32_t>(time.how));
  if (time.how == NewAttributes::NewTime::How::kClientTime) {
    encode(out, time.time);
  }
}

NewAttributes::NewTime decode_new_time(XdrReader& in) {
  using How = NewAttributes::NewTime::How;
  NewAttributes::NewTime time;
  uint32_t how = in.u32();
  if (how > static_cast<uint32_t>(How::kClientTime)) {
    throw XdrError("XDR: unknown way to set a time");
  }
  time.how = static_cast<How>(how);
  if (time.how == How::kClientTime) {
    time.time = decode_time(in);
  }
  return time;
}

}  // namespace

void encode(XdrWriter& out, const Attributes& attributes) {
  out.u32(static_cast<uint32_t>(attributes.type));
  out.u32(attributes.mode);
  out.u32(attributes.link_count);
  out.u32(attributes.uid);
  out.u32(attributes.gid);
  out.u64(attributes.size);
  out.u64(attributes.used);
  out.u64(0);  // rdev: no device files here
  out.u64(attributes.filesystem_id);
  out.u64(attributes.file_id);
  encode(out, attributes.accessed);
  encode(out, attributes.modified);
  encode(out, attributes.changed);
}

Attributes decode_attributes(XdrReader& in) {
  Attributes attributes;
  uint32_t type = in.u32();
  if (type < static_cast<uint32_t>(FileType::kRegular) ||
      type > static_cast<uint32_t>(FileType::kFifo)) {
    throw XdrError("XDR: unknown file type");
  }
  attributes.type = static_cast<FileType>(type);
  attributes.mode = in.u32();
  attributes.link_count = in.u32();
  attributes.uid = in.u32();
  attributes.gid = in.u32();
  attributes.size = in.u64();
  attributes.used = in.u64();
  in.u64();  // rdev
  attributes.filesystem_id = in.u64();
  attributes.file_id = in.u64();
  attributes.accessed = decode_time(in);
  attributes.modified = decode_time(in);
  attributes.changed = decode_time(in);
  return attributes;
}

void encode(XdrWriter& out, const NewAttributes& attributes) {
  encode_optional(out, attributes.mode);
  encode_optional(out, attributes.uid);
  encode_optional(out, attributes.gid);
  encode_optional(out, attributes.size);
  encode(out, attributes.accessed);
  encode(out, attributes.modified);
}

NewAttributes decode_new_attributes(XdrReader& in) {
  NewAttributes attributes;
  if (in.boolean()) {
    attributes.mode = in.u32();
  }
  if (in.boolean()) {
    attributes.uid = in.u32();
  }
  if (in.boolean()) {
    attributes.gid = in.u32();
  }
  if (in.boolean()) {
    attributes.size = in.u64();
  }
  attributes.accessed = decode_new_time(in);
  attributes.modified = decode_new_time(in);
  return attributes;
}

void encode_handle(XdrWriter& out, const FileHandle& handle) { out.opaque(handle); }

FileHandle decode_handle(XdrReader& in) {
  auto bytes = in.opaque(kFileHandleBytesMax);
  return {bytes.begin(), bytes.end()};
}

std::optional<Attributes> decode_optional_attributes(XdrReader& in) {
  if (!in.boolean()) {
    return std::nullopt;
  }
  return decode_attributes(in);
}

std::optional<FileHandle> decode_optional_handle(XdrReader& in) {
  if (!in.boolean()) {
    return std::nullopt;
  }
  return decode_handle(in);
}

void skip_weak_cache_data(XdrReader& in) {
  if (in.boolean()) {
    in.fixed_opaque(24);  // size, mtime, ctime before the operation
  }
  decode_optional_attributes(in);
}

}  // namespace uwarp::nfs
