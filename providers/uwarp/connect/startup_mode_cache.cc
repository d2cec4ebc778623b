// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "connect/startup_mode_cache.h"

#include <algorithm>
#include <new>

namespace uwarp {

const char* describe(StartupMode mode) {
  switch (mode) {
    case StartupMode::kPeerToPeer:
      return "revision 2, peer to peer, RTR Write or Read";
    case StartupMode::kPlain:
      return "revision 2 without peer-to-peer";
    case StartupMode::kRevision1:
      return "revision 1";
  }
  return "?";
}

std::string name_of(const sockaddr_storage& peer) {
  return ip_of(peer).to_string() + " port " + std::to_string(port_of(peer));
}

StartupModeCache::Peer StartupModeCache::peer_of(const sockaddr_storage& address) {
  return {ip_of(address), port_of(address)};
}

StartupMode StartupModeCache::first_for(const sockaddr_storage& peer, uint64_t now_ns) {
  const std::lock_guard guard(mutex_);
  const auto found = entries_.find(peer_of(peer));
  if (found == entries_.end()) return StartupMode::kPeerToPeer;
  if (found->second.end_ns > now_ns) return found->second.mode;
  entries_.erase(found);
  return StartupMode::kPeerToPeer;
}

void StartupModeCache::remember(const sockaddr_storage& peer, StartupMode mode, uint64_t now_ns) {
  if (mode == StartupMode::kPeerToPeer) return forget(peer);
  const std::lock_guard guard(mutex_);
  const Peer key = peer_of(peer);
  const auto found = entries_.find(key);
  // Not prolonged by use: otherwise a busy client would never look for better.
  if (found != entries_.end() && found->second.mode == mode && found->second.end_ns > now_ns)
    return;
  if (found == entries_.end() && entries_.size() >= kMaxPeers) make_room_locked(now_ns);
  try {
    entries_[key] = {mode, now_ns + kKeepNs};
  } catch (const std::bad_alloc&) {
    // The ladder is climbed down again next time.
  }
}

void StartupModeCache::forget(const sockaddr_storage& peer) {
  const std::lock_guard guard(mutex_);
  entries_.erase(peer_of(peer));
}

size_t StartupModeCache::size() {
  const std::lock_guard guard(mutex_);
  return entries_.size();
}

void StartupModeCache::make_room_locked(uint64_t now_ns) {
  std::erase_if(entries_, [&](const auto& entry) { return entry.second.end_ns <= now_ns; });
  if (entries_.size() < kMaxPeers) return;
  const auto oldest = std::min_element(
      entries_.begin(), entries_.end(),
      [](const auto& a, const auto& b) { return a.second.end_ns < b.second.end_ns; });
  entries_.erase(oldest);
}

}  // namespace uwarp
