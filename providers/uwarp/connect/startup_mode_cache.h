// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Which mode of start-up a peer has understood. An initiator begins with the most capable mode and
// takes the next one when the peer closes without a Reply. If the peer has replied in a later mode,
// the next connections begin there for a while. RFC 6581 10. Owned by the Engine; any thread.
#pragma once

#include <sys/socket.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "net/ip_address.h"

namespace uwarp {

enum class StartupMode : uint8_t {
  kPeerToPeer,  // revision 2, peer to peer, a Write or a Read as ready-to-receive message
  kPlain,       // revision 2 without
  kRevision1,
};

const char* describe(StartupMode mode);
/// Address and port of a peer, for the log.
std::string name_of(const sockaddr_storage& peer);

class StartupModeCache {
 public:
  /// A newer peer may take this one's place at any time, or the peer may have been restarting when
  /// it did not reply.
  static constexpr uint64_t kKeepNs = uint64_t{5} * 60 * 1'000'000'000;
  static constexpr size_t kMaxPeers = 256;

  /// Where to begin with the peer at this address and port: at the top, unless another mode is
  /// remembered.
  StartupMode first_for(const sockaddr_storage& peer, uint64_t now_ns);
  /// The peer has replied on this mode. The top one needs no memory.
  void remember(const sockaddr_storage& peer, StartupMode mode, uint64_t now_ns);
  /// An attempt has failed: the next one begins at the top.
  void forget(const sockaddr_storage& peer);

  size_t size();

 private:
  struct Peer {
    IpAddress address;
    uint16_t port;
    friend auto operator<=>(const Peer&, const Peer&) = default;
  };
  struct Entry {
    StartupMode mode;
    uint64_t end_ns;
  };

  static Peer peer_of(const sockaddr_storage& address);
  void make_room_locked(uint64_t now_ns);

  std::mutex mutex_;  // a leaf
  std::map<Peer, Entry> entries_;
};

}  // namespace uwarp
