// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Keys and rules of a process, for OpenSSL: TLS 1.3 alone, both sides proved, nothing resumed.
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>

#include <cstring>
#include <memory>
#include <new>
#include <string>

#include "tls/key_list.h"
#include "tls/openssl_session.h"
#include "tls/session.h"

namespace uwarp {

namespace {

/// RFC 8446 B.4, in the order of their cost. A key of UWARP_TLS_PSK is used with SHA-256, which the
/// first and the third have (RFC 8446 4.2.11).
constexpr char kSuites[] =
    "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256";
constexpr unsigned char kPskSuite[] = {0x13, 0x01};  // TLS_AES_128_GCM_SHA256
constexpr unsigned char kSessions[] = {'u', 'w', 'a', 'r', 'p'};
constexpr int kMostChain = 8;

template <auto Free>
struct FreeBy {
  void operator()(auto* object) const { Free(object); }
};
using BioPointer = std::unique_ptr<BIO, FreeBy<BIO_free>>;
using CertificatePointer = std::unique_ptr<X509, FreeBy<X509_free>>;
using KeyPointer = std::unique_ptr<EVP_PKEY, FreeBy<EVP_PKEY_free>>;

BioPointer reader_of(std::string_view text) {
  return BioPointer(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

/// No key is asked for on a terminal.
int no_password(char*, int, int, void*) { return -1; }

class OpensslContext final : public TlsContext {
 public:
  ~OpensslContext() override;
  /// Returns what is wrong, or an empty text.
  std::string prepare(const TlsMaterial& material);
  std::unique_ptr<TlsSession> begin(bool active) override;

  const KeyList& keys() const { return keys_; }
  static const OpensslContext& of(const SSL* ssl) {
    return *static_cast<const OpensslContext*>(SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl)));
  }

 private:
  void set_rules();
  std::string take_certificate(std::string_view pem);
  std::string take_key(std::string_view pem);
  std::string take_authorities(std::string_view pem);

  std::unique_ptr<SSL_CTX, FreeBy<SSL_CTX_free>> context_;
  std::unique_ptr<BIO_METHOD, FreeBy<BIO_meth_free>> bytes_;
  KeyList keys_;
  bool by_certificate_ = false;
  uint64_t records_per_key_ = 0;
};

OpensslContext::~OpensslContext() = default;

// --- Pre-shared keys (RFC 8446 4.2.11)

/// Null: OpenSSL has no memory.
SSL_SESSION* session_of(SSL* ssl, const PresharedKey& key) {
  std::unique_ptr<SSL_SESSION, FreeBy<SSL_SESSION_free>> session(SSL_SESSION_new());
  const SSL_CIPHER* const suite = SSL_CIPHER_find(ssl, kPskSuite);
  if (session == nullptr || suite == nullptr ||
      SSL_SESSION_set1_master_key(session.get(), key.bytes.data(), key.bytes.size()) != 1 ||
      SSL_SESSION_set1_id_context(session.get(), kSessions, sizeof kSessions) != 1 ||
      SSL_SESSION_set_cipher(session.get(), suite) != 1 ||
      SSL_SESSION_set_protocol_version(session.get(), TLS1_3_VERSION) != 1)
    return nullptr;
  return session.release();
}

/// The connecting side: with its first key.
int use_own_key(SSL* ssl, const EVP_MD* digest, const unsigned char** id, size_t* id_size,
                SSL_SESSION** session) {
  const PresharedKey& key = OpensslContext::of(ssl).keys().own();
  *session = nullptr;
  *id = nullptr;
  *id_size = 0;
  // After a HelloRetryRequest only what fits its hash may be offered.
  if (digest != nullptr && !EVP_MD_is_a(digest, "SHA256")) return 1;
  *session = session_of(ssl, key);
  if (*session == nullptr) return 0;
  *id = reinterpret_cast<const unsigned char*>(key.identity.data());
  *id_size = key.identity.size();
  OpensslSession::of(ssl).note_identity(key.identity);
  return 1;
}

/// The other side: whichever key the peer names.
int find_key(SSL* ssl, const unsigned char* id, size_t id_size, SSL_SESSION** session) {
  const std::string_view identity(reinterpret_cast<const char*>(id), id_size);
  const PresharedKey* const key = OpensslContext::of(ssl).keys().find(identity);
  *session = nullptr;
  if (key == nullptr) {
    const bool printable = is_identity(identity);
    OpensslSession::of(ssl).note_failure(
        "the peer has a key of the unknown identity " +
        (printable ? std::string(identity) : std::string("(not printable)")) +
        ": UWARP_TLS_PSK must have its line on both sides");
    return 1;
  }
  *session = session_of(ssl, *key);
  if (*session == nullptr) return 0;
  OpensslSession::of(ssl).note_identity(key->identity);
  return 1;
}

// --- Rules

void OpensslContext::set_rules() {
  SSL_CTX* const context = context_.get();
  SSL_CTX_set_app_data(context, this);
  (void)SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION);
  (void)SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION);
  (void)SSL_CTX_set_ciphersuites(context, kSuites);
  // Both sides are proved (RFC 8446 4.4.2.4). With pre-shared keys no certificate is trusted.
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  SSL_CTX_set_verify_depth(context, kMostChain);
  (void)SSL_CTX_set_session_id_context(context, kSessions, sizeof kSessions);
  // Nothing is resumed, so that no start can be replayed (RFC 8446 8).
  (void)SSL_CTX_set_num_tickets(context, 0);
  (void)SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  (void)SSL_CTX_set_max_early_data(context, 0);
  (void)SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION |
                                         SSL_OP_CIPHER_SERVER_PREFERENCE |
                                         SSL_OP_PRIORITIZE_CHACHA);
  (void)SSL_CTX_clear_options(context, SSL_OP_ENABLE_MIDDLEBOX_COMPAT);
  // Records are written whole, at the place where they are to go.
  (void)SSL_CTX_set_mode(context, SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
}

