// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The trap flag of x86-64: while it is on, SIGTRAP comes behind each instruction of this thread.
#pragma once

#if defined(__x86_64__)
inline void trap(bool on) {
  if (on)
    asm volatile("pushfq; orq $0x100, (%%rsp); popfq" ::: "memory", "cc");
  else
    asm volatile("pushfq; andq $~0x100, (%%rsp); popfq" ::: "memory", "cc");
}
#else
inline void trap(bool) {}
#endif
