// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "carrier/peer_memory.h"

#include <sys/mman.h>
#include <sys/syscall.h>

#include <new>

#include "base/random.h"
#include "os/raw_call.h"

namespace uwarp {
namespace {

/// True if all of `local` has been filled.
bool read_process(pid_t pid, const iovec* local, size_t local_count, const iovec* remote,
                  size_t remote_count, size_t bytes) {
  return raw_call(SYS_process_vm_readv, pid, local, local_count, remote, remote_count, 0UL) ==
         static_cast<ssize_t>(bytes);
}

constexpr size_t kPageBytes = 4096;

/// At `at`, or where the kernel likes if that is 0. Null: not there.
void* new_page(uint64_t at) {
  const int at_this_address = at != 0 ? MAP_FIXED_NOREPLACE : 0;
  void* const page = mmap(reinterpret_cast<void*>(at), kPageBytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | at_this_address, -1, 0);
  return page != MAP_FAILED ? page : nullptr;
}

/// At a random address, within as many bits as the system has, which it does not say. Sanitizers
/// may leave no room there.
void* page_anywhere() {
  for (const int bits : {46, 46, 46, 46, 38, 38}) {
    const uint64_t at = (random_word() >> (64 - bits)) & ~uint64_t{0xffff};
    void* const page = new_page(at);
    if (page != nullptr && reinterpret_cast<uintptr_t>(page) == at) return page;
    if (page != nullptr) munmap(page, kPageBytes);  // an old kernel takes the address for a wish
  }
  void* const page = new_page(0);
  if (page == nullptr) throw std::bad_alloc();
  return page;
}

}  // namespace

PeerMemory::PeerMemory(bool shows_secret) {
  if (shows_secret) secret_ = new (page_anywhere()) Secret{random_word(), random_word()};
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
  asked_ = pid != 0 && place.at != 0 && read_process(pid, &local, 1, &remote, 1, sizeof theirs_) &&
           theirs_.label == place.label;
  if (!asked_) theirs_ = {};
  return asked_;
}

bool PeerMemory::Copy::run() {
  Secret seen;
  local_[0] = {&seen, sizeof seen};
  remote_[0] = {reinterpret_cast<void*>(peer_.at_), sizeof seen};
  return read_process(peer_.pid_, local_, local_count_, remote_, remote_count_,
                      bytes_ + sizeof seen) &&
         seen == peer_.theirs_;
}

}  // namespace uwarp