std::string OpensslContext::prepare(const TlsMaterial& material) {
  by_certificate_ = material.by_certificate;
  records_per_key_ = material.records_per_key;
  context_.reset(SSL_CTX_new(TLS_method()));
  bytes_.reset(OpensslSession::make_method());
  if (context_ == nullptr || bytes_ == nullptr) return "OpenSSL has no memory";
  set_rules();
  if (!material.by_certificate) {
    const std::string wrong = keys_.parse(material.psk);
    if (!wrong.empty()) return "UWARP_TLS_PSK: " + wrong;
    SSL_CTX_set_psk_use_session_callback(context_.get(), use_own_key);
    SSL_CTX_set_psk_find_session_callback(context_.get(), find_key);
    return {};
  }
  std::string wrong = take_certificate(material.certificate);
  if (wrong.empty()) wrong = take_key(material.key);
  if (wrong.empty()) wrong = take_authorities(material.authorities);
  return wrong;
}

std::string OpensslContext::take_certificate(std::string_view pem) {
  const BioPointer reader = reader_of(pem);
  const CertificatePointer own(PEM_read_bio_X509(reader.get(), nullptr, no_password, nullptr));
  if (own == nullptr || SSL_CTX_use_certificate(context_.get(), own.get()) != 1)
    return "UWARP_TLS_CERT: no certificate in PEM, or one that OpenSSL refuses";
  while (X509* const next = PEM_read_bio_X509(reader.get(), nullptr, no_password, nullptr))
    if (SSL_CTX_add0_chain_cert(context_.get(), next) != 1) X509_free(next);
  return {};
}

std::string OpensslContext::take_key(std::string_view pem) {
  const BioPointer reader = reader_of(pem);
  const KeyPointer key(PEM_read_bio_PrivateKey(reader.get(), nullptr, no_password, nullptr));
  if (key == nullptr) return "UWARP_TLS_KEY: no private key in PEM without a password";
  if (SSL_CTX_use_PrivateKey(context_.get(), key.get()) != 1)
    return "UWARP_TLS_KEY: this key is not that of the certificate in UWARP_TLS_CERT";
  return {};
}

std::string OpensslContext::take_authorities(std::string_view pem) {
  const BioPointer reader = reader_of(pem);
  X509_STORE* const store = SSL_CTX_get_cert_store(context_.get());
  int count = 0;
  for (;;) {
    const CertificatePointer one(PEM_read_bio_X509(reader.get(), nullptr, no_password, nullptr));
    if (one == nullptr) break;
    if (X509_STORE_add_cert(store, one.get()) == 1) ++count;
  }
  return count == 0 ? "UWARP_TLS_CA: no certificate of an authority in PEM" : "";
}

std::unique_ptr<TlsSession> OpensslContext::begin(bool active) {
  SslPointer ssl(SSL_new(context_.get()));
  if (ssl == nullptr) return nullptr;
  SSL* const raw = ssl.get();
  std::unique_ptr<OpensslSession> session(
      new (std::nothrow) OpensslSession(std::move(ssl), by_certificate_, records_per_key_));
  if (session == nullptr || !session->connect_bytes(bytes_.get())) return nullptr;
  active ? SSL_set_connect_state(raw) : SSL_set_accept_state(raw);
  return session;
}

std::unique_ptr<TlsContext> open_context(const TlsMaterial& material, std::string& error) {
  // The process may go on after the exit handlers of OpenSSL.
  if (OPENSSL_init_ssl(OPENSSL_INIT_NO_ATEXIT, nullptr) != 1) {
    error = "OpenSSL cannot be started";
    return nullptr;
  }
  auto made = std::make_unique<OpensslContext>();
  error = made->prepare(material);
  ERR_clear_error();  // of the end of PEM texts
  if (!error.empty()) return nullptr;
  return made;
}

const char* library_version() { return OpenSSL_version(OPENSSL_VERSION); }

}  // namespace

}  // namespace uwarp

extern "C" {
extern __attribute__((visibility("default"))) const uwarp::TlsModule uwarp_tls;
const uwarp::TlsModule uwarp_tls = {UWARP_VERSION, uwarp::open_context, uwarp::library_version};
}
