// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// UWARP_PCAP: what goes over the connections of this process as a capture file, made without any
// privilege. The bytes of each stream are real; Ethernet, IP and TCP around them are made up, so
// that Wireshark finds MPA, DDP and RDMAP in it. Each packet is one write: a process that dies
// leaves a file that can be read to its last packet.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "net/ip_address.h"
#include "os/output_file.h"

namespace uwarp {

/// One end of a TCP connection in a capture.
struct CaptureEnd {
  IpAddress address;
  uint16_t port = 0;
  uint32_t next = 0;  // sequence number of its next byte
};

class Capture {
 public:
  /// Null if `name` is empty, or the file cannot be made (which is said on stderr).
  static std::unique_ptr<Capture> create(const std::string& name);

  enum TcpFlag : uint8_t { kFin = 1, kSyn = 2, kRst = 4, kPush = 8, kAck = 16 };
  /// One packet or as many as the bytes need; without memory for one it is missing in the file.
  /// Never throws: bytes are between the socket and their place.
  void write(CaptureEnd& from, const CaptureEnd& to, uint8_t flags, std::span<const iovec> bytes,
             size_t size) noexcept REQUIRES(mutex_);

  /// Held by the thread that changes a connection's sequence numbers.
  Mutex& mutex() RETURN_CAPABILITY(mutex_) { return mutex_; }

 private:
  explicit Capture(std::unique_ptr<OutputFile> file) : file_(std::move(file)) {}
  /// What pieces_ has behind its first, which is for the headers; `size` bytes.
  void write_packet(const CaptureEnd& from, const CaptureEnd& to, uint8_t flags, size_t size)
      REQUIRES(mutex_);

  Mutex mutex_;
  const std::unique_ptr<OutputFile> file_;
  bool full_ GUARDED_BY(mutex_) = false;  // nothing is written any more
  std::vector<iovec> pieces_ GUARDED_BY(mutex_);
};

/// A connection in the capture, from its first packet to its last. Any thread.
class CapturedConnection {
 public:
  /// `active`: we have dialled. Writes what TCP needs to begin.
  CapturedConnection(Capture& capture, const sockaddr_storage& local,
                     const sockaddr_storage& remote, bool active);
  /// We end the connection, in order or by RST, unless it has ended.
  void end(bool reset) {
    const Lock guard(capture_.mutex());
    end_direction(local_, remote_, ended_, reset);
  }

  /// The first `size` bytes of `bytes` are with the kernel, or have come from it.
  void sent(std::span<const iovec> bytes, size_t size);
  void received(std::span<const iovec> bytes, size_t size);
  /// The peer has closed its direction, or reset the connection.
  void peer_ended(bool reset) {
    const Lock guard(capture_.mutex());
    end_direction(remote_, local_, peer_ended_, reset);
  }

 private:
  void end_direction(CaptureEnd& from, const CaptureEnd& to, bool& ended, bool reset)
      REQUIRES(capture_.mutex());

  Capture& capture_;
  CaptureEnd local_ GUARDED_BY(capture_.mutex());
  CaptureEnd remote_ GUARDED_BY(capture_.mutex());
  bool ended_ GUARDED_BY(capture_.mutex()) = false;  // by us
  bool peer_ended_ GUARDED_BY(capture_.mutex()) = false;
};

}  // namespace uwarp
