// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "carrier/peer_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include <cstdio>
#include <cstring>
#include <new>
#include <utility>

#include "base/log.h"
#include "base/random.h"
#include "os/raw_call.h"

namespace uwarp {
namespace {

constexpr size_t kPageBytes = 4096;

/// At `at`, or where the kernel likes if that is 0. Null: not there.
void* new_page(uint64_t at) {
  const int at_this_address = at != 0 ? MAP_FIXED_NOREPLACE : 0;
  void* const page = mmap(reinterpret_cast<void*>(at), kPageBytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | at_this_address, -1, 0);
  return page != MAP_FAILED ? page : nullptr;
}

/// At a random address, within as many bits as the system has, which it does not say. Sanitizers
/// may leave no room there; TSan asks the kernel for 0 instead, where root does get a page.
void* page_anywhere() {
#ifndef __SANITIZE_THREAD__
  for (const int bits : {46, 46, 46, 46, 38, 38}) {
    const uint64_t at = (random_word() >> (64 - bits)) & ~uint64_t{0xffff};
    void* const page = new_page(at);
    if (page != nullptr && reinterpret_cast<uintptr_t>(page) == at) return page;
    if (page != nullptr) munmap(page, kPageBytes);  // an old kernel takes the address for a wish
  }
#endif
  void* const page = new_page(0);
  if (page == nullptr) throw std::bad_alloc();
  return page;
}

}  // namespace

PeerMemory::PeerMemory(bool shows_secret, int directory_fd) {
  if (shows_secret)
    secret_ = new (page_anywhere())
        Secret{random_word(), random_word(), static_cast<uint64_t>(directory_fd + 1)};
}

PeerMemory::~PeerMemory() {
  if (secret_ != nullptr) munmap(secret_, kPageBytes);
}

PeerMemory::Place PeerMemory::place() const {
  if (secret_ == nullptr) return {};
  return {reinterpret_cast<uintptr_t>(secret_), secret_->label};
}

bool PeerMemory::ask(pid_t pid, const Place& place) {
  const iovec local = {&theirs_, sizeof theirs_};
  const iovec remote = {reinterpret_cast<void*>(place.at), sizeof theirs_};
  pid_ = pid;
  at_ = place.at;
  if (pid != 0) (void)process_->find(pid);
  asked_ = pid != 0 && place.at != 0 && copy(true, {&local, 1}, {&remote, 1}) == sizeof theirs_ &&
           theirs_.label == place.label;
  if (!asked_) theirs_ = {};
  return asked_;
}

// Among the open files of the process, which opens to those that may read its memory. Without
// waiting: it may be anything, until its seals have been seen.
void PeerMemory::run() noexcept {
  if (theirs_.directory == 0 || !*process_) return;
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/fd/%u", pid_,
                static_cast<unsigned>(theirs_.directory - 1));
  ForeignFd fd(static_cast<int>(
      raw_call(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)));
  if (fd.get() < 0)
    return log_event("the regions of process %d cannot be seen: %s", pid_,
                     std::strerror(-fd.get()));
  auto directory = SharedMemory::adopt(fd, RegionDirectory::kBytes, SharedMemory::Use::kReadOnly);
  if (!directory || process_->gone()) return;
  directory_ = std::move(*directory);
  directory_.close_fd();
  regions_.emplace(reinterpret_cast<const DirectoryEntry*>(directory_.base()));
  has_regions_.store(true, std::memory_order_release);
  log_event("process %d is read and written without a thread of its own", pid_);
}

ssize_t PeerMemory::copy(bool read, std::span<const iovec> ours,
                         std::span<const iovec> theirs) const {
  return raw_call(read ? SYS_process_vm_readv : SYS_process_vm_writev, pid_, ours.data(),
                  ours.size(), theirs.data(), theirs.size(), 0UL);
}

bool PeerMemory::Copy::run() {
  Secret seen;
  local_[0] = {&seen, sizeof seen};
  remote_[0] = {reinterpret_cast<void*>(peer_.at_), sizeof seen};
  return peer_.copy(true, {local_, local_count_}, {remote_, remote_count_}) ==
             static_cast<ssize_t>(bytes_ + sizeof seen) &&
         seen == peer_.theirs_;
}

}  // namespace uwarp
