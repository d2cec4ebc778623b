// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Records between a session and a socket. Buffers belong to the thread; a stream keeps one only
// while its socket has no room.
#include "carrier/tls_stream.h"

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "base/mutex.h"
#include "base/thread_own.h"

namespace uwarp {

namespace {

/// What one call reads. More than a record, so that a stream of them takes few calls.
struct TlsInput {
  static constexpr size_t kBytes = size_t{128} << 10;
  std::byte bytes[kBytes];
};

/// A record is gathered here from pieces that are shorter.
struct TlsGathering {
  std::byte bytes[kTlsRecordBytes];
};

/// What one receive() reads: more than finds its place in any case.
constexpr int kMostReads = 256;

/// The calling thread's; null without memory.
template <typename Buffer>
std::unique_ptr<Buffer>& own_buffer() {
  auto& buffer = thread_own<std::unique_ptr<Buffer>>();
  if (buffer == nullptr) [[unlikely]]
    buffer.reset(new (std::nothrow) Buffer);
  return buffer;
}

/// The rest of some pieces of memory.
class Pieces {
 public:
  explicit Pieces(std::span<const iovec> pieces) : pieces_(pieces) { pass_empty(); }

  bool done() const { return pieces_.empty(); }
  std::span<std::byte> front() const {
    return {static_cast<std::byte*>(pieces_[0].iov_base) + offset_, pieces_[0].iov_len - offset_};
  }
  void take(size_t bytes) {
    offset_ += bytes;
    taken_ += bytes;
    pass_empty();
  }
  size_t taken() const { return taken_; }
  size_t left() const {
    size_t bytes = 0;
    for (const iovec& piece : pieces_) bytes += piece.iov_len;
    return bytes - offset_;
  }

 private:
  void pass_empty() {
    while (!pieces_.empty() && offset_ == pieces_[0].iov_len) {
      pieces_ = pieces_.subspan(1);
      offset_ = 0;
    }
  }

