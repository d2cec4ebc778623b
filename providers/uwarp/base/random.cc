// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "base/random.h"

#include <sys/auxv.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <span>

#include "base/serial_numbers.h"

namespace uwarp {

namespace {

// AT_RANDOM (getauxval(3)) is the key, which shows in no output. The process, the time and a count
// make each output another one, also in a forked child.
uint64_t word_from_start_of_process() {
  static constinit SerialNumbers<uint64_t> drawn_words;
  SipKey key;
  const auto* const start = reinterpret_cast<const char*>(getauxval(AT_RANDOM));
  if (start != nullptr) {
    std::memcpy(&key.first, start, sizeof key.first);
    std::memcpy(&key.second, start + sizeof key.first, sizeof key.second);
  }
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const uint64_t message[] = {drawn_words.next(), static_cast<uint64_t>(syscall(SYS_getpid)),
                              static_cast<uint64_t>(now.tv_sec),
                              static_cast<uint64_t>(now.tv_nsec)};
  return SipHash::of(key, std::as_bytes(std::span(message)));
}

}  // namespace

uint64_t random_word() {
  uint64_t word = 0;
  for (;;) {
    const long got = syscall(SYS_getrandom, &word, sizeof word, 0);
    if (got == sizeof word) return word;
    if (got < 0 && errno != EINTR) return word_from_start_of_process();
  }
}

}  // namespace uwarp
