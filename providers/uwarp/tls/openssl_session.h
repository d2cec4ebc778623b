// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A session of TLS 1.3 by OpenSSL, between spans of bytes.
#pragma once

#include <openssl/bio.h>
#include <openssl/ssl.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "tls/session.h"

namespace uwarp {

struct FreeSsl {
  void operator()(SSL* ssl) const { SSL_free(ssl); }
};
using SslPointer = std::unique_ptr<SSL, FreeSsl>;

class OpensslSession final : public TlsSession {
 public:
  /// Takes `ssl`, which is not connected to anything yet.
  OpensslSession(SslPointer ssl, bool by_certificate, uint64_t records_per_key);

  /// False without memory.
  bool connect_bytes(const BIO_METHOD* method);
  /// Kind of BIO that connect_bytes() needs. Null without memory.
  static BIO_METHOD* make_method();
  /// The session behind `ssl`, for callbacks.
  static OpensslSession& of(const SSL* ssl);

  void feed(std::span<const std::byte> bytes) override { input_ = bytes; }
  size_t unread() const override { return input_.size(); }
  size_t missing() const override { return missing_; }
  size_t pending() const override { return static_cast<size_t>(SSL_pending(ssl_.get())); }
  State shake_hands(TlsOutput& out) override;
  ssize_t read(std::span<std::byte> place, TlsOutput& out) override;
  int write(std::span<const std::byte> bytes, TlsOutput& out) override;
  void close(TlsOutput& out) override;
  void cut() override;
  const std::string& identity() const override { return identity_; }
  const std::string& failure() const override { return failure_; }

  /// For callbacks of OpenSSL: the key that the peer has named, and what is wrong with it.
  void note_identity(std::string_view identity) { identity_ = identity; }
  void note_failure(std::string failure);

 private:
  static int read_bytes(BIO* bio, char* to, size_t size, size_t* count);
  static int write_bytes(BIO* bio, const char* from, size_t size, size_t* count);
  static long control(BIO* bio, int command, long argument, void* pointer);

  static constexpr uint32_t kFewUses = 32;

  void note_use();
  bool take_identity();
  bool wants_more() const;
  void fail();

  SslPointer ssl_;
  const bool by_certificate_;
  const uint64_t records_per_key_;
  std::span<const std::byte> input_;
  TlsOutput* output_ = nullptr;  // during a call
  size_t missing_ = 0;
  bool header_next_ = true;  // the next bytes that are read begin a record
  uint64_t records_ = 0;     // that this key has protected
  uint32_t uses_ = 0;
  std::string identity_;
  std::string failure_;
};

}  // namespace uwarp
