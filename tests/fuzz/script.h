// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The input of a fuzz target as a script: its bytes one after the other, then zeros.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>

namespace uwarp::fuzz {

/// Ends the process, which libFuzzer reports, and prints where.
#define UWARP_REQUIRE(condition)                                                          \
  do {                                                                                    \
    if (!(condition)) {                                                                   \
      std::fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                       \
    }                                                                                     \
  } while (false)

class Script {
 public:
  Script(const uint8_t* bytes, size_t size) : at_(bytes), left_(size) {}

  bool done() const { return left_ == 0; }
  uint8_t next() {
    if (left_ == 0) return 0;
    --left_;
    return *at_++;
  }
  uint16_t next16() {
    const uint16_t high = next();
    return static_cast<uint16_t>(high << 8 | next());
  }
  uint32_t next32() {
    const uint32_t high = next16();
    return high << 16 | next16();
  }
  /// A number below `count`, which is not 0.
  size_t below(size_t count) { return next() % count; }
  void fill(std::span<std::byte> out) {
    for (auto& byte : out) byte = std::byte{next()};
  }

 private:
  const uint8_t* at_;
  size_t left_;
};

}  // namespace uwarp::fuzz
