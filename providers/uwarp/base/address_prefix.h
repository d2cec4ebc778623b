// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Prefixes of IP addresses, and the list of peers that may connect (UWARP_ALLOW).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace uwarp {

/// An address as 16 bytes, IPv4 in its mapped form (RFC 4291 2.5.5.2).
using AddressBytes = std::array<uint8_t, 16>;

class AddressPrefix {
 public:
  /// "192.0.2.7", "192.0.2.0/24", "2001:db8::/32". Bits behind the prefix have to be zero: else it
  /// is probably not what was meant.
  static std::optional<AddressPrefix> parse(std::string_view text);

  bool contains(const AddressBytes& address) const;
  friend bool operator==(const AddressPrefix&, const AddressPrefix&) = default;

 private:
  AddressPrefix(const AddressBytes& bytes, unsigned bits) : bytes_(bytes), bits_(bits) {}

  AddressBytes bytes_;
  unsigned bits_;
};

class AllowList {
 public:
  /// Allows every address.
  AllowList() = default;
  /// Allows no address.
  static AllowList none();
  /// Prefixes separated by commas; empty text allows every address.
  static std::optional<AllowList> parse(std::string_view text);

  bool allows(const AddressBytes& address) const;
  bool allows_all() const { return !prefixes_; }
  friend bool operator==(const AllowList&, const AllowList&) = default;

 private:
  std::optional<std::vector<AddressPrefix>> prefixes_;
};

}  // namespace uwarp
