// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// raw_tls: what plain TLS 1.3 over TCP does here, by the same OpenSSL and with the same suite as
// UWARP_TLS=psk, each end with its socket under OpenSSL. Knows nothing of RDMA.
#include <openssl/ssl.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <vector>

#include "ends/buffers.h"
#include "ends/round_trips.h"
#include "ends/run_mode.h"
#include "ends/sockets.h"
#include "raw_tls/options.h"

namespace uwarp::bench {
namespace {

constexpr unsigned char kKey[32] = {1, 2, 3};
constexpr char kIdentity[] = "bench";
constexpr size_t kFrameBytes = 24;  // MPA request or reply, as in raw_tcp connects

SSL_SESSION* session_of(SSL* ssl) {
  constexpr unsigned char kSuite[] = {0x13, 0x01};
  SSL_SESSION* const session = SSL_SESSION_new();
  SSL_SESSION_set1_master_key(session, kKey, sizeof kKey);
  SSL_SESSION_set_cipher(session, SSL_CIPHER_find(ssl, kSuite));
  SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION);
  return session;
}

int use_key(SSL* ssl, const EVP_MD*, const unsigned char** id, size_t* size,
            SSL_SESSION** session) {
  *id = reinterpret_cast<const unsigned char*>(kIdentity);
  *size = sizeof kIdentity - 1;
  *session = session_of(ssl);
  return 1;
}

int find_key(SSL* ssl, const unsigned char*, size_t, SSL_SESSION** session) {
  *session = session_of(ssl);
  return 1;
}

SSL_CTX* context() {
  static SSL_CTX* const made = [] {
    SSL_CTX* const context = SSL_CTX_new(TLS_method());
    SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION);
    SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256");
    SSL_CTX_set_num_tickets(context, 0);
    SSL_CTX_set_psk_use_session_callback(context, use_key);
    SSL_CTX_set_psk_find_session_callback(context, find_key);
    return context;
  }();
  return made;
}

/// A blocking connection; a nonblocking one is tried again and again.
class TlsSocket {
 public:
  TlsSocket(int fd, bool client) : ssl_(SSL_new(context()), SSL_free), fd_(fd) {
    SSL_set_fd(ssl_.get(), fd);
    if ((client ? SSL_connect(ssl_.get()) : SSL_accept(ssl_.get())) != 1) die("handshake");
  }

  int fd() const { return fd_; }
  void send(const char* bytes, size_t size) {
    size_t sent = 0;
    while (SSL_write_ex(ssl_.get(), bytes, size, &sent) != 1)
      if (SSL_get_error(ssl_.get(), 0) != SSL_ERROR_WANT_WRITE) die("SSL_write");
  }
  /// Bytes; 0 at the end of the stream.
  size_t receive(char* bytes, size_t size) {
    size_t got = 0;
    while (SSL_read_ex(ssl_.get(), bytes, size, &got) != 1)
      if (SSL_get_error(ssl_.get(), 0) != SSL_ERROR_WANT_READ) return 0;
    return got;
  }
  bool receive_all(std::vector<char>& bytes) {
    for (size_t at = 0; at != bytes.size();) {
      const size_t got = receive(bytes.data() + at, bytes.size() - at);
      if (got == 0) return false;
      at += got;
    }
    return true;
  }
  void close() { SSL_shutdown(ssl_.get()); }

 private:
  std::unique_ptr<SSL, decltype(&SSL_free)> ssl_;
  const int fd_;
};

void ping_pong(const Options& options) {
  TlsSocket socket(open_one(options), options.client());
  set_nonblocking(socket.fd());
  std::vector<char> message(options.size, 'x');
  if (!options.client()) {
    while (socket.receive_all(message)) socket.send(message.data(), message.size());
    return;
  }
  RoundTrips trips(options.seconds);
  while (trips.go_on()) {
    trips.begin();
    socket.send(message.data(), message.size());
    if (!socket.receive_all(message)) die("the other end is gone");
    trips.end();
  }
  trips.print_halves();
}

void stream(const Options& options) {
  TlsSocket socket(open_one(options), options.client());
  if (!options.client()) {
    Buffers buffers(256 << 10, 1);
    while (socket.receive(buffers.next(), buffers.size()) != 0) {
    }
    return socket.close();
  }
  Buffers buffers(options.size, 1);
  const auto start = Clock::now();
  double total = 0;
  while (seconds_since(start) < options.seconds) {
    for (int i = 0; i < 16; ++i) socket.send(buffers.next(), buffers.size());
    total += 16.0 * static_cast<double>(options.size);
  }
  socket.close();
  char end;
  (void)socket.receive(&end, 1);
  print_figure("mb_per_second", total / seconds_since(start) / 1e6);
}

/// One after the other: connect, handshake, a frame as large as MPA's to and fro, close.
void connects(const Options& options) {
  std::vector<char> frame(kFrameBytes);
  if (options.client()) {
    const auto start = Clock::now();
    for (int i = 0; i < options.count; ++i) {
      TlsSocket socket(connect_to(options), true);
      socket.send(frame.data(), frame.size());
      if (!socket.receive_all(frame)) die("the other end is gone");
      socket.close();
      ::close(socket.fd());
    }
    return print_figure("per_second", options.count / seconds_since(start));
  }
  const int listener = listen_on(options);
  for (int i = 0; i < options.count; ++i) {
    TlsSocket socket(accept_on(listener, options), false);
    if (socket.receive_all(frame)) socket.send(frame.data(), frame.size());
    ::close(socket.fd());
  }
}

}  // namespace
}  // namespace uwarp::bench

int main(int argc, char** argv) {
  using namespace uwarp::bench;
  const Modes<Options> modes = {
      {"ping-pong", ping_pong}, {"stream", stream}, {"connects", connects}};
  return run_mode("raw_tls", modes, parse_options(argc, argv));
}
