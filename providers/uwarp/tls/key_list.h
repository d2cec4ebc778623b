// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The pre-shared keys of a process: lines "identity:hex key".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace uwarp {

struct PresharedKey {
  std::string identity;
  std::vector<uint8_t> bytes;
};

class KeyList {
 public:
  /// Shorter keys could be guessed (RFC 9257 6).
  static constexpr size_t kLeastBytes = 16;
  static constexpr size_t kMostBytes = 64;
  static constexpr size_t kMostIdentity = 128;

  /// Empty lines and those with # in front are passed over. Returns what is wrong, or an empty
  /// text. No error repeats a key.
  std::string parse(std::string_view text);

  /// The one with which this end connects: the first.
  const PresharedKey& own() const { return keys_.front(); }
  /// Null: unknown.
  const PresharedKey* find(std::string_view identity) const;
  ~KeyList();
  KeyList() = default;
  KeyList(const KeyList&) = delete;
  KeyList& operator=(const KeyList&) = delete;

 private:
  std::string parse_line(std::string_view line);

  std::vector<PresharedKey> keys_;
};

/// Letters, digits and most signs of ASCII; no space, comma, question mark, backslash or quotes: it
/// stands in lists and log lines.
bool is_identity(std::string_view text);

}  // namespace uwarp
