// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "datagram/trunk_call.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/random.h"

namespace uwarp {
namespace {

constexpr size_t kNonceBytes = sizeof(TrunkNonce);

void append_nonce(std::vector<std::byte>& bytes, TrunkNonce nonce) {
  bytes.resize(bytes.size() + kNonceBytes);
  store_be64(bytes.data() + bytes.size() - kNonceBytes, nonce);
}

}  // namespace

TrunkNonce draw_nonce() {
  TrunkNonce nonce = 0;
  while (nonce == 0) nonce = random_word();
  return nonce;
}

std::vector<std::byte> TrunkCall::encode() const {
  RendezvousCall call;
  call.source = Qpn{uint32_t{key.own_port} << 8};
  call.target = Qpn{uint32_t{key.port} << 8};
  call.psn = kTrunkVersion;
  call.capabilities = RendezvousCall::kTrunk | (call_back ? RendezvousCall::kCallBack : 0);
  std::vector<std::byte> bytes = call.encode();
  for (const TrunkNonce nonce : nonces) append_nonce(bytes, nonce);
  return bytes;
}

std::vector<TrunkNonce> TrunkCall::nonces_of(std::span<const std::byte> private_data) {
  std::vector<TrunkNonce> nonces;
  if (private_data.size() <= RendezvousCall::kWireSize) return nonces;
  auto rest = private_data.subspan(RendezvousCall::kWireSize);
  for (; rest.size() >= kNonceBytes && nonces.size() < kMostNonces;
       rest = rest.subspan(kNonceBytes))
    nonces.push_back(load_be64(rest.data()));
  return nonces;
}

std::vector<std::byte> encode_accepted(TrunkNonce nonce) {
  std::vector<std::byte> bytes = RendezvousAnswer{}.encode();
  append_nonce(bytes, nonce);
  return bytes;
}

TrunkNonce accepted_nonce(std::span<const std::byte> private_data) {
  if (private_data.size() < RendezvousAnswer::kWireSize + kNonceBytes) return 0;
  return load_be64(private_data.data() + RendezvousAnswer::kWireSize);
}

}  // namespace uwarp
