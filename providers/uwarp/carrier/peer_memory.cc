// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "carrier/peer_memory.h"

#include <sys/syscall.h>

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

}  // namespace

PeerMemory::PeerMemory() : secret_{random_word(), random_word()} {}

bool PeerMemory::ask(pid_t pid, uint64_t at) {
  const iovec local = {answer_.data(), sizeof answer_};
  const iovec remote = {reinterpret_cast<void*>(at), sizeof answer_};
  pid_ = pid;
  at_ = at;
  asked_ = pid != 0 && read_process(pid, &local, 1, &remote, 1, sizeof answer_);
  if (!asked_) answer_ = {};
  return asked_;
}

bool PeerMemory::Copy::run() {
  Secret seen{};
  local_[0] = {seen.data(), sizeof seen};
  remote_[0] = {reinterpret_cast<void*>(peer_.at_), sizeof seen};
  return read_process(peer_.pid_, local_, local_count_, remote_, remote_count_,
                      bytes_ + sizeof seen) &&
         seen == peer_.answer_;
}

}  // namespace uwarp
