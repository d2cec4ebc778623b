// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// TLS: whether it is on, and whether its files and the module are as they must be.
#include "carrier/tls_keys.h"
#include "machine.h"

namespace doctor {

void check_tls(Report& report, const uwarp::Settings& settings) {
  const uwarp::TlsKeys keys = uwarp::TlsKeys::take(settings);
  if (!keys.wanted())
    report.ok("tls", "UWARP_TLS is off: connections are neither encrypted nor authenticated");
  else if (!keys.error().empty())
    report.problem("tls", keys.error(), "docs/security.md, TLS, says how the files are made");
  else
    report.ok("tls", std::string("UWARP_TLS=") +
                         (settings.tls == uwarp::TlsMode::kCert ? "cert" : "psk") + " by " +
                         keys.library() + ", in the process (kTLS is not used)");
}

}  // namespace doctor
