// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Regions of memory that belongs to another driver and is known by a file: it is mapped, so only
// what can be mapped can be registered.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <memory>

#include "verbs/boundary.h"
#include "verbs/region.h"

namespace uwarp {
namespace {

constexpr uint32_t kKnownAccess = kAccessLocalWrite | kAccessRemoteWrite | kAccessRemoteRead |
                                  kAccessRemoteAtomic | uint32_t{IBV_ACCESS_OPTIONAL_RANGE};

/// What the file's driver may answer to mmap, in the terms of the manual page.
int errno_of_mapping(int error) {
  switch (error) {
    case ENODEV:  // no mmap at all
    case EACCES:  // not open for what is asked
    case EPERM:
    case ENOTTY:
    case ENOSYS:
      return EOPNOTSUPP;
    default:
      return error;
  }
}

/// EBADF; EINVAL when the file is known to be too short.
int check_file(int fd, uint64_t offset, size_t length) {
  struct stat file;
  if (fstat(fd, &file) != 0) return errno;
  const auto size = static_cast<uint64_t>(file.st_size);
  if (S_ISREG(file.st_mode) && (offset > size || length > size - offset)) return EINVAL;
  return 0;
}

/// Maps what surrounds [offset, offset + length) in whole pages.
Result<Mapping> map_file(int fd, uint64_t offset, size_t length, bool writable) {
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t before = offset % page;
  const int protection = PROT_READ | (writable ? PROT_WRITE : 0);
  const size_t bytes = length + before;
  void* address =
      mmap(nullptr, bytes, protection, MAP_SHARED, fd, static_cast<off_t>(offset - before));
  if (address == MAP_FAILED) return Error{errno_of_mapping(errno)};
  return Mapping(address, bytes);
}

}  // namespace

ibv_mr* reg_dmabuf_mr(ibv_pd* base, uint64_t offset, size_t length, uint64_t iova, int fd,
                      int flags) {
  return pointer_verb([&]() -> ibv_mr* {
    VerbsPd& pd = VerbsPd::of(base);
    if (const int error = pd.device.refusal()) return fail(error);
    const uint32_t access = static_cast<uint32_t>(flags);
    const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    if ((access & ~kKnownAccess) != 0 || length == 0 || offset % page != iova % page ||
        wraps(offset, length) || wraps(iova, length))
      return fail(EINVAL);
    if (int error = check_region_access(access)) return fail(error);
    if (int error = check_file(fd, offset, length)) return fail(error);
    auto mapping = map_file(fd, offset, length, (access & kAccessLocalWrite) != 0);
    if (!mapping) return fail(mapping.error());
    auto mr = std::make_unique<VerbsMr>(pd);
    mr->mapping = std::move(*mapping);
    mr->access = access;
    RegionShape shape;
    shape.address = mr->mapping.address() + offset % page;
    shape.length_bytes = length;
    shape.first = iova;
    shape.access = access & kMeaningfulAccess;
    if (int error = enter_region(*mr, shape, object_abi::kMrTypeDmabuf)) return fail(error);
    return &mr.release()->base;
  });
}

}  // namespace uwarp
