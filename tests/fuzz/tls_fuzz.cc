// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// TLS: what an end is given by its peer. A script: bytes of a stranger to either side; or a
// handshake and records between two ends, of which bytes are changed, left out, repeated or cut.
// Neither side opens for a stranger. What is read is what was written, from the front and without a
// gap. A session that has failed stays failed, and says why.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "fuzz/script.h"
#include "tls/session.h"

namespace uwarp {
extern "C" const TlsModule uwarp_tls;
}

namespace {

using namespace uwarp;
using fuzz::Script;
using Bytes = std::vector<std::byte>;
using State = TlsSession::State;

TlsContext& context() {
  static const std::unique_ptr<TlsContext> made = [] {
    std::string error;
    auto context = uwarp_tls.open(
        {.psk = "alice:000102030405060708090a0b0c0d0e0f", .records_per_key = 3}, error);
    UWARP_REQUIRE(context != nullptr);
    return context;
  }();
  return *made;
}

struct End {
  explicit End(bool active) : session(context().begin(active)) {}

  Bytes take() {
    const auto pending = out.pending();
    Bytes bytes(pending.begin(), pending.end());
    out.take(bytes.size());
    return bytes;
  }
  /// The session uses all that it is given, or has failed.
  void feed(const Bytes& bytes) {
    session->feed(bytes);
    if (state == State::kHandshake) state = session->shake_hands(out);
    if (state == State::kOpen) read();
    UWARP_REQUIRE(state != State::kHandshake || session->unread() == 0);
    UWARP_REQUIRE((state == State::kFailed) == !session->failure().empty());
    session->feed({});
  }
  void read() {
    std::byte place[97];
    while ((end = session->read(place, out)) > 0)
      received.insert(received.end(), place, place + end);
    if (end == -ECONNRESET) state = State::kFailed;
  }
  void write(const Bytes& bytes) {
    if (state != State::kOpen || bytes.empty()) return;
    if (session->write(bytes, out) != 0) {
      state = State::kFailed;
      return;
    }
    written.insert(written.end(), bytes.begin(), bytes.end());
  }

  std::unique_ptr<TlsSession> session;
  Bytes memory = Bytes(2 * TlsOutput::kRecordSpace);
  TlsOutput out{memory};
  State state = State::kHandshake;
  ssize_t end = -EAGAIN;
  Bytes received, written;
};

/// What the way makes of bytes.
Bytes carried(Script& script, Bytes bytes) {
  if (bytes.empty()) return bytes;
  const size_t at = script.next16() % bytes.size();
  switch (script.next() % 16) {
    case 0:
      bytes[at] ^= std::byte{static_cast<uint8_t>(script.next() | 1)};
      break;
    case 1:
      bytes.resize(at);
      break;
    case 2:
      bytes.erase(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(at));
      break;
    case 3: {
      const Bytes again = bytes;
      bytes.insert(bytes.end(), again.begin(), again.end());
      break;
    }
    default:
      break;
  }
  return bytes;
}

/// In pieces of any size.
void hand_over(Script& script, const Bytes& bytes, End& to) {
  size_t at = 0;
  while (at < bytes.size()) {
    const size_t piece = std::min<size_t>(
        script.next() % 64 == 0 ? script.next() + 1 : bytes.size(), bytes.size() - at);
    const auto from = bytes.begin() + static_cast<ptrdiff_t>(at);
    to.feed({from, from + static_cast<ptrdiff_t>(piece)});
    at += piece;
  }
}

void expect_front(const Bytes& received, const Bytes& written) {
  UWARP_REQUIRE(received.size() <= written.size() &&
                std::equal(received.begin(), received.end(), written.begin()));
}

void stranger(Script& script, bool active) {
  End end(active);
  end.state = end.session->shake_hands(end.out);
  (void)end.take();
  Bytes bytes;
  while (!script.done() && bytes.size() < 4096) bytes.push_back(std::byte{script.next()});
  for (size_t at = 0; at < bytes.size(); at += 7)
    end.feed({bytes.begin() + static_cast<ptrdiff_t>(at),
              bytes.begin() + static_cast<ptrdiff_t>(std::min(at + 7, bytes.size()))});
  UWARP_REQUIRE(end.state != State::kOpen);
}

void two_ends(Script& script) {
  End client(true), server(false);
  client.feed({});
  for (int step = 0; step < 40 && (step < 4 || !script.done()); ++step) {
    hand_over(script, carried(script, client.take()), server);
    hand_over(script, carried(script, server.take()), client);
    End& writer = script.next() % 2 == 0 ? client : server;
    writer.write(Bytes(script.next() * 4u, std::byte{script.next()}));
    if (script.next() == 0) writer.session->close(writer.out);
  }
  expect_front(server.received, client.written);
  expect_front(client.received, server.written);
  if (server.state == State::kOpen) UWARP_REQUIRE(server.session->identity() == "alice");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  Script script(bytes, size);
  const uint8_t kind = script.next() % 8;
  if (kind < 2)
    stranger(script, kind == 0);
  else
    two_ends(script);
  return 0;
}
