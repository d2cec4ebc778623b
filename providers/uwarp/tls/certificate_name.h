// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// How a certificate names its owner.
#pragma once

#include <openssl/x509.h>

#include <string>

namespace uwarp {

/// The first DNS name or URI of subjectAltName that is an identity (is_identity()), else such a
/// common name; empty if there is none, or `certificate` is null.
std::string name_of_certificate(const X509* certificate);

}  // namespace uwarp
