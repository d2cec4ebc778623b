// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Certificates that a test makes for itself.
#pragma once

#include <openssl/ec.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <memory>
#include <string>

#include "unit/tls/sessions.h"

namespace uwarp {

struct Issued {
  std::string certificate;
  std::string key;
};

struct Terms {
  long days = 1;                      // from now; less than 0: it has expired
  const char* alternative = nullptr;  // subjectAltName
};

class Authority {
 public:
  explicit Authority(const char* name) : key_(EVP_EC_gen("P-256"), EVP_PKEY_free) {
    certificate_ = make(name, key_.get(), Terms{});
  }

  std::string pem() const { return text_of(certificate_.get()); }
  Issued issue(const char* name, const Terms& terms = Terms{}) const {
    const Key key(EVP_EC_gen("P-256"), EVP_PKEY_free);
    const Certificate made = make(name, key.get(), terms);
    BIO* const bio = BIO_new(BIO_s_mem());
    PEM_write_bio_PrivateKey(bio, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
    return {text_of(made.get()), drain(bio)};
  }
  /// Of a process with such a certificate, which trusts `trusted` (null: this authority).
  std::unique_ptr<TlsContext> context(const char* name, const Terms& terms = Terms{},
                                      const Authority* trusted = nullptr) const {
    const Issued issued = issue(name, terms);
    const std::string authorities = (trusted != nullptr ? trusted : this)->pem();
    return context_of({.by_certificate = true,
                       .certificate = issued.certificate,
                       .key = issued.key,
                       .authorities = authorities});
  }

 private:
  using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;
  using Certificate = std::unique_ptr<X509, decltype(&X509_free)>;

  static std::string drain(BIO* bio) {
    char* data = nullptr;
    const long size = BIO_get_mem_data(bio, &data);
    std::string text(data, static_cast<size_t>(size));
    BIO_free(bio);
    return text;
  }
  static std::string text_of(X509* certificate) {
    BIO* const bio = BIO_new(BIO_s_mem());
    PEM_write_bio_X509(bio, certificate);
    return drain(bio);
  }
  static void add_extension(X509* to, X509* issuer, int kind, const char* value) {
    X509V3_CTX context;
    X509V3_set_ctx_nodb(&context);
    X509V3_set_ctx(&context, issuer, to, nullptr, nullptr, 0);
    X509_EXTENSION* const made = X509V3_EXT_conf_nid(nullptr, &context, kind, value);
    X509_add_ext(to, made, -1);
    X509_EXTENSION_free(made);
  }
  Certificate make(const char* name, EVP_PKEY* key, const Terms& terms) const {
    constexpr long kDay = 24 * 3600;
    Certificate made(X509_new(), X509_free);
    X509_set_version(made.get(), 2);
    static long serial = 1;
    ASN1_INTEGER_set(X509_get_serialNumber(made.get()), serial++);
    X509_gmtime_adj(X509_getm_notBefore(made.get()), -2 * kDay);
    X509_gmtime_adj(X509_getm_notAfter(made.get()), terms.days * kDay);
    X509_set_pubkey(made.get(), key);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(made.get()), "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>(name), -1, -1, 0);
    X509* const issuer = certificate_ != nullptr ? certificate_.get() : made.get();
    X509_set_issuer_name(made.get(), X509_get_subject_name(issuer));
    if (certificate_ == nullptr)
      add_extension(made.get(), issuer, NID_basic_constraints, "critical,CA:TRUE");
    if (terms.alternative != nullptr)
      add_extension(made.get(), issuer, NID_subject_alt_name, terms.alternative);
    X509_sign(made.get(), key_.get(), EVP_sha256());
    return made;
  }

  Key key_;
  Certificate certificate_{nullptr, X509_free};
};

}  // namespace uwarp
