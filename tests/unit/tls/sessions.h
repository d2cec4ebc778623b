// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Sessions of the TLS module, joined in memory.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tls/session.h"

namespace uwarp {

extern "C" const TlsModule uwarp_tls;

using Bytes = std::vector<std::byte>;

inline Bytes to_bytes(std::string_view text) {
  Bytes bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

inline constexpr char kAliceLine[] =
    "alice:000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\n";

inline std::unique_ptr<TlsContext> context_of(const TlsMaterial& material) {
  std::string error;
  auto context = uwarp_tls.open(material, error);
  EXPECT_NE(context, nullptr) << error;
  return context;
}

inline std::unique_ptr<TlsContext> psk_context(std::string_view lines = kAliceLine,
                                               uint64_t records_per_key = 1 << 20) {
  return context_of({.psk = lines, .records_per_key = records_per_key});
}

/// One end. What it makes is kept in `sent` until the test takes it.
struct End {
  End(TlsContext& context, bool active) : session(context.begin(active)) {}

  /// Takes what the session has made.
  void collect() {
    const auto pending = out.pending();
    sent.insert(sent.end(), pending.begin(), pending.end());
    out.take(pending.size());
  }
  TlsSession::State step(const Bytes& bytes) {
    input.insert(input.end(), bytes.begin(), bytes.end());
    session->feed(input);
    const auto state = session->shake_hands(out);
    input.erase(input.begin(), input.end() - static_cast<ptrdiff_t>(session->unread()));
    collect();
    return state;
  }
  void write(const Bytes& bytes) {
    EXPECT_EQ(session->write(bytes, out), 0) << session->failure();
    collect();
  }
  /// All plaintext of `bytes`; `end` is the count that ended it.
  Bytes read(const Bytes& bytes) {
    input.insert(input.end(), bytes.begin(), bytes.end());
    session->feed(input);
    Bytes all;
    std::byte place[kTlsRecordBytes];
    while ((end = session->read(place, out)) > 0) all.insert(all.end(), place, place + end);
    input.erase(input.begin(), input.end() - static_cast<ptrdiff_t>(session->unread()));
    collect();
    return all;
  }
  Bytes take() { return std::exchange(sent, {}); }

  std::unique_ptr<TlsSession> session;
  Bytes memory = Bytes(4 * TlsOutput::kRecordSpace);
  TlsOutput out{memory};
  Bytes input;
  Bytes sent;
  ssize_t end = 0;
};

/// Two ends, and the handshake between them.
struct Pair {
  Pair(TlsContext& client_context, TlsContext& server_context)
      : client(client_context, true), server(server_context, false) {}
  explicit Pair(TlsContext& both) : Pair(both, both) {}

  /// False: an end has failed.
  bool shake_hands() {
    using State = TlsSession::State;
    State client_state = client.step({}), server_state = State::kHandshake;
    for (int round = 0; round < 4; ++round) {
      server_state = server.step(client.take());
      client_state = client.step(server.take());
    }
    return client_state == State::kOpen && server_state == State::kOpen;
  }
  std::string failures() const {
    return "client: " + client.session->failure() + "\nserver: " + server.session->failure();
  }

  End client;
  End server;
};

}  // namespace uwarp
