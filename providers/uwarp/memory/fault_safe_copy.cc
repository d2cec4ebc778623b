// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "memory/fault_safe_copy.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstdint>

#include "base/fact.h"

namespace uwarp {
namespace {

iovec piece_of(const std::byte* at, size_t size) { return {const_cast<std::byte*>(at), size}; }

}  // namespace

bool fault_safe_copy_works() {
  static constinit Fact<bool> works;
  return works.get([] {
    std::byte from{1}, to{0};
    return fault_safe_read(&to, &from, 1) && fault_safe_write(&from, &to, 1);
  });
}

bool fault_safe_read(std::byte* to, const std::byte* from, size_t size) {
  const iovec ours = piece_of(to, size), theirs = piece_of(from, size);
  return process_vm_readv(getpid(), &ours, 1, &theirs, 1, 0) == static_cast<ssize_t>(size);
}

bool fault_safe_write(std::byte* to, const std::byte* from, size_t size) {
  const iovec ours = piece_of(from, size), theirs = piece_of(to, size);
  return process_vm_writev(getpid(), &ours, 1, &theirs, 1, 0) == static_cast<ssize_t>(size);
}

bool fault_safe_probe(std::byte* word) {
  uint32_t nobody_waits = 0;
  // Adds 0 to the word. The comparison (less than the least that can be asked for) keeps it from
  // waking a thread that waits on that word.
  constexpr uint32_t kAddNothing = FUTEX_OP(FUTEX_OP_ADD, 0, FUTEX_OP_CMP_LT, 0x800);
  return syscall(SYS_futex, &nobody_waits, FUTEX_WAKE_OP | FUTEX_PRIVATE_FLAG, 1, 1L, word,
                 kAddNothing) >= 0;
}

}  // namespace uwarp
