// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "tls/certificate_name.h"

#include <openssl/x509v3.h>

#include <memory>

#include "tls/key_list.h"

namespace uwarp {

namespace {

struct FreeNames {
  void operator()(GENERAL_NAMES* names) const { GENERAL_NAMES_free(names); }
};

// With its length: a zero in a name ends nothing.
std::string identity_of(const ASN1_STRING* text) {
  if (text == nullptr) return {};
  std::string name(reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
                   static_cast<size_t>(ASN1_STRING_length(text)));
  return is_identity(name) ? name : std::string();
}

std::string alternative_name(const X509* certificate) {
  const std::unique_ptr<GENERAL_NAMES, FreeNames> names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  const int count = names != nullptr ? sk_GENERAL_NAME_num(names.get()) : 0;
  for (int i = 0; i < count; ++i) {
    const GENERAL_NAME* const name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_DNS && name->type != GEN_URI) continue;
    std::string found = identity_of(name->d.ia5);
    if (!found.empty()) return found;
  }
  return {};
}

std::string common_name(const X509* certificate) {
  const X509_NAME* const subject = X509_get_subject_name(certificate);
  const int at = X509_NAME_get_index_by_NID(subject, NID_commonName, -1);
  return at < 0 ? std::string()
                : identity_of(X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at)));
}

}  // namespace

std::string name_of_certificate(const X509* certificate) {
  if (certificate == nullptr) return {};
  std::string name = alternative_name(certificate);
  return name.empty() ? common_name(certificate) : name;
}

}  // namespace uwarp
