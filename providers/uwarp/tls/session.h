// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What the engine asks of libuwarp-tls.so, which alone knows OpenSSL: TLS 1.3 (RFC 8446) between
// two peers, without IO. Bytes of the socket go in and come out; the caller moves them.
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace uwarp {

/// The most plaintext of a record, and what a record is longer than it at least and at most
/// (RFC 8446 5.1, 5.2: header, type, tag of an AEAD; padding is not sent).
inline constexpr size_t kTlsRecordBytes = 16'384;
inline constexpr size_t kTlsHeaderBytes = 5;
inline constexpr size_t kTlsOverheadBytes = kTlsHeaderBytes + 1 + 16;

/// Records on their way to the socket, in memory of the caller.
class TlsOutput {
 public:
  /// What one record needs at most, also if a KeyUpdate goes ahead of it.
  static constexpr size_t kRecordSpace = kTlsRecordBytes + 2 * kTlsOverheadBytes + 128;

  explicit TlsOutput(std::span<std::byte> memory) : memory_(memory) {}

  std::span<const std::byte> pending() const { return memory_.subspan(begin_, end_ - begin_); }
  bool empty() const { return begin_ == end_; }
  /// One more record fits, of any size.
  bool has_space() const { return memory_.size() - end_ >= kRecordSpace; }
  /// False: there is no room for them.
  bool append(const void* bytes, size_t count) {
    if (count > memory_.size() - end_) return false;
    std::copy_n(static_cast<const std::byte*>(bytes), count, memory_.begin() + end_);
    end_ += count;
    return true;
  }
  void take(size_t count) {
    begin_ += count;
    if (empty()) begin_ = end_ = 0;
  }

 private:
  std::span<std::byte> memory_;
  size_t begin_ = 0, end_ = 0;
};

/// One connection. One call at a time; none throws.
class TlsSession {
 public:
  enum class State : uint8_t { kHandshake, kOpen, kFailed };

  virtual ~TlsSession() = default;

  /// What has come. It is used up by the calls below, and must stay valid until it is.
  virtual void feed(std::span<const std::byte> bytes) = 0;
  /// Bytes that were fed and not used yet.
  virtual size_t unread() const = 0;
  /// Bytes that are missing of the record that has come in part; 0: none has.
  virtual size_t missing() const = 0;
  /// Plaintext that can be read without feeding.
  virtual size_t pending() const = 0;

  /// Goes on with the handshake. After kOpen identity() says who the peer is.
  virtual State shake_hands(TlsOutput& out) = 0;
  /// Bytes of plaintext; 0: the peer has closed in order; -EAGAIN: feed more; -ECONNRESET: failed.
  /// The peer is told by an alert, if that has room in `out`.
  virtual ssize_t read(std::span<std::byte> place, TlsOutput& out) = 0;
  /// Makes one record of `bytes`, which are 1 to kTlsRecordBytes; `out` has space. 0 or ECONNRESET.
  virtual int write(std::span<const std::byte> bytes, TlsOutput& out) = 0;
  /// Appends what tells the peer that this end sends no more (close_notify).
  virtual void close(TlsOutput& out) = 0;
  /// The socket has ended: without close_notify the stream has been cut.
  virtual void cut() = 0;
  /// Name of the peer's key, or of its certificate. Printable; empty before kOpen.
  virtual const std::string& identity() const = 0;
  /// What went wrong, and what the user can do. Empty: nothing.
  virtual const std::string& failure() const = 0;
};

/// Contents of the files, which the module copies.
struct TlsMaterial {
  bool by_certificate = false;
  std::string_view psk{};                                // lines "identity:hex key"
  std::string_view certificate{}, key{}, authorities{};  // PEM
  /// A key protects so many records at most; then the next one is agreed (RFC 8446 4.6.3). AES-GCM
  /// allows 2^24.5 (RFC 8446 5.5).
  uint64_t records_per_key = uint64_t{1} << 23;
};

/// Keys and rules of a process. Any thread.
class TlsContext {
 public:
  virtual ~TlsContext() = default;
  /// `active`: this end has connected. Null without memory.
  virtual std::unique_ptr<TlsSession> begin(bool active) = 0;
};

/// Exported by the module as `uwarp_tls`.
struct TlsModule {
  /// Version of uwarp: engine and module are of one build.
  const char* version;
  /// Null: `error` says why, in words for the user.
  std::unique_ptr<TlsContext> (*open)(const TlsMaterial& material, std::string& error);
  /// Version of OpenSSL, as it calls itself.
  const char* (*library)();
};

}  // namespace uwarp