  std::span<const iovec> pieces_;
  size_t offset_ = 0;
  size_t taken_ = 0;
};

/// The next record's plaintext: at its place if one piece has it all, else gathered.
std::span<const std::byte> next_record(Pieces& pieces, TlsGathering& gathering) {
  const std::span<const std::byte> front = pieces.front();
  if (front.size() >= kTlsRecordBytes) {
    pieces.take(kTlsRecordBytes);
    return front.first(kTlsRecordBytes);
  }
  size_t size = 0;
  while (!pieces.done() && size != kTlsRecordBytes) {
    const auto part = pieces.front().first(std::min(pieces.front().size(), kTlsRecordBytes - size));
    std::memcpy(gathering.bytes + size, part.data(), part.size());
    size += part.size();
    pieces.take(part.size());
  }
  return {gathering.bytes, size};
}

/// Bytes of the socket that find a place, once they are decrypted, where `space` bytes have one and
/// `missing` complete a record of any size.
size_t most_to_read(size_t space, size_t missing) {
  if (missing == 0) return space + kTlsOverheadBytes;
  return missing + (space > kTlsRecordBytes ? space - kTlsRecordBytes : 0);
}

}  // namespace

/// What one send() makes at most.
struct TlsStream::Buffer {
  std::byte bytes[kMostRecords * TlsOutput::kRecordSpace];
  TlsOutput records{bytes};
};

TlsStream::TlsStream(TcpSocket& socket, std::unique_ptr<TlsSession> session)
    : socket_(socket), session_(std::move(session)) {}

TlsStream::~TlsStream() = default;

// --- Sending

bool TlsStream::borrow_output() {
  if (out_ == nullptr) out_ = std::move(own_buffer<Buffer>());
  return out_ != nullptr;
}

ssize_t TlsStream::flush() {
  if (out_ == nullptr) return 0;
  while (!out_->records.empty()) {
    const auto pending = out_->records.pending();
    const ssize_t sent = socket_.send(pending.data(), pending.size());
    if (sent <= 0) {
      kept_ = sent == 0 ? -EAGAIN : sent;
      carries_.store(true, std::memory_order_release);
      return kept_;
    }
    out_->records.take(static_cast<size_t>(sent));
  }
  thread_own<std::unique_ptr<Buffer>>() = std::move(out_);
  if (kept_ == 0) return 0;
  carries_.store(false, std::memory_order_release);
  return kept_ = 0;
}

inline int TlsStream::write_record(std::span<const std::byte> bytes) {
  const Lock guard(lock_);
  return session_->write(bytes, out_->records);
}

ssize_t TlsStream::send(std::span<const iovec> bytes) {
  if (const ssize_t error = flush()) return error;
  const auto& gathering = own_buffer<TlsGathering>();
  if (gathering == nullptr || !borrow_output()) return -ENOMEM;
  Pieces pieces(bytes);
  int error = 0;
  while (!pieces.done() && out_->records.has_space() && error == 0)
    error = write_record(next_record(pieces, *gathering));
  (void)flush();  // what the socket answers to that, it answers to the next call as well
  return error != 0 ? -error : static_cast<ssize_t>(pieces.taken());
}

void TlsStream::close() {
  if (left_ || flush() != 0 || !borrow_output()) return;
  {
    const Lock guard(lock_);
    session_->close(out_->records);
  }
  (void)flush();
}

// --- The handshake

int TlsStream::shake_hands() {
  const auto& input = own_buffer<TlsInput>();
  if (input == nullptr || !borrow_output()) return ENOMEM;
  for (;;) {
    const TlsSession::State state = session_->shake_hands(out_->records);
    const ssize_t sent = flush();
    if (state == TlsSession::State::kFailed) return ECONNRESET;
    if (sent != 0) return sent == -EAGAIN || sent == -ENOBUFS ? EAGAIN : ECONNRESET;
    if (state == TlsSession::State::kOpen) return 0;
    // No byte behind the handshake is taken out of the socket.
    const size_t wanted = std::max(session_->missing(), kTlsHeaderBytes);
    const ssize_t count = socket_.receive(input->bytes, std::min(wanted, sizeof input->bytes));
    if (count == -EAGAIN) return EAGAIN;
    if (count <= 0) {
      session_->cut();
      return ECONNRESET;
    }
    session_->feed({input->bytes, static_cast<size_t>(count)});
    if (!borrow_output()) return ENOMEM;
  }
}

// --- Receiving

/// Plaintext of what has come: count, as of TlsSession::read().
inline ssize_t TlsStream::decrypt(std::span<std::byte> place) {
  std::byte memory[64];
  TlsOutput alert(memory);
  const Lock guard(lock_);
  const ssize_t count = session_->read(place, alert);
  // Behind half a record an alert could not be understood.
  if (!alert.empty() && !carries())
    (void)socket_.send(alert.pending().data(), alert.pending().size());
  return count;
}

// -EAGAIN: nothing is there.
ssize_t TlsStream::feed(size_t space, bool& drained) {
  const auto& input = own_buffer<TlsInput>();
  if (input == nullptr) return -ENOMEM;
  const size_t wanted = std::min(most_to_read(space, session_->missing()), sizeof input->bytes);
  const ssize_t count = socket_.receive(input->bytes, wanted);
  if (count > 0) {
    session_->feed({input->bytes, static_cast<size_t>(count)});
    drained = static_cast<size_t>(count) < wanted;
    return count;
  }
  if (count == -EAGAIN) return count;
  // A FIN proves nothing: only a close_notify is the peer's own (RFC 8446 6.1).
  const Lock guard(lock_);
  session_->cut();
  return count == 0 ? -ECONNRESET : count;
}

// An end that is found behind bytes is told at the next call.
ssize_t TlsStream::receive(std::span<const iovec> buffer) {
  Pieces place(buffer);
  bool drained = false;
  ssize_t count = end_;
  int reads = 0;
  while (!place.done() && end_ == -EAGAIN) {
    count = has_plaintext_ ? decrypt(place.front()) : -EAGAIN;
    if (count == -EAGAIN) {
      has_plaintext_ = false;
      if (drained) break;
      if (++reads > kMostReads) {  // of a peer that sends changes of keys and no end of them
        end_ = count = -ECONNRESET;
        break;
      }
      count = feed(place.left(), drained);
      if (count == -EAGAIN || count == -ENOMEM) break;
      has_plaintext_ = count > 0;
    } else if (count > 0) {
      place.take(static_cast<size_t>(count));
    }
    if (count <= 0) end_ = count;
  }
  return place.taken() != 0 ? static_cast<ssize_t>(place.taken()) : count;
}

}  // namespace uwarp
