// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "nfs/reply_cache.h"

namespace uwarp::nfs {

std::string ReplyCache::key(const std::string& client, ConstBytes call) {
  std::string key = client;
  key.push_back('\0');
  key.append(reinterpret_cast<const char*>(call.data()), call.size());
  return key;
}

const std::vector<std::byte>* ReplyCache::find(const std::string& key) const {
  auto found = replies_.find(key);
  return found == replies_.end() ? nullptr : &found->second;
}

void ReplyCache::add(const std::string& key, ConstBytes reply) {
  if (!replies_.emplace(key, std::vector<std::byte>(reply.begin(), reply.end())).second) {
    return;
  }
  oldest_first_.push_back(key);
  if (oldest_first_.size() > replies_max_) {
    replies_.erase(oldest_first_.front());
    oldest_first_.pop_front();
  }
}

}  // namespace uwarp::nfs
