// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The last replies to calls that must not be executed twice (RFC 1813, section 4.5): a client whose
// connection broke sends its calls again, with the XIDs they had.
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <unordered_map>
#include <vector>

#include "nfs/xdr.h"

namespace uwarp::nfs {

class ReplyCache {
 public:
  explicit ReplyCache(size_t replies_max) : replies_max_(replies_max) {}

  /// The key is the whole call and the client's address, because different calls may have one XID.
  static std::string key(const std::string& client, ConstBytes call);

  const std::vector<std::byte>* find(const std::string& key) const;
  void add(const std::string& key, ConstBytes reply);

 private:
  size_t replies_max_;
  std::unordered_map<std::string, std::vector<std::byte>> replies_;
  std::deque<std::string> oldest_first_;
};

}  // namespace uwarp::nfs
