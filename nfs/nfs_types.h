// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What both versions of NFS have: handles, attributes, and ways to write and to create.
// The numbers are those of both versions.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <optional>
#include <vector>

namespace uwarp::nfs {

constexpr uint32_t kNfsProgram = 100003;
constexpr size_t kNameBytesMax = 255;
constexpr size_t kPathBytesMax = 1024;
/// Deepest nesting of folders: a hostile server could show a tree without end.
constexpr unsigned kDepthMax = 256;
/// Of one listing: what our client asks for, and what our server gives at most.
constexpr uint32_t kListBytes = 32768;
constexpr uint32_t kListBytesMax = 65536;
/// User and group of unknown callers.
constexpr uint32_t kNobody = 65534;

using FileHandle = std::vector<std::byte>;

enum class FileType : uint32_t {
  kRegular = 1,
  kDirectory = 2,
  kBlockDevice = 3,
  kCharacterDevice = 4,
  kSymlink = 5,
  kSocket = 6,
  kFifo = 7,
};

struct NfsTime {
  uint32_t seconds = 0;
  uint32_t nanoseconds = 0;
  auto operator<=>(const NfsTime&) const = default;
};

inline NfsTime nfs_time(const timespec& time) {
  return {static_cast<uint32_t>(time.tv_sec), static_cast<uint32_t>(time.tv_nsec)};
}

/// fattr3, and what a client needs of fattr4.
struct Attributes {
  FileType type = FileType::kRegular;
  uint32_t mode = 0;
  uint32_t link_count = 1;
  uint32_t uid = 0;
  uint32_t gid = 0;
  uint64_t size = 0;
  uint64_t used = 0;
  uint64_t filesystem_id = 0;
  uint64_t file_id = 0;
  NfsTime accessed;
  NfsTime modified;
  NfsTime changed;
};

/// What sattr3 can hold. A time is absent, the server's, or the given one.
struct NewAttributes {
  struct NewTime {
    enum class How : uint32_t { kKeep = 0, kServerTime = 1, kClientTime = 2 };
    How how = How::kKeep;
    NfsTime time;
  };
  std::optional<uint32_t> mode;
  std::optional<uint32_t> uid;
  std::optional<uint32_t> gid;
  std::optional<uint64_t> size;
  NewTime accessed;
  NewTime modified;
};

/// Names what a server keeps about an open file (RFC 7530, section 9.1.4). All zero: nothing is
/// kept, and nothing needs to be.
struct StateId {
  uint32_t sequence = 0;
  std::array<std::byte, 12> other{};
  bool operator==(const StateId&) const = default;
};

enum class Stability : uint32_t { kUnstable = 0, kDataSync = 1, kFileSync = 2 };
enum class CreateHow : uint32_t { kUnchecked = 0, kGuarded = 1, kExclusive = 2 };

constexpr uint32_t kAccessRead = 0x01;
constexpr uint32_t kAccessLookup = 0x02;
constexpr uint32_t kAccessModify = 0x04;
constexpr uint32_t kAccessExtend = 0x08;
constexpr uint32_t kAccessDelete = 0x10;
constexpr uint32_t kAccessExecute = 0x20;

/// What a file system can do, as far as it matters to a client.
struct FilesystemInfo {
  uint32_t read_bytes_max = 0;
  uint32_t write_bytes_max = 0;
  uint64_t file_bytes_max = 0;
};

}  // namespace uwarp::nfs
