// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "observe/capture.h"

#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "base/bytes.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/settings.h"

namespace uwarp {
namespace {

constexpr size_t kEthernetSize = 14, kIpv4Size = 20, kIpv6Size = 40, kTcpSize = 20;
constexpr size_t kRecordSize = 16;
/// Bytes of the stream in one packet: what both an IPv4 and an IPv6 header can count.
constexpr size_t kPacketBytes = 65'000;
constexpr uint16_t kEtherIpv4 = 0x0800, kEtherIpv6 = 0x86dd;
constexpr uint8_t kProtocolTcp = 6;
constexpr uint8_t kHops = 64;

// The format of libpcap, with times in nanoseconds, in the byte order of this machine.
struct FileHeader {
  uint32_t magic = 0xa1b23c4d;
  uint16_t major = 2;
  uint16_t minor = 4;
  int32_t zone = 0;
  uint32_t accuracy = 0;
  uint32_t snap_length = 1u << 18;
  uint32_t link_type = 1;  // Ethernet
};
static_assert(sizeof(FileHeader) == 24);

/// Writes headers from front to back.
class HeaderWriter {
 public:
  explicit HeaderWriter(std::byte* at) : at_(at) {}
  void put8(uint8_t value) { *at_++ = std::byte{value}; }
  void put16(uint16_t value) {
    store_be16(at_, value);
    at_ += 2;
  }
  void put32(uint32_t value) {
    store_be32(at_, value);
    at_ += 4;
  }
  void put(const void* from, size_t size) {
    std::memcpy(at_, from, size);
    at_ += size;
  }
  std::byte* at() const { return at_; }

