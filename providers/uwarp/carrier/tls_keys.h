// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The keys and certificates of UWARP_TLS, read from their files, and libuwarp-tls.so, which is
// loaded for them only.
#pragma once

#include <memory>
#include <string>

#include "base/settings.h"
#include "carrier/tcp_socket.h"
#include "carrier/tls_stream.h"
#include "tls/session.h"

namespace uwarp {

/// TLS of this process. Made once per process; then any thread.
class TlsKeys {
 public:
  /// Reads what `settings` names. If anything is wrong, connections are refused: error() says why.
  static TlsKeys take(const Settings& settings);

  /// Connections must be protected.
  bool wanted() const { return wanted_; }
  /// What keeps this process from connecting, and its cure. Empty: nothing.
  const std::string& error() const { return error_; }
  /// What protects `socket`, which outlives it; `active`: this end has connected. Null: there is no
  /// memory. Only if wanted() and without an error().
  std::unique_ptr<TlsStream> protect(TcpSocket& socket, bool active) const;
  /// Of OpenSSL; empty unless it is loaded.
  const std::string& library() const { return library_; }

 private:
  std::string open(const Settings& settings);

  bool wanted_ = false;
  std::string error_;
  std::string library_;
  std::unique_ptr<TlsContext> context_;
};

/// For what cannot be protected, named by `what`: EPROTONOSUPPORT and a line in the log while
/// UWARP_TLS is on, else 0.
int refuse_unprotected(const char* what);

}  // namespace uwarp
