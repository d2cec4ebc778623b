// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Why a session has failed, in words for the user, with what can be done.
#pragma once

#include <string>

namespace uwarp {

/// Of an entry of OpenSSL's error queue; 0: there is none. `by_certificate`: not by pre-shared
/// keys.
std::string text_of_error(unsigned long error, bool by_certificate);
/// Of X509_V_ERR_*.
std::string text_of_verdict(long verdict);

}  // namespace uwarp
