// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "nfs/nfs3_client.h"

namespace uwarp::nfs {

namespace {

constexpr size_t kOptionalAttributesBytes = 4 + 84;
constexpr size_t kWeakCacheBytes = 4 + 24 + kOptionalAttributesBytes;
constexpr size_t kNfs3HandleReplyBytes = 8 + kFileHandleBytesMax;
/// All results but listings, links and file data are shorter.
constexpr size_t kNfs3SmallResultBytes =
    4 + kNfs3HandleReplyBytes + 2 * kOptionalAttributesBytes + 2 * kWeakCacheBytes;

void check_status(XdrReader& in) {
  auto status = static_cast<NfsStatus>(in.u32());
  if (status != NfsStatus::kOk) {
    throw NfsError(status);
  }
}

void encode_place(XdrWriter& out, const FileHandle& directory, const std::string& name) {
  encode_handle(out, directory);
  out.string(name);
}

}  // namespace

XdrWriter Nfs3Client::begin(NfsProcedure procedure) const {
  return rpc_.begin(kNfsProgram, kNfs3Version, static_cast<uint32_t>(procedure));
}

void Nfs3Client::call(NfsProcedure procedure, size_t reply_max,
                      const std::function<void(XdrWriter&)>& encode,
                      const std::function<void(XdrReader&)>& decode) const {
  rpc_.call(kNfsProgram, kNfs3Version, static_cast<uint32_t>(procedure), reply_max, encode,
            [&](XdrReader& in) {
              check_status(in);
              decode(in);
            });
}

void Nfs3Client::null() {
  rpc_.call(
      kNfsProgram, kNfs3Version, 0, 0, [](XdrWriter&) {}, [](XdrReader&) {});
}

Attributes Nfs3Client::getattr(const FileHandle& handle) {
  Attributes attributes;
  call(
      NfsProcedure::kGetattr, kNfs3SmallResultBytes,
      [&](XdrWriter& out) { encode_handle(out, handle); },
      [&](XdrReader& in) { attributes = decode_attributes(in); });
  return attributes;
}

void Nfs3Client::setattr(const FileHandle& handle, const NewAttributes& wanted) {
  call(
      NfsProcedure::kSetattr, kNfs3SmallResultBytes,
      [&](XdrWriter& out) {
        encode_handle(out, handle);
        encode(out, wanted);
        out.boolean(false);  // no guard
      },
      [](XdrReader&) {});
}

Found Nfs3Client::lookup(const FileHandle& directory, const std::string& name) {
  FileHandle handle;
  std::optional<Attributes> attributes;
  call(
      NfsProcedure::kLookup, kNfs3SmallResultBytes,
      [&](XdrWriter& out) { encode_place(out, directory, name); },
      [&](XdrReader& in) {
        handle = decode_handle(in);
        attributes = decode_optional_attributes(in);
      });
  return {handle, attributes ? *attributes : getattr(handle), {directory, name}};
}

std::string Nfs3Client::read_link(const FileHandle& handle) {
  std::string target;
  call(
      NfsProcedure::kReadlink, kOptionalAttributesBytes + kPathBytesMax * 4,
      [&](XdrWriter& out) { encode_handle(out, handle); },
      [&](XdrReader& in) {
        decode_optional_attributes(in);
        target = in.string(kPathBytesMax * 4);
      });
  return target;
}

FileHandle Nfs3Client::made(const FileHandle& directory, const std::string& name, XdrReader& in) {
  if (auto handle = decode_optional_handle(in)) {
    return *handle;
  }
  return lookup(directory, name).handle;
}

OpenFile Nfs3Client::create(const FileHandle& directory, const std::string& name, CreateHow how,
                            const NewAttributes& wanted) {
  FileHandle handle;
  call(
      NfsProcedure::kCreate, kNfs3SmallResultBytes,
      [&](XdrWriter& out) {
        encode_place(out, directory, name);
        out.u32(static_cast<uint32_t>(how));
        encode(out, wanted);
      },
      [&](XdrReader& in) { handle = made(directory, name, in); });
  return {handle, {}};
}

FileHandle Nfs3Client::make_directory(const FileHandle& directory, const std::string& name,
                                      const NewAttributes& wanted) {
  FileHandle handle;
  call(
      NfsProcedure::kMkdir, kNfs3SmallResultBytes,
      [&](XdrWriter& out) {
        encode_place(out, directory, name);
        encode(out, wanted);
      },
      [&](XdrReader& in) { handle = made(directory, name, in); });
  return handle;
}

void Nfs3Client::make_symlink(const FileHandle& directory, const std::string& name,
                              const std::string& target) {
  call(
      NfsProcedure::kSymlink, kNfs3SmallResultBytes,
      [&](XdrWriter& out) {
        encode_place(out, directory, name);
        NewAttributes wanted;
        wanted.mode = 0777;
        encode(out, wanted);
        out.string(target);
      },
      [](XdrReader&) {});
}

void Nfs3Client::remove(const FileHandle& directory, const std::string& name) {
  call(
      NfsProcedure::kRemove, kNfs3SmallResultBytes,
      [&](XdrWriter& out) { encode_place(out, directory, name); }, [](XdrReader&) {});
}

void Nfs3Client::remove_directory(const FileHandle& directory, const std::string& name) {
  call(
      NfsProcedure::kRmdir, kNfs3SmallResultBytes,
      [&](XdrWriter& out) { encode_place(out, directory, name); }, [](XdrReader&) {});
}

void Nfs3Client::rename(const FileHandle& from, const std::string& from_name, const FileHandle& to,
                        const std::string& to_name) {
  call(
      NfsProcedure::kRename, kNfs3SmallResultBytes,
      [&](XdrWriter& out) {
        encode_place(out, from, from_name);
        encode_place(out, to, to_name);
      },
      [](XdrReader&) {});
}

void Nfs3Client::read_page(const FileHandle& directory, ListPage& page) {
  bool plus = lists_with_attributes_;
  call(
      plus ? NfsProcedure::kReaddirplus : NfsProcedure::kReaddir, kListBytes,
      [&](XdrWriter& out) {
        encode_handle(out, directory);
        out.u64(page.cookie);
        out.u64(page.verifier);
        if (plus) {
          out.u32(kListBytes);
        }
        out.u32(kListBytes);
      },
      [&](XdrReader& in) {
        decode_optional_attributes(in);
        page.verifier = in.u64();
        while (in.boolean()) {
          in.u64();  // file id
          DirectoryEntry entry{in.string(kPathBytesMax), {}, {}};
          page.cookie = in.u64();
          if (plus) {
            entry.attributes = decode_optional_attributes(in);
            entry.handle = decode_optional_handle(in);
          }
          page.entries.push_back(std::move(entry));
        }
        page.end = in.boolean();
      });
}

void Nfs3Client::next_page(const FileHandle& directory, ListPage& page) {
  try {
    read_page(directory, page);
  } catch (const NfsError& error) {
    if (!lists_with_attributes_ || error.status() != NfsStatus::kNotsupp) {
      throw;
    }
    lists_with_attributes_ = false;
    read_page(directory, page);
  }
}

FilesystemInfo Nfs3Client::filesystem_info(const FileHandle& handle) {
  FilesystemInfo info;
  call(
      NfsProcedure::kFsinfo, kNfs3SmallResultBytes,
      [&](XdrWriter& out) { encode_handle(out, handle); },
      [&](XdrReader& in) {
        decode_optional_attributes(in);
        info.read_bytes_max = in.u32();
        in.u32();  // preferred
        in.u32();  // multiple
        info.write_bytes_max = in.u32();
        in.u32();
        in.u32();
        in.u32();  // preferred size of listings
        info.file_bytes_max = in.u64();
      });
  return info;
}

uint64_t Nfs3Client::commit(const OpenFile& file) {
  uint64_t verifier = 0;
  call(
      NfsProcedure::kCommit, kNfs3SmallResultBytes,
      [&](XdrWriter& out) {
        encode_handle(out, file.handle);
        out.u64(0);
        out.u32(0);  // the whole file
      },
      [&](XdrReader& in) {
        skip_weak_cache_data(in);
        verifier = in.u64();
      });
  return verifier;
}

void Nfs3Client::prepare_read(RpcCall& call, const OpenFile& file, uint64_t offset, Bytes into,
                              RpcBuffer* buffer) {
  XdrWriter out = begin(NfsProcedure::kRead);
  encode_handle(out, file.handle);
  out.u64(offset);
  out.u32(static_cast<uint32_t>(into.size()));
  call.message = std::move(out).take();
  call.item = {};
  call.result = into;
  call.buffer = buffer;
  call.reply_max = kReplyHeaderBytes + 4 + kOptionalAttributesBytes + 12;
}

NfsClient::ReadResult Nfs3Client::finish_read(const RpcCall& call) {
  return RpcCaller::decoded(call, [&](XdrReader& in) -> ReadResult {
    check_status(in);
    decode_optional_attributes(in);
    size_t count = in.u32();
    bool end_of_file = in.boolean();
    if (take_data(call, in) != count) {
      throw XdrError("the count of a READ is not that of its data");
    }
    return {count, end_of_file};
  });
}

void Nfs3Client::prepare_write(RpcCall& call, const OpenFile& file, uint64_t offset,
                               ConstBytes data, Stability stability, RpcBuffer* buffer) {
  XdrWriter out = begin(NfsProcedure::kWrite);
  encode_handle(out, file.handle);
  out.u64(offset);
  out.u32(static_cast<uint32_t>(data.size()));
  out.u32(static_cast<uint32_t>(stability));
  out.item(data.size());
  call.message = std::move(out).take();
  call.item = data;
  call.result = {};
  call.buffer = buffer;
  call.reply_max = kReplyHeaderBytesMax + 4 + kWeakCacheBytes + 16;
}

NfsClient::WriteResult Nfs3Client::finish_write(const RpcCall& call) {
  return RpcCaller::decoded(call, [&](XdrReader& in) -> WriteResult {
    check_status(in);
    skip_weak_cache_data(in);
    return decode_written(call, in);
  });
}

}  // namespace uwarp::nfs
