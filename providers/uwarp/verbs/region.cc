// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "verbs/region.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>

#include "base/settings.h"
#include "events/raw_fds.h"
#include "memory/fault_safe_copy.h"
#include "os/clock.h"
#include "verbs/boundary.h"
#include "verbs/device_memory.h"
#include "verbs/queue_pair.h"

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

/// By raw system calls, so that an interposed open() is not entered.
int open_maps() { return raw_open("/proc/self/maps", O_RDONLY | O_CLOEXEC); }

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
  const OwnedFd maps(open_maps(), close_quietly);
  if (maps.get() < 0) return ENOSYS;
  Coverage coverage(begin, end, writable);
  for (;;) {
    ProcmapQuery query = {};
    query.size = sizeof query;
    query.query_address = coverage.next();
    if (ioctl(maps.get(), kProcmapQuery, &query) != 0) return errno == ENOENT ? EFAULT : ENOSYS;
    if (!coverage.add(query.vma_start, query.vma_end, (query.vma_flags & kVmaReadable) != 0,
                      (query.vma_flags & kVmaWritable) != 0))
      return coverage.result();
  }
}

int check_memory_by_maps(uintptr_t begin, uintptr_t end, bool writable) {
  const OwnedFd maps(open_maps(), close_quietly);
  if (maps.get() < 0) return ENOSYS;
  Coverage coverage(begin, end, writable);
  char buffer[8192];  // a line holds a path, at most 4096 bytes of it
  size_t kept = 0;
  bool more = true;
  while (more) {
    const ssize_t got = raw_read(maps.get(), buffer + kept, sizeof buffer - kept);
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

namespace {

/// Rights for peers and what offsets count from; LOCAL_WRITE is often named beside them and means
/// nothing here.
constexpr unsigned kBindAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                 IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |
                                 IBV_ACCESS_ZERO_BASED;
constexpr uint32_t kKeyByte = 0xff;  // the part of a window's key that an application chooses

}  // namespace

ibv_mw* alloc_mw(ibv_pd* base, ibv_mw_type type) {
  VerbsPd& pd = VerbsPd::of(base, AskedBy::kWrite);
  if (const int error = pd.device.refusal()) return fail(error);
  const unsigned number = raw_value(type);
  if (number != IBV_MW_TYPE_1 && number != IBV_MW_TYPE_2) return fail(EINVAL);
  if (settings().adapter.max_mw == 0) return fail(EOPNOTSUPP);
  RegionTable& table = pd.device.engine().regions();
  auto window = table.add_window(
      pd.domain, number == IBV_MW_TYPE_1 ? RegionKind::kWindowType1 : RegionKind::kWindowType2);
  if (!window) return fail(window.error());
  auto* mw = new (std::nothrow) VerbsMw(pd, **window);
  if (mw == nullptr) {
    table.release_window(**window);
    return fail(ENOMEM);
  }
  pd.object_made();
  mw->give_handle(pd.context, (*window)->slot);
  mw->pd = &pd;
  mw->rkey = table.window_key(**window);
  mw->type = type;
  return mw;
}

int dealloc_mw(ibv_mw* base) {
  const std::unique_ptr<VerbsMw> mw(&VerbsMw::of(base));
  if (!mw->domain.device.alive()) return 0;
  mw->domain.device.engine().regions().release_window(mw->window);
  mw->domain.object_gone();
  return 0;
}

int bind_request(const ibv_mw& mw, uint32_t key, const ibv_mw_bind_info& bind, SendRequest& out) {
  if ((bind.mw_access_flags & ~kBindAccess) != 0) return EINVAL;
  if (bind.length != 0) {
    if (bind.mr == nullptr || VerbsMr::unchecked(bind.mr).type == object_abi::kMrTypeNull)
      return EINVAL;
    out.bind_lkey = bind.mr->lkey;
  }
  out.opcode = SendOpcode::kBindWindow;
  out.rkey = (mw.rkey & ~kKeyByte) | (key & kKeyByte);
  out.remote_address = bind.addr;
  out.bind_length_bytes = bind.length;
  out.bind_access = bind.mw_access_flags;
  return 0;
}

// Type 1: the key is ours to choose, and told before the binding is done.
int bind_mw(ibv_qp* base, ibv_mw* mw, ibv_mw_bind* bind) {
  VerbsQp& qp = VerbsQp::unchecked(base);
  if (!qp.device.alive()) return ENODEV;
  if (qp.endpoint == nullptr) return EINVAL;
  if ((bind->send_flags & ~unsigned{IBV_SEND_FENCE | IBV_SEND_SIGNALED}) != 0) return EINVAL;
  SendRequest request;
  const uint32_t key = ibv_inc_rkey(mw->rkey);
  if (int error = bind_request(*mw, key, bind->bind_info, request)) return error;
  request.wr_id = bind->wr_id;
  request.flags = static_cast<uint8_t>(bind->send_flags);
  if (int error = QueuePairPoster(*qp.endpoint).post(request)) return error;
  mw->rkey = key;
  return 0;
}

// Regions of memory that belongs to another driver and is known by a file: it is mapped, so only
// what can be mapped can be registered.

namespace {

constexpr uint32_t kKnownAccess = kAccessLocalWrite | kAccessRemoteWrite | kAccessRemoteRead |
                                  kAccessRemoteAtomic | uint32_t{IBV_ACCESS_OPTIONAL_RANGE};

/// What the file's driver may answer to mmap, in the terms of the manual page.
int errno_of_mapping(int error) {
  // ENODEV: no mmap at all. EACCES: not open for what is asked.
  for (const int refusal : {ENODEV, EACCES, EPERM, ENOTTY, ENOSYS})
    if (error == refusal) return EOPNOTSUPP;
  return error;
}

}  // namespace

ibv_mr* reg_dmabuf_mr(ibv_pd* base, uint64_t offset, size_t length, uint64_t iova, int fd,
                      int flags) {
  VerbsPd& pd = VerbsPd::of(base);
  if (const int error = pd.device.refusal()) return fail(error);
  // So NCCL and UCX ask whether the memory of a GPU can be registered. All but this error is a yes.
  if (fd == -1) return fail(EOPNOTSUPP);
  const uint32_t access = static_cast<uint32_t>(flags);
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  if ((access & ~kKnownAccess) != 0 || length == 0 || offset % page != iova % page ||
      wraps(offset, length) || wraps(iova, length) || length > settings().adapter.max_mr_size)
    return fail(EINVAL);
  if (int error = check_region_access(access)) return fail(error);
  struct stat file;
  if (fstat(fd, &file) != 0) return fail(errno);  // EBADF
  const auto size = static_cast<uint64_t>(file.st_size);
  if (S_ISREG(file.st_mode) && (offset > size || length > size - offset)) return fail(EINVAL);
  auto mr = std::make_unique<VerbsMr>(pd);
  const uint64_t before = offset % page;  // whole pages are mapped
  const int protection = PROT_READ | ((access & kAccessLocalWrite) != 0 ? PROT_WRITE : 0);
  void* mapped = mmap(nullptr, length + before, protection, MAP_SHARED, fd,
                      static_cast<off_t>(offset - before));
  if (mapped == MAP_FAILED) return fail(errno_of_mapping(errno));
  mr->mapping = Mapping(mapped, length + before);
  mr->access = access;
  RegionShape shape;
  shape.address = mr->mapping.address() + before;
  shape.length_bytes = length;
  shape.first = iova;
  shape.access = access & kMeaningfulAccess;
  if (int error = enter_region(*mr, shape, object_abi::kMrTypeDmabuf)) return fail(error);
  return &mr.release()->base;
}

// ibv_advise_mr: brings pages of regions on demand in before they are used.

namespace {

// Of Linux 5.14, for systems with older headers.
constexpr int kMadvisePopulateRead = 22;
constexpr int kMadvisePopulateWrite = 23;

int bring_in(std::byte* address, uint64_t length, bool writable) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(address), end = begin + length;
  const uintptr_t first = begin & ~(page - 1);
  const int advice = writable ? kMadvisePopulateWrite : kMadvisePopulateRead;
  if (madvise(reinterpret_cast<void*>(first), end - first, advice) == 0) return 0;
  if (errno == ENOMEM) return EFAULT;
  // One page after the other, where the kernel cannot do all at once or does not say what is wrong.
  for (uintptr_t at = first; at < end; at += page) {
    auto* touched = reinterpret_cast<std::byte*>(at);
    std::byte byte;
    if (!fault_safe_read(&byte, touched, 1) || (writable && !fault_safe_probe(touched)))
      return EFAULT;
  }
  return 0;
}

/// The place that an element names, with the manual page's errno for each thing it must be.
int find_place(const VerbsPd& pd, const ibv_sge& sge, bool writable, LocalRange& place) {
  const RegionTable& table = pd.device.engine().regions();
  RegionFault fault;
  place = table.local(sge.lkey, sge.addr, sge.length, writable ? uint32_t{kAccessLocalWrite} : 0,
                      pd.domain, fault);
  if (place) return place.memory == MemoryKind::kOnDemand ? 0 : EINVAL;
  return fault == RegionFault::kRights || fault == RegionFault::kWrongDomain ? EPERM : EFAULT;
}

}  // namespace

int advise_mr(ibv_pd* base, ibv_advise_mr_advice advice, uint32_t flags, ibv_sge* list,
              uint32_t count) {
  const VerbsPd& pd = VerbsPd::of(base);
  if (const int error = pd.device.refusal()) return error;
  const unsigned number = raw_value(advice);
  if (number > IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT) return ENOTSUP;
  if ((flags & ~uint32_t{IBV_ADVISE_MR_FLAG_FLUSH}) != 0 || count == 0 || list == nullptr)
    return EINVAL;
  const bool writable = number == IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE;
  for (uint32_t i = 0; i < count; ++i) {
    LocalRange place;
    if (int error = find_place(pd, list[i], writable, place)) return error;
    // Pages that are there already need nothing: the device is the CPU.
    if (number == IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT || list[i].length == 0) continue;
    if (int error = bring_in(place.address, list[i].length, writable)) return error;
  }
  return 0;
}

namespace {

/// Flags without a meaning here that do no harm: page size and ordering are the kernel's business.
constexpr uint32_t kIgnored = uint32_t{IBV_ACCESS_HUGETLB} | uint32_t{IBV_ACCESS_OPTIONAL_RANGE};
/// IBV_ACCESS_FLUSH_GLOBAL and IBV_ACCESS_FLUSH_PERSISTENT, which older headers lack: for an
/// operation that iWARP has not.
constexpr uint32_t kFlushAccess = 1u << 8 | 1u << 9;

/// 0, or what the kernel says of a range that no memory has: it counts in whole pages, for regions
/// on demand by another calculation. All memory on demand is named by address 0.
int check_range(uintptr_t address, size_t length, bool on_demand) {
  const bool implicit = on_demand && length == SIZE_MAX;
  if (!implicit && length > settings().adapter.max_mr_size) return EINVAL;
  if (implicit) return address == 0 ? 0 : EINVAL;
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const bool beyond = wraps(address, length) || wraps(address + length, page - 1);
  return !beyond ? 0 : on_demand ? EOVERFLOW : EINVAL;
}

/// Memory of the application as a region of it would be. EFAULT: not all of it is there (which is
/// no matter for a region on demand).
int shape_memory(void* address, size_t length, TaggedOffset first, uint32_t access,
                 RegionShape& shape) {
  const bool on_demand = (access & kAccessOnDemand) != 0;
  if (int error = check_range(reinterpret_cast<uintptr_t>(address), length, on_demand))
    return error;
  if (wraps(first, length)) return EINVAL;
  if (!on_demand) {  // only what the application may use itself: RFC 5040-8.1.2-4, 5041-8.3-4
    if (int error = check_memory(address, length, (access & kAccessLocalWrite) != 0)) return error;
  }
  shape.address = address;
  shape.length_bytes = length;
  shape.first = first;
  shape.access = access & kMeaningfulAccess;
  shape.memory = on_demand ? MemoryKind::kOnDemand : MemoryKind::kPlain;
  return 0;
}

/// What the region is to become; EINVAL or EFAULT if it cannot.
int shape_change(const VerbsMr& mr, int flags, void* address, size_t length, uint32_t access,
                 RegionShape& shape) {
  if ((flags & IBV_REREG_MR_CHANGE_ACCESS) == 0) access = mr.access;
  if (int error = check_region_access(access)) return error;
  const bool zero_based = (access & kAccessZeroBased) != 0;
  if ((flags & IBV_REREG_MR_CHANGE_TRANSLATION) != 0) {
    const TaggedOffset first = zero_based ? 0 : reinterpret_cast<uintptr_t>(address);
    return shape_memory(address, length, first, access, shape);
  }
  const RegionShape now = mr.region->shape();
  TaggedOffset first = now.first;
  if (zero_based != ((mr.access & kAccessZeroBased) != 0))
    first = zero_based ? 0 : reinterpret_cast<uintptr_t>(now.address);
  return shape_memory(now.address, now.length_bytes, first, access, shape);
}

void describe(VerbsMr& mr) {
  DeviceContext& device = mr.domain->device;
  StatPage& page = device.engine().stat_page();
  const SlotChange change(mr.slot->head);
  if (mr.slot->created_ns == 0) mr.slot->created_ns = wall_clock_ns();
  mr.slot->device = page.device(device.device().verbs_name);
  const RegionShape shape = mr.region->shape();
  mr.slot->access = shape.access;
  mr.slot->address = reinterpret_cast<uintptr_t>(shape.address);
  mr.slot->bytes = shape.length_bytes;
  mr.slot->head.live.store(1, std::memory_order_relaxed);
}

}  // namespace

Mapping::~Mapping() {
  if (bytes_ != 0) munmap(address_, bytes_);
}

int check_region_access(uint32_t access) {
  if (access & ~(kMeaningfulAccess | kIgnored | kFlushAccess)) return EINVAL;
  if ((access & (kAccessRemoteWrite | kAccessRemoteAtomic)) && !(access & kAccessLocalWrite))
    return EINVAL;
  if (access & kFlushAccess) return EOPNOTSUPP;
  // Some sandboxes forbid the system calls that make such memory safe to touch.
  if ((access & kAccessOnDemand) && !fault_safe_copy_works()) return EOPNOTSUPP;
  return 0;
}

int enter_region(VerbsMr& mr, RegionShape shape, uint32_t type) {
  VerbsPd& pd = *mr.domain;
  shape.domain = &pd.domain;
  mr.slot = SlotLease<RegionSlot>(pd.device.engine().stat_page());
  pd.device.add(&mr);  // may fail, as what went before; nothing fails behind the next step
  auto region = pd.device.engine().regions().add(shape);
  if (!region) {
    pd.device.remove(&mr);
    return region.error();
  }
  mr.region = *region;
  mr.give_handle(pd.context, mr.region->slot);
  mr.base.pd = &pd;
  mr.base.addr = shape.address;
  mr.base.length = shape.length_bytes;
  mr.base.lkey = mr.region->key.load(std::memory_order_relaxed);
  mr.base.rkey = mr.base.lkey;
  mr.type = type;
  describe(mr);
  pd.object_made();
  pd.root.keep();
  return 0;
}

ibv_mr* reg_mr(ibv_pd* base, void* address, size_t length, uint64_t iova, int flags) {
  VerbsPd& pd = VerbsPd::of(base, AskedBy::kWrite);
  if (const int error = pd.device.refusal()) return fail(error);
  const uint32_t access = static_cast<uint32_t>(flags);
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  if (reinterpret_cast<uintptr_t>(address) % page != iova % page) return fail(EINVAL);
  if (int error = check_region_access(access)) return fail(error);
  RegionShape shape;
  const TaggedOffset first = (access & kAccessZeroBased) ? 0 : iova;
  if (int error = shape_memory(address, length, first, access, shape)) return fail(error);
  auto mr = std::make_unique<VerbsMr>(pd);
  mr->access = access;
  if (int error = enter_region(*mr, shape, object_abi::kMrTypeRegular)) return fail(error);
  return &mr.release()->base;
}

ibv_mr* alloc_null_mr(ibv_pd* base) {
  VerbsPd& pd = VerbsPd::of(base);
  if (const int error = pd.device.refusal()) return fail(error);
  auto mr = std::make_unique<VerbsMr>(pd);
  RegionShape shape;
  shape.length_bytes = kMaxMrBytes;
  shape.access = kAccessLocalWrite;
  shape.memory = MemoryKind::kNull;
  if (int error = enter_region(*mr, shape, object_abi::kMrTypeNull)) return fail(error);
  return &mr.release()->base;
}

// libibverbs has checked the flags against each other, and reports what fails here as
// IBV_REREG_MR_ERR_CMD; the region is then what it was. It sets pd, addr and length afterwards.
int rereg_mr(ibv_mr* base, int flags, ibv_pd* new_pd, void* address, size_t length, int access) {
  VerbsMr& mr = VerbsMr::of(base);
  VerbsPd& old_domain = *mr.domain;
  if (const int error = old_domain.device.refusal()) return error;
  if (flags == 0) return EINVAL;
  if (mr.type != object_abi::kMrTypeRegular || mr.device_memory != nullptr) return EINVAL;
  const bool moves = (flags & IBV_REREG_MR_CHANGE_PD) != 0;
  if (moves && new_pd == nullptr) return EINVAL;
  VerbsPd& domain = moves ? VerbsPd::of(new_pd, AskedBy::kWrite) : old_domain;
  if (&domain.device != &old_domain.device) return EINVAL;
  const uint32_t new_access = static_cast<uint32_t>(access);
  RegionShape shape;
  if (int refused = shape_change(mr, flags, address, length, new_access, shape)) return refused;
  shape.domain = &domain.domain;
  if (int refused = domain.device.engine().change_region(*mr.region, shape)) return refused;
  if ((flags & IBV_REREG_MR_CHANGE_ACCESS) != 0) mr.access = new_access;
  describe(mr);
  if (!moves) return 0;
  mr.domain = &domain;
  domain.object_made();
  domain.root.keep();
  VerbsPd& left = old_domain.root;
  old_domain.object_gone();
  left.let_go();
  return 0;
}

int dereg_mr(ibv_mr* base) {
  VerbsMr& mr = VerbsMr::of(base);
  VerbsPd& pd = *mr.domain;
  DeviceContext& device = pd.device;
  if (!device.alive()) return 0;
  if (int error = device.engine().remove_region(*mr.region)) return error;
  device.remove(&mr);
  if (mr.device_memory != nullptr) mr.device_memory->users.fetch_sub(1, std::memory_order_release);
  delete &mr;
  VerbsPd& root = pd.root;
  pd.object_gone();  // a parent domain may be deallocated from here on
  root.let_go();
  return 0;
}

}  // namespace uwarp