 private:
  std::byte* at_;
};

/// A locally administered address that ends like the host's.
void put_mac(HeaderWriter& out, const IpAddress& address) {
  out.put16(0x0200);
  out.put(address.bytes().data() + 12, 4);
}

// RFC 1071. The TCP checksum is left out, as with adapters that compute it.
uint16_t ip_checksum(const std::byte* header) {
  uint32_t sum = 0;
  for (size_t i = 0; i < kIpv4Size; i += 2) sum += load_be16(header + i);
  while (sum > 0xffff) sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<uint16_t>(~sum);
}

void put_ipv4(HeaderWriter& out, const CaptureEnd& from, const CaptureEnd& to, size_t payload) {
  std::byte* const header = out.at();
  out.put16(0x4500);
  out.put16(static_cast<uint16_t>(kIpv4Size + payload));
  out.put16(0);
  out.put16(0x4000);  // not to be fragmented
  out.put8(kHops);
  out.put8(kProtocolTcp);
  out.put16(0);
  out.put(from.address.bytes().data() + 12, 4);
  out.put(to.address.bytes().data() + 12, 4);
  store_be16(header + 10, ip_checksum(header));
}

void put_ipv6(HeaderWriter& out, const CaptureEnd& from, const CaptureEnd& to, size_t payload) {
  out.put32(0x6000'0000);
  out.put16(static_cast<uint16_t>(payload));
  out.put8(kProtocolTcp);
  out.put8(kHops);
  out.put(from.address.bytes().data(), IpAddress::kBytes);
  out.put(to.address.bytes().data(), IpAddress::kBytes);
}

void put_tcp(HeaderWriter& out, const CaptureEnd& from, const CaptureEnd& to, uint8_t flags) {
  out.put16(from.port);
  out.put16(to.port);
  out.put32(from.next);
  out.put32((flags & Capture::kAck) != 0 ? to.next : 0);
  out.put8(kTcpSize / 4 << 4);
  out.put8(flags);
  out.put16(0xffff);
  out.put16(0);
  out.put16(0);
}

/// The pieces of [offset, offset + size) in `bytes`, behind what `out` holds.
void append_range(std::span<const iovec> bytes, size_t offset, size_t size,
                  std::vector<iovec>& out) {
  for (const iovec& piece : bytes) {
    if (size == 0) return;
    if (offset >= piece.iov_len) {
      offset -= piece.iov_len;
      continue;
    }
    const size_t here = std::min(size, piece.iov_len - offset);
    out.push_back({static_cast<std::byte*>(piece.iov_base) + offset, here});
    offset = 0;
    size -= here;
  }
}

}  // namespace

std::unique_ptr<Capture> Capture::create(const std::string& name) {
  if (name.empty()) return nullptr;
  std::string complaint;
  auto file = OutputFile::create(name, complaint);
  if (file == nullptr) {
    complain_on_stderr("uwarp: UWARP_PCAP: " + complaint);
    return nullptr;
  }
  log_event("capturing into %s", file->path().c_str());
  FileHeader header;
  iovec piece = {&header, sizeof header};
  (void)file->append({&piece, 1});
  return std::unique_ptr<Capture>(new Capture(std::move(file)));
}

void Capture::write(CaptureEnd& from, const CaptureEnd& to, uint8_t flags,
                    std::span<const iovec> bytes, size_t size) noexcept {
  size_t done = 0;
  do {
    const size_t here = std::min(size - done, kPacketBytes);
    try {
      pieces_.assign(1, iovec{});  // the headers
      append_range(bytes, done, here, pieces_);
      write_packet(from, to, flags, here);
    } catch (const std::bad_alloc&) {
    }
    from.next += static_cast<uint32_t>(here);
    done += here;
  } while (done < size);
  if ((flags & (kSyn | kFin)) != 0) ++from.next;
}

void Capture::write_packet(const CaptureEnd& from, const CaptureEnd& to, uint8_t flags,
                           size_t size) {
  if (full_) return;
  const bool v4 = from.address.is_v4() && to.address.is_v4();
  const size_t ip_size = v4 ? kIpv4Size : kIpv6Size;
  std::byte headers[kRecordSize + kEthernetSize + kIpv6Size + kTcpSize];
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  const auto packet = static_cast<uint32_t>(kEthernetSize + ip_size + kTcpSize + size);
  const uint32_t record[4] = {static_cast<uint32_t>(now.tv_sec), static_cast<uint32_t>(now.tv_nsec),
                              packet, packet};
  HeaderWriter out(headers);
  out.put(record, sizeof record);
  put_mac(out, to.address);
  put_mac(out, from.address);
  out.put16(v4 ? kEtherIpv4 : kEtherIpv6);
  v4 ? put_ipv4(out, from, to, kTcpSize + size) : put_ipv6(out, from, to, kTcpSize + size);
  put_tcp(out, from, to, flags);
  pieces_.front() = {headers, static_cast<size_t>(out.at() - headers)};
  if (file_->append(pieces_)) return;
  full_ = true;
  log_event("the capture ends here: %s", std::strerror(errno));
}

CapturedConnection::CapturedConnection(Capture& capture, const sockaddr_storage& local,
                                       const sockaddr_storage& remote, bool active)
    : capture_(capture),
      local_{ip_of(local), port_of(local)},
      remote_{ip_of(remote), port_of(remote)} {
  CaptureEnd& dialler = active ? local_ : remote_;
  CaptureEnd& answerer = active ? remote_ : local_;
  const Lock guard(capture_.mutex());
  capture_.write(dialler, answerer, Capture::kSyn, {}, 0);
  capture_.write(answerer, dialler, Capture::kSyn | Capture::kAck, {}, 0);
  capture_.write(dialler, answerer, Capture::kAck, {}, 0);
}

void CapturedConnection::end_direction(CaptureEnd& from, const CaptureEnd& to, bool& ended,
                                       bool reset) {
  if (std::exchange(ended, true)) return;
  const uint8_t flag = reset ? Capture::kRst : Capture::kFin;
  capture_.write(from, to, flag | Capture::kAck, {}, 0);
}

void CapturedConnection::sent(std::span<const iovec> bytes, size_t size) {
  const Lock guard(capture_.mutex());
  capture_.write(local_, remote_, Capture::kPush | Capture::kAck, bytes, size);
}

void CapturedConnection::received(std::span<const iovec> bytes, size_t size) {
  const Lock guard(capture_.mutex());
  capture_.write(remote_, local_, Capture::kPush | Capture::kAck, bytes, size);
}

}  // namespace uwarp
