// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "tls/openssl_session.h"

#include <openssl/err.h>
#include <openssl/sslerr.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "tls/certificate_name.h"
#include "tls/failure_text.h"

namespace uwarp {

OpensslSession::OpensslSession(SslPointer ssl, bool by_certificate, uint64_t records_per_key)
    : ssl_(std::move(ssl)), by_certificate_(by_certificate), records_per_key_(records_per_key) {
  SSL_set_app_data(ssl_.get(), this);
  SSL_set_mode(ssl_.get(), SSL_MODE_RELEASE_BUFFERS);
}

// A connection that is idle from its start on needs no memory for records (33 KiB); one that is
// used allocates none for each.
inline void OpensslSession::note_use() {
  if (uses_ < kFewUses && ++uses_ == kFewUses) SSL_clear_mode(ssl_.get(), SSL_MODE_RELEASE_BUFFERS);
}

OpensslSession& OpensslSession::of(const SSL* ssl) {
  return *static_cast<OpensslSession*>(SSL_get_app_data(ssl));
}

// --- Bytes

BIO_METHOD* OpensslSession::make_method() {
  BIO_METHOD* const method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "uwarp");
  if (method == nullptr) return nullptr;
  BIO_meth_set_read_ex(method, read_bytes);
  BIO_meth_set_write_ex(method, write_bytes);
  BIO_meth_set_ctrl(method, control);
  return method;
}

bool OpensslSession::connect_bytes(const BIO_METHOD* method) {
  BIO* const bio = BIO_new(method);
  if (bio == nullptr) return false;
  BIO_set_data(bio, this);
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl_.get(), bio, bio);
  return true;
}

// OpenSSL asks for the header of a record, then for the rest of it, and for no byte more.
int OpensslSession::read_bytes(BIO* bio, char* to, size_t size, size_t* count) {
  auto& session = *static_cast<OpensslSession*>(BIO_get_data(bio));
  BIO_clear_retry_flags(bio);
  *count = std::min(size, session.input_.size());
  if (*count == 0) {
    const bool between = session.header_next_ && size == SSL3_RT_HEADER_LENGTH;
    session.missing_ = between ? 0 : size;
    BIO_set_retry_read(bio);
    return 0;
  }
  std::copy_n(reinterpret_cast<const char*>(session.input_.data()), *count, to);
  session.input_ = session.input_.subspan(*count);
  if (*count == size) session.header_next_ = !session.header_next_;
  return 1;
}

int OpensslSession::write_bytes(BIO* bio, const char* from, size_t size, size_t* count) {
  const auto& session = *static_cast<OpensslSession*>(BIO_get_data(bio));
  BIO_clear_retry_flags(bio);
  if (session.output_ == nullptr || !session.output_->append(from, size)) return 0;
  *count = size;
  return 1;
}

long OpensslSession::control(BIO* /*bio*/, int command, long /*argument*/, void* /*pointer*/) {
  return command == BIO_CTRL_FLUSH ? 1 : 0;
}

// --- The handshake

TlsSession::State OpensslSession::shake_hands(TlsOutput& out) {
  if (!failure_.empty()) return State::kFailed;
  output_ = &out;
  ERR_clear_error();
  const int done = SSL_do_handshake(ssl_.get());
  if (done == 1 && take_identity()) return State::kOpen;
  if (done != 1 && wants_more()) return State::kHandshake;
  fail();
  return State::kFailed;
}

// With pre-shared keys note_identity() has named the key. A peer that has shown something else
// instead has proved nothing.
bool OpensslSession::take_identity() {
  if (!by_certificate_) return SSL_session_reused(ssl_.get()) == 1 && !identity_.empty();
  identity_ = name_of_certificate(SSL_get0_peer_certificate(ssl_.get()));
  if (!identity_.empty()) return true;
  note_failure(
      "the peer's certificate has no name that can stand in a list: give it a DNS name or a URI as "
      "subjectAltName, or a common name without spaces");
  return false;
}

void OpensslSession::note_failure(std::string failure) {
  if (failure_.empty()) failure_ = std::move(failure);
}

// OpenSSL also says that it wants to read where it has failed inside a message of the handshake.
bool OpensslSession::wants_more() const {
  return SSL_want_read(ssl_.get()) && std::strcmp(SSL_state_string(ssl_.get()), "SSLERR") != 0;
}

void OpensslSession::fail() {
  const unsigned long error = ERR_peek_last_error();
  const bool refused = ERR_GET_REASON(error) == SSL_R_CERTIFICATE_VERIFY_FAILED;
  if (refused && by_certificate_) note_failure(text_of_verdict(SSL_get_verify_result(ssl_.get())));
  note_failure(refused ? "the peer uses certificates: set the same UWARP_TLS on both sides"
                       : text_of_error(error, by_certificate_));
  ERR_clear_error();
}

// --- Records

// Its error queue is left alone where nothing is wrong, as the thread is the application's.
ssize_t OpensslSession::read(std::span<std::byte> place, TlsOutput& out) {
  if (!failure_.empty()) return -ECONNRESET;
  output_ = &out;
  note_use();
  size_t count = 0;
  if (SSL_read_ex(ssl_.get(), place.data(), place.size(), &count) == 1) [[likely]]
    return static_cast<ssize_t>(count);
  if (wants_more()) return -EAGAIN;
  if ((SSL_get_shutdown(ssl_.get()) & SSL_RECEIVED_SHUTDOWN) != 0 && ERR_peek_error() == 0)
    return 0;
  fail();
  return -ECONNRESET;
}

int OpensslSession::write(std::span<const std::byte> bytes, TlsOutput& out) {
  if (!failure_.empty()) return ECONNRESET;
  output_ = &out;
  note_use();
  if (++records_ > records_per_key_) [[unlikely]] {
    records_ = 1;
    (void)SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_NOT_REQUESTED);
  }
  size_t count = 0;
  if (SSL_write_ex(ssl_.get(), bytes.data(), bytes.size(), &count) == 1 && count == bytes.size())
      [[likely]]
    return 0;
  fail();
  return ECONNRESET;
}

void OpensslSession::close(TlsOutput& out) {
  if (!failure_.empty() || SSL_is_init_finished(ssl_.get()) == 0) return;
  output_ = &out;
  (void)SSL_shutdown(ssl_.get());
}

void OpensslSession::cut() {
  note_failure(
      SSL_is_init_finished(ssl_.get()) != 0
          ? "the stream ends without a close_notify: the peer's process was killed, or the "
            "stream was cut on the way"
          : "the handshake did not end: the peer has closed, or does not answer. Look at its log; "
            "both sides need the same UWARP_TLS");
}

}  // namespace uwarp
