// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "verbs/memory_check.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>

namespace uwarp {
namespace {

// PROCMAP_QUERY of Linux 6.11, declared here because the headers of older systems lack it.
struct ProcmapQuery {
  uint64_t size;
  uint64_t query_flags;
  uint64_t query_address;
  uint64_t vma_start;
  uint64_t vma_end;
  uint64_t vma_flags;
  uint64_t vma_page_size;
  uint64_t vma_offset;
  uint64_t inode;
  uint32_t device_major;
  uint32_t device_minor;
  uint32_t name_size;
  uint32_t build_id_size;
  uint64_t name_address;
  uint64_t build_id_address;
};
static_assert(sizeof(ProcmapQuery) == 104);
constexpr unsigned long kProcmapQuery = _IOWR('f', 17, ProcmapQuery);
constexpr uint64_t kVmaReadable = 1;
constexpr uint64_t kVmaWritable = 2;

constexpr uintptr_t kPageMask = 4095;  // finer than any page is right too: msync rounds up

/// /proc/self/maps by raw system calls, so that an interposed open() is not entered.
class MapsFile {
 public:
  MapsFile()
      : fd_(static_cast<int>(
            syscall(SYS_openat, AT_FDCWD, "/proc/self/maps", O_RDONLY | O_CLOEXEC, 0))) {}
  ~MapsFile() {
    if (fd_ >= 0) syscall(SYS_close, fd_);
  }
  MapsFile(const MapsFile&) = delete;
  MapsFile& operator=(const MapsFile&) = delete;
  int fd() const { return fd_; }

 private:
  const int fd_;
};

/// Follows mappings in ascending order and notices when they leave part of a range uncovered.
class Coverage {
 public:
  Coverage(uintptr_t begin, uintptr_t end, bool writable)
      : next_(begin), end_(end), writable_(writable) {}

  /// False once the answer is known.
  bool add(uintptr_t start, uintptr_t end, bool readable, bool writable) {
    if (end <= next_) return true;
    if (start > next_ || !readable || (writable_ && !writable)) return bad_ = true, false;
    next_ = end;
    return next_ < end_;
  }
  uintptr_t next() const { return next_; }
  int result() const { return bad_ || next_ < end_ ? EFAULT : 0; }

 private:
  uintptr_t next_;
  const uintptr_t end_;
  const bool writable_;
  bool bad_ = false;
};

/// One line of the maps file: "start-end rwxp ...". False if it is none.
bool add_line(const char* line, const char* end, Coverage& coverage, bool& more) {
  uintptr_t first = 0, last = 0;
  auto number = std::from_chars(line, end, first, 16);
  if (number.ec != std::errc() || number.ptr == end || *number.ptr != '-') return false;
  number = std::from_chars(number.ptr + 1, end, last, 16);
  if (number.ec != std::errc() || end - number.ptr < 4) return false;
  more = coverage.add(first, last, number.ptr[1] == 'r', number.ptr[2] == 'w');
  return true;
}

}  // namespace

int check_memory_by_query(uintptr_t begin, uintptr_t end, bool writable) {
  const MapsFile maps;
  if (maps.fd() < 0) return ENOSYS;
  Coverage coverage(begin, end, writable);
  for (;;) {
    ProcmapQuery query = {};
    query.size = sizeof query;
    query.query_address = coverage.next();
    if (ioctl(maps.fd(), kProcmapQuery, &query) != 0) return errno == ENOENT ? EFAULT : ENOSYS;
    if (!coverage.add(query.vma_start, query.vma_end, (query.vma_flags & kVmaReadable) != 0,
                      (query.vma_flags & kVmaWritable) != 0))
      return coverage.result();
  }
}

int check_memory_by_maps(uintptr_t begin, uintptr_t end, bool writable) {
  const MapsFile maps;
  if (maps.fd() < 0) return ENOSYS;
  Coverage coverage(begin, end, writable);
  char buffer[8192];  // a line holds a path, at most 4096 bytes of it
  size_t kept = 0;
  bool more = true;
  while (more) {
    const long got = syscall(SYS_read, maps.fd(), buffer + kept, sizeof buffer - kept);
    if (got < 0) return ENOSYS;
    if (got == 0) break;
    char* line = buffer;
    char* const filled = buffer + kept + got;
    while (more) {
      char* newline = static_cast<char*>(std::memchr(line, '\n', filled - line));
      if (newline == nullptr) break;
      if (!add_line(line, newline, coverage, more)) return ENOSYS;
      line = newline + 1;
    }
    kept = filled - line;
    if (kept == sizeof buffer) return ENOSYS;
    std::memmove(buffer, line, kept);
  }
  return coverage.result();
}

int check_memory_by_msync(uintptr_t begin, uintptr_t end) {
  begin &= ~kPageMask;
  // MS_ASYNC does nothing but walk the mappings; it reports holes.
  return msync(reinterpret_cast<void*>(begin), end - begin, MS_ASYNC) != 0 && errno == ENOMEM
             ? EFAULT
             : 0;
}

int check_memory(const void* address, size_t length, bool writable) {
  if (length == 0) return 0;
  const uintptr_t begin = reinterpret_cast<uintptr_t>(address);
  const uintptr_t end = begin + length;
  int error = check_memory_by_query(begin, end, writable);
  if (error == ENOSYS) error = check_memory_by_maps(begin, end, writable);
  if (error == ENOSYS) error = check_memory_by_msync(begin, end);
  return error;
}

}  // namespace uwarp
