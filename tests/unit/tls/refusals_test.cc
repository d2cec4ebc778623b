// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Peers that prove nothing, or something else: neither side opens, and the text says what to do.
#include "unit/tls/certificates.h"
#include "unit/tls/sessions.h"

namespace uwarp {
namespace {

/// Expects that the handshake fails with these words in the failures of either end.
void expect_refused(TlsContext& client, TlsContext& server, const char* at_client,
                    const char* at_server) {
  Pair pair(client, server);
  EXPECT_FALSE(pair.shake_hands());
  EXPECT_NE(pair.client.session->failure().find(at_client), std::string::npos) << pair.failures();
  EXPECT_NE(pair.server.session->failure().find(at_server), std::string::npos) << pair.failures();
  // Nothing goes through what has failed.
  EXPECT_NE(pair.server.session->write(to_bytes("x"), pair.server.out), 0);
}

constexpr char kOtherAlice[] = "alice:ffffffffffffffffffffffffffffffff\n";
constexpr char kBob[] = "bob:ffffffffffffffffffffffffffffffff\n";

TEST(TlsRefusals, AnotherKey) {
  const auto client = psk_context(kOtherAlice), server = psk_context();
  expect_refused(*client, *server, "different keys", "different keys");
}

TEST(TlsRefusals, AnUnknownIdentity) {
  const auto client = psk_context(kBob), server = psk_context();
  expect_refused(*client, *server, "does not know this side's key", "unknown identity bob");
}

TEST(TlsRefusals, TheServerTakesEachOfItsKeysAndTheClientShowsTheFirst) {
  const auto client = psk_context(kBob);
  const auto server = psk_context(std::string(kAliceLine) + kBob);
  Pair pair(*client, *server);
  ASSERT_TRUE(pair.shake_hands()) << pair.failures();
  EXPECT_EQ(pair.server.session->identity(), "bob");
  Pair back(*server, *client);
  EXPECT_FALSE(back.shake_hands());
}

TEST(TlsRefusals, APeerWithoutTls) {
  const auto context = psk_context();
  for (const bool active : {true, false}) {
    End end(*context, active);
    if (active) (void)end.step({});
    EXPECT_EQ(end.step(to_bytes("MPA ID Req Frame....")), TlsSession::State::kFailed);
    EXPECT_NE(end.session->failure().find("does not speak TLS"), std::string::npos)
        << end.session->failure();
  }
}

TEST(TlsRefusals, CertificatesInsteadOfKeysAndBack) {
  const Authority authority("ca");
  const auto cert = authority.context("node1"), psk = psk_context();
  expect_refused(*psk, *cert, "the peer uses certificates", "");
  expect_refused(*cert, *psk, "", "the peer wants certificates");
}

TEST(TlsRefusals, CertificatesOfOneAuthority) {
  const Authority authority("ca");
  const auto client = authority.context("node1"), server = authority.context("node2");
  Pair pair(*client, *server);
  ASSERT_TRUE(pair.shake_hands()) << pair.failures();
  EXPECT_EQ(pair.client.session->identity(), "node2");
  EXPECT_EQ(pair.server.session->identity(), "node1");
}

// The client learns of it from what it reads first.
TEST(TlsRefusals, ACertificateOfAnotherAuthority) {
  const Authority own("ca"), other("another");
  const auto right = own.context("node1");
  const auto foreign = other.context("node2", {}, &own);
  expect_refused(*right, *foreign, "UWARP_TLS_CA must hold", "does not trust");
  Pair pair(*foreign, *right);
  EXPECT_FALSE(pair.shake_hands());
  EXPECT_NE(pair.server.session->failure().find("refused"), std::string::npos) << pair.failures();
  (void)pair.client.read(pair.server.take());
  (void)pair.client.read({});
  EXPECT_NE(pair.client.session->failure().find("trust"), std::string::npos) << pair.failures();
}

TEST(TlsRefusals, AnExpiredCertificate) {
  const Authority authority("ca");
  const auto right = authority.context("node1");
  const auto expired = authority.context("node2", {.days = -1});
  Pair pair(*right, *expired);
  EXPECT_FALSE(pair.shake_hands());
  EXPECT_NE(pair.client.session->failure().find("expired"), std::string::npos) << pair.failures();
  Pair back(*expired, *right);
  EXPECT_FALSE(back.shake_hands());
  EXPECT_NE(back.server.session->failure().find("compare the clocks"), std::string::npos);
}

TEST(TlsRefusals, ACertificateWithoutAName) {
  const Authority authority("ca");
  const auto right = authority.context("node1");
  const auto nameless = authority.context("two words");
  Pair pair(*nameless, *right);
  EXPECT_FALSE(pair.shake_hands());
  EXPECT_NE(pair.server.session->failure().find("has no name"), std::string::npos)
      << pair.failures();
}

TEST(TlsRefusals, TheNameIsTheFirstAlternativeName) {
  const Authority authority("ca");
  const auto client = authority.context("node1", {.alternative = "URI:spiffe://site/node1"});
  const auto server = authority.context("node2", {.alternative = "IP:127.0.0.1,DNS:two.example"});
  Pair pair(*client, *server);
  ASSERT_TRUE(pair.shake_hands()) << pair.failures();
  EXPECT_EQ(pair.client.session->identity(), "two.example");
  EXPECT_EQ(pair.server.session->identity(), "spiffe://site/node1");
}

TEST(TlsRefusals, MaterialThatIsWrong) {
  const Authority authority("ca");
  const auto error_of = [](const TlsMaterial& material) {
    std::string error;
    EXPECT_EQ(uwarp_tls.open(material, error), nullptr);
    return error;
  };
  const Issued one = authority.issue("node1"), two = authority.issue("node2");
  EXPECT_NE(error_of({.psk = "alice"}).find("UWARP_TLS_PSK: line 1"), std::string::npos);
  TlsMaterial material{.by_certificate = true,
                       .certificate = one.certificate,
                       .key = two.key,
                       .authorities = authority.pem()};
  EXPECT_NE(error_of(material).find("not that of the certificate"), std::string::npos);
  material.key = one.key;
  material.authorities = "";
  EXPECT_NE(error_of(material).find("UWARP_TLS_CA"), std::string::npos);
  material.certificate = "no PEM";
  EXPECT_NE(error_of(material).find("UWARP_TLS_CERT"), std::string::npos);
  material.certificate = one.certificate;
  material.key = "";
  EXPECT_NE(error_of(material).find("UWARP_TLS_KEY"), std::string::npos);
}

}  // namespace
}  // namespace uwarp
