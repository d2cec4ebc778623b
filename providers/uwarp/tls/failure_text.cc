// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "tls/failure_text.h"

#include <openssl/err.h>
#include <openssl/sslerr.h>
#include <openssl/x509_vfy.h>

#include <algorithm>
#include <iterator>

namespace uwarp {

namespace {

constexpr char kOtherKey[] =
    "the two sides have different keys for this identity: give both the same line of UWARP_TLS_PSK";
constexpr char kNoTls[] = "the peer does not speak TLS: set UWARP_TLS on both sides, as it is here";
constexpr char kRefused[] = "the peer refuses this side's certificate: its log says why";
constexpr char kChanged[] = "a record was changed on the way";

struct Known {
  int reason;
  const char* text;
};

/// What this side has found, and then alerts of the peer (RFC 8446 6.2).
constexpr Known kKnown[] = {
    {SSL_R_WRONG_VERSION_NUMBER, kNoTls},
    {SSL_R_HTTP_REQUEST, kNoTls},
    {SSL_R_HTTPS_PROXY_REQUEST, kNoTls},
    {SSL_R_UNSUPPORTED_PROTOCOL, "the peer speaks an older TLS than 1.3"},
    {SSL_R_BINDER_DOES_NOT_VERIFY, kOtherKey},
    {SSL_R_DECRYPTION_FAILED_OR_BAD_RECORD_MAC, kChanged},
    {SSL_R_SSLV3_ALERT_BAD_RECORD_MAC, kChanged},
    {SSL_R_NO_SUITABLE_SIGNATURE_ALGORITHM,
     "the peer wants certificates: set UWARP_TLS=cert on both sides, or psk on both"},
    {SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE,
     "the peer has no certificate: set UWARP_TLS=cert with UWARP_TLS_CERT and UWARP_TLS_KEY there"},
    {SSL_R_SSLV3_ALERT_ILLEGAL_PARAMETER, kOtherKey},
    {SSL_R_TLSV1_ALERT_DECRYPT_ERROR, kOtherKey},
    {SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE,
     "the peer does not know this side's key, or uses certificates: its log says which; give both "
     "the "
     "same line of UWARP_TLS_PSK and the same UWARP_TLS"},
    {SSL_R_TLSV1_ALERT_INTERNAL_ERROR, "the peer has refused it: its log says why"},
    {SSL_R_TLSV1_ALERT_UNKNOWN_CA,
     "the peer does not trust this side's certificate: its UWARP_TLS_CA must hold the authority of "
     "UWARP_TLS_CERT"},
    {SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED,
     "this side's certificate has expired, says the peer: renew UWARP_TLS_CERT"},
    {SSL_R_SSLV3_ALERT_BAD_CERTIFICATE, kRefused},
    {SSL_R_SSLV3_ALERT_CERTIFICATE_REVOKED, "this side's certificate is revoked, says the peer"},
    {SSL_R_SSLV3_ALERT_UNSUPPORTED_CERTIFICATE,
     "the peer refuses the purpose of this side's certificate: it must be for clients and servers"},
    {SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED,
     "the peer wants a certificate: set UWARP_TLS=cert on both sides"},
};

}  // namespace

std::string text_of_error(unsigned long error, bool by_certificate) {
  if (error == 0) return "the session has failed";
  const int reason = ERR_GET_REASON(error);
  const auto* const known = std::find_if(std::begin(kKnown), std::end(kKnown),
                                         [&](const Known& one) { return one.reason == reason; });
  if (ERR_GET_LIB(error) == ERR_LIB_SSL && known != std::end(kKnown))
    return by_certificate && known->text == kOtherKey ? kRefused : known->text;
  const char* const text = ERR_reason_error_string(error);
  return std::string("the session has failed: ") + (text != nullptr ? text : "unknown error");
}

std::string text_of_verdict(long verdict) {
  const std::string what =
      std::string("the peer's certificate is refused: ") + X509_verify_cert_error_string(verdict);
  switch (verdict) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return what + "; renew it, and compare the clocks";
    default:
      return what + "; UWARP_TLS_CA must hold the authority that has signed it";
  }
}

}  // namespace uwarp
