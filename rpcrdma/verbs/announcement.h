// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What one side wants of a connection, what it announces to the other side, and what the two agree
// on: the private data of RFC 8797 with the options of this library.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/private_data.h"
#include "rpcrdma/rpcrdma.h"

namespace rpcrdma::verbs {

class Announcement {
 public:
  /// A side that does not announce counts as one with the defaults, to itself as well.
  Announcement(bool announce, uint32_t send_size, uint32_t receive_size, bool invalidation)
      : announce_(announce),
        own_(announce ? core::PrivateData{invalidation, core::announceable(send_size),
                                          core::announceable(receive_size)}
                      : core::defaults()) {}

  const core::PrivateData& own() const { return own_; }

  /// For rdma_connect() or rdma_accept(); empty if nothing is announced. RFC 8797-1-a.
  std::vector<std::byte> private_data() const {
    std::array<std::byte, core::PrivateData::kWireSize> room;
    const size_t size = announce_ ? own_.encode(room) : 0;
    return {room.begin(), room.begin() + static_cast<ptrdiff_t>(size)};
  }

  rpcrdma_settings settle(core::Role role, std::span<const std::byte> from_peer) const {
    const auto peer = core::PrivateData::find(from_peer);
    const core::PrivateData other = peer.value_or(core::defaults());
    const core::Agreement agreement = core::agree(role, own_, peer);
    return {agreement.client_to_server,
            agreement.server_to_client,
            agreement.remote_invalidation,
            peer.has_value(),
            other.remote_invalidation,
            other.send_size,
            other.receive_size,
            1};
  }

 private:
  bool announce_;
  core::PrivateData own_;
};

inline core::Agreement agreement_of(const rpcrdma_settings& settings) {
  return {settings.client_to_server, settings.server_to_client, settings.remote_invalidation != 0};
}

}  // namespace rpcrdma::verbs
