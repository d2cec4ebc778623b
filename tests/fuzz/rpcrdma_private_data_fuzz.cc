// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Private data of a connection: any bytes. Checked against a plain search: the first place with
// identifier and version is used, its sizes are within bounds, and what was found can be sent and
// found again. The sizes that both sides agree on are never larger than those of either side.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "core/private_data.h"

namespace {

using rpcrdma::core::Agreement;
using rpcrdma::core::PrivateData;
using rpcrdma::core::Role;

void check(bool holds) {
  if (!holds) std::abort();
}

const uint8_t* plain_search(const uint8_t* bytes, size_t size) {
  constexpr std::array<uint8_t, 5> kStart{0xf6, 0xab, 0x0e, 0x18, 1};
  for (size_t i = 0; i + 8 <= size; ++i)
    if (std::equal(kStart.begin(), kStart.end(), bytes + i)) return bytes + i;
  return nullptr;
}

void check_agreement(const PrivateData& own, const std::optional<PrivateData>& peer) {
  const Agreement client = agree(Role::kClient, own, peer);
  const Agreement server = agree(Role::kServer, own, peer);
  check(client.client_to_server <= own.send_size && client.server_to_client <= own.receive_size);
  check(server.client_to_server <= own.receive_size && server.server_to_client <= own.send_size);
  check(client.client_to_server >= 1024 && client.server_to_client >= 1024);
  check(peer || (client.client_to_server == 1024 && client.server_to_client == 1024));
  check(client.remote_invalidation ==
        (own.remote_invalidation && peer && peer->remote_invalidation));
}

}  // namespace

// Proves: 8797-7-b
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  const auto found = PrivateData::find(std::as_bytes(std::span(bytes, size)));
  const uint8_t* at = plain_search(bytes, size);
  check(found.has_value() == (at != nullptr));
  check_agreement({true, 8192, 65536}, found);
  if (!found) return 0;
  check(found->remote_invalidation == ((at[5] & 1) != 0));
  check(found->send_size == (at[6] + 1u) * 1024 && found->receive_size == (at[7] + 1u) * 1024);
  std::array<std::byte, PrivateData::kWireSize> room;
  check(found->encode(room) == room.size());
  check(PrivateData::find(room) == found);
  check_agreement(*found, PrivateData{true, 4096, 1024});
  return 0;
}
