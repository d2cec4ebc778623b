// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Handshakes and records in memory: cut at every offset, each byte changed, keys changed on the
// way.
#include <cerrno>

#include "unit/tls/sessions.h"

namespace uwarp {
namespace {

Bytes pattern(size_t size) {
  Bytes bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 251);
  return bytes;
}

TEST(TlsSession, BothSidesNameTheKey) {
  const auto context = psk_context();
  Pair pair(*context);
  ASSERT_TRUE(pair.shake_hands()) << pair.failures();
  EXPECT_EQ(pair.client.session->identity(), "alice");
  EXPECT_EQ(pair.server.session->identity(), "alice");
}

TEST(TlsSession, BytesGoBothWays) {
  const auto context = psk_context();
  Pair pair(*context);
  ASSERT_TRUE(pair.shake_hands()) << pair.failures();
  for (const size_t size : {size_t{1}, size_t{8}, size_t{1000}, kTlsRecordBytes}) {
    pair.client.write(pattern(size));
    const Bytes records = pair.client.take();
    EXPECT_EQ(records.size(), size + kTlsOverheadBytes);
    EXPECT_EQ(pair.server.read(records), pattern(size));
    EXPECT_EQ(pair.server.end, -EAGAIN);
    pair.server.write(pattern(size));
    EXPECT_EQ(pair.client.read(pair.server.take()), pattern(size));
  }
}

TEST(TlsSession, NothingOfThePlaintextIsInARecord) {
  const auto context = psk_context();
  Pair pair(*context);
  ASSERT_TRUE(pair.shake_hands());
  const Bytes secret = to_bytes("a text that must not be seen on the way");
  pair.client.write(secret);
  const Bytes records = pair.client.take();
  EXPECT_EQ(std::search(records.begin(), records.end(), secret.begin(), secret.begin() + 4),
            records.end());
}

// docs/wire.md has these bytes.
TEST(TlsSession, ShapeOfTheFirstRecords) {
  const auto context = psk_context();
  Pair pair(*context);
  (void)pair.client.step({});
  const Bytes hello = pair.client.take();
  const auto hex = [](const Bytes& bytes, size_t at, size_t count) {
    std::string text;
    for (size_t i = at; i < at + count && i < bytes.size(); ++i) {
      constexpr char kDigits[] = "0123456789abcdef";
      const auto value = std::to_integer<unsigned>(bytes[i]);
      text += {kDigits[value >> 4], kDigits[value & 15]};
    }
    return text;
  };
  // The extensions are those of OpenSSL's release; the key stands at the end of them.
  EXPECT_EQ(hex(hello, 0, 3), "160301");
  EXPECT_EQ(hex(hello, 5, 1), "01");
  EXPECT_EQ(hex(hello, 9, 2), "0303");
  EXPECT_EQ(hex(hello, 43, 13), "00000813011302130300ff0100");
  EXPECT_EQ(hex(hello, hello.size() - 52, 19), "00290030000b0005616c696365000000000021");
  EXPECT_EQ(hex(hello, hello.size() - 33, 1), "20");
  (void)pair.server.step(hello);
  const Bytes answer = pair.server.take();
  EXPECT_EQ(hex(answer, 0, 3), "160303");
  EXPECT_EQ(hex(answer, 5, 1), "02");
  const size_t next =
      5 + (std::to_integer<size_t>(answer[3]) << 8) + std::to_integer<size_t>(answer[4]);
  EXPECT_EQ(hex(answer, next, 3), "170303");
  (void)pair.client.step(answer);
  pair.client.write(to_bytes("MPA ID Req Frame"));
  EXPECT_EQ(hex(pair.client.take(), 0, 3), "170303");
}

TEST(TlsSession, InputMayBeCutAnywhere) {
  const auto context = psk_context();
  // As many bytes as a handshake has.
  Pair whole(*context);
  ASSERT_TRUE(whole.shake_hands());
  for (const size_t step : {size_t{1}, size_t{2}, size_t{3}, size_t{5}, size_t{7}, size_t{100}}) {
    Pair pair(*context);
    auto state = pair.client.step({});
    auto server_state = TlsSession::State::kHandshake;
    const auto in_steps = [step](End& to, const Bytes& bytes, TlsSession::State before) {
      for (size_t at = 0; at < bytes.size(); at += step) {
        const auto from = bytes.begin() + static_cast<ptrdiff_t>(at);
        before = to.step({from, from + static_cast<ptrdiff_t>(std::min(step, bytes.size() - at))});
      }
      return before;
    };
    for (int round = 0; round < 3; ++round) {
      server_state = in_steps(pair.server, pair.client.take(), server_state);
      state = in_steps(pair.client, pair.server.take(), state);
    }
    ASSERT_EQ(state, TlsSession::State::kOpen) << pair.failures();
    ASSERT_EQ(server_state, TlsSession::State::kOpen) << pair.failures();
    pair.client.write(pattern(300));
    Bytes got;
    for (const std::byte byte : pair.client.take()) {
      const Bytes part = pair.server.read({byte});
      got.insert(got.end(), part.begin(), part.end());
    }
    EXPECT_EQ(got, pattern(300));
  }
}

// What missing() says completes the record, and no byte more is asked for.
TEST(TlsSession, SaysHowManyBytesAreMissing) {
  const auto context = psk_context();
  Pair pair(*context);
  ASSERT_TRUE(pair.shake_hands());
  pair.client.write(pattern(500));
  const Bytes record = pair.client.take();
  EXPECT_EQ(pair.server.session->missing(), 0u);
  for (size_t at = 0; at + 1 < record.size(); ++at) {
    EXPECT_TRUE(pair.server.read({record[at]}).empty());
    const size_t missing = pair.server.session->missing();
    if (at + 1 < kTlsHeaderBytes)
      EXPECT_EQ(missing, kTlsHeaderBytes - at - 1);
    else
      EXPECT_EQ(missing, record.size() - at - 1);
  }
  EXPECT_EQ(pair.server.read({record.back()}), pattern(500));
  EXPECT_EQ(pair.server.session->missing(), 0u);
}

// No byte of the handshake can be changed, neither on the way there nor back.
TEST(TlsSession, EachChangedByteOfTheHandshakeIsFound) {
  const auto context = psk_context();
  size_t flight_sizes[3] = {};
  for (size_t flight = 0; flight < 3; ++flight) {
    for (size_t at = 0; flight_sizes[flight] == 0 || at < flight_sizes[flight]; ++at) {
      Pair pair(*context);
      (void)pair.client.step({});
      bool open = true;
      const auto carry = [&](End& from, End& to, size_t number) {
        Bytes bytes = from.take();
        if (number == flight && bytes.size() > at) {
          flight_sizes[flight] = bytes.size();
          bytes[at] ^= std::byte{0x20};
        }
        return to.step(bytes);
      };
      (void)carry(pair.client, pair.server, 0);
      open &= carry(pair.server, pair.client, 1) == TlsSession::State::kOpen;
      open &= carry(pair.client, pair.server, 2) == TlsSession::State::kOpen;
      ASSERT_GT(flight_sizes[flight], 0u);
      // The version in the header of a record that is not encrypted is not looked at (RFC
      // 8446 5.1).
      const bool ignored = flight != 2 && at == 2;
      EXPECT_TRUE(!open || ignored) << "flight " << flight << " byte " << at;
    }
  }
}

TEST(TlsSession, EachChangedByteOfARecordIsFound) {
  const auto context = psk_context();
  for (size_t at = 0;; ++at) {
    Pair pair(*context);
    ASSERT_TRUE(pair.shake_hands());
    pair.client.write(pattern(64));
    Bytes record = pair.client.take();
    if (at == record.size()) break;
    record[at] ^= std::byte{1};
    EXPECT_TRUE(pair.server.read(record).empty()) << at;
    // A length that has become larger waits for the rest.
    if (pair.server.end == -EAGAIN) {
      EXPECT_TRUE(at == 3 || at == 4) << at;
      EXPECT_TRUE(pair.server.read(Bytes(1024)).empty()) << at;
    }
    EXPECT_EQ(pair.server.end, -ECONNRESET) << at;
    EXPECT_FALSE(pair.server.session->failure().empty());
    // It stays failed.
    EXPECT_TRUE(pair.server.read({}).empty());
    EXPECT_EQ(pair.server.end, -ECONNRESET);
  }
}

TEST(TlsSession, ARecordIsTakenOnceAndInOrder) {
  const auto context = psk_context();
  Pair pair(*context);
  ASSERT_TRUE(pair.shake_hands());
  pair.client.write(pattern(10));
  const Bytes first = pair.client.take();
  EXPECT_EQ(pair.server.read(first), pattern(10));
  EXPECT_TRUE(pair.server.read(first).empty());
  EXPECT_EQ(pair.server.end, -ECONNRESET);
}

TEST(TlsSession, AReplayedStartIsRefused) {
  const auto context = psk_context();
  Pair pair(*context);
  (void)pair.client.step({});
  const Bytes hello = pair.client.take();
  (void)pair.server.step(hello);
  (void)pair.client.step(pair.server.take());
  pair.client.write(pattern(32));
  const Bytes rest = pair.client.take();
  // All that the client has sent, to another session of the server.
  End again(*context, false);
  EXPECT_EQ(again.step(hello), TlsSession::State::kHandshake);
  EXPECT_EQ(again.step(rest), TlsSession::State::kFailed);
}

TEST(TlsSession, KeysAreRenewed) {
  constexpr uint64_t kRecords = 5;
  const auto context = psk_context(kAliceLine, kRecords);
  Pair pair(*context);
  ASSERT_TRUE(pair.shake_hands());
  size_t updates = 0;
  for (int i = 0; i < 40; ++i) {
    pair.client.write(pattern(100));
    const Bytes records = pair.client.take();
    updates += records.size() > 100 + kTlsOverheadBytes;
    ASSERT_EQ(pair.server.read(records), pattern(100)) << i << pair.failures();
    pair.server.write(pattern(50));
    ASSERT_EQ(pair.client.read(pair.server.take()), pattern(50)) << i << pair.failures();
  }
  EXPECT_EQ(updates, (40 - 1) / kRecords);
}

TEST(TlsSession, ARecordMayGoIntoTwoPlaces) {
  const auto context = psk_context();
  Pair pair(*context);
  ASSERT_TRUE(pair.shake_hands());
  pair.client.write(pattern(100));
  const Bytes record = pair.client.take();
  pair.server.session->feed(record);
  Bytes place(60);
  EXPECT_EQ(pair.server.session->read(place, pair.server.out), 60);
  EXPECT_EQ(pair.server.session->pending(), 40u);
  EXPECT_EQ(pair.server.session->read(place, pair.server.out), 40);
  EXPECT_EQ(pair.server.session->pending(), 0u);
}

TEST(TlsSession, AnEndInOrderIsToldFromACut) {
  const auto context = psk_context();
  Pair pair(*context);
  ASSERT_TRUE(pair.shake_hands());
  pair.client.session->close(pair.client.out);
  pair.client.collect();
  EXPECT_TRUE(pair.server.read(pair.client.take()).empty());
  EXPECT_EQ(pair.server.end, 0);
  // The other direction goes on (RFC 8446 6.1).
  pair.server.write(pattern(8));
  EXPECT_EQ(pair.client.read(pair.server.take()), pattern(8));
  pair.client.session->cut();
  EXPECT_EQ(pair.client.read({}).size(), 0u);
  EXPECT_EQ(pair.client.end, -ECONNRESET);
  EXPECT_NE(pair.client.session->failure().find("close_notify"), std::string::npos);
}

}  // namespace
}  // namespace uwarp
