// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A peer that sends hand-made FPDUs, valid or not, to one queue pair, and reads what comes back.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string_view>
#include <vector>

#include "base/crc32c.h"
#include "protocol/mpa/fpdu.h"
#include "protocol/wire/rdmap_headers.h"
#include "sim/sim_pair.h"

namespace uwarp::sim {

using Bytes = std::vector<std::byte>;

/// A ULPDU with its frame around it; `crc` false leaves the field zero.
inline Bytes frame(const Bytes& ulpdu, bool crc) {
  Bytes fpdu(fpdu_size(ulpdu.size()));
  store_be16(fpdu.data(), static_cast<uint16_t>(ulpdu.size()));
  std::copy(ulpdu.begin(), ulpdu.end(), fpdu.begin() + 2);
  const size_t covered = fpdu.size() - 4;
  store_le32(fpdu.data() + covered, crc ? crc32c(fpdu.data(), covered) : 0);
  return fpdu;
}

/// The frames of several ULPDUs, one after the other.
inline Bytes joined(const std::vector<Bytes>& ulpdus, bool crc = false) {
  Bytes all;
  for (const Bytes& one : ulpdus) {
    const Bytes fpdu = frame(one, crc);
    all.insert(all.end(), fpdu.begin(), fpdu.end());
  }
  return all;
}

inline Bytes tagged(RdmapOpcode opcode, STag stag, TaggedOffset to, size_t payload,
                    bool last = true) {
  Bytes ulpdu(TaggedHeader::kWireSize + payload, std::byte{0x3C});
  TaggedHeader{DdpControl::make(true, last), make_rdmap_control(opcode), stag, to}.encode(
      ulpdu.data());
  return ulpdu;
}

inline Bytes untagged(RdmapOpcode opcode, uint32_t qn, uint32_t msn, uint32_t mo, size_t payload,
                      bool last = true, STag invalidate = {}) {
  Bytes ulpdu(UntaggedHeader::kWireSize + payload, std::byte{0x3C});
  UntaggedHeader{DdpControl::make(false, last),
                 make_rdmap_control(opcode),
                 invalidate,
                 static_cast<QueueNumber>(qn),
                 Msn{msn},
                 mo}
      .encode(ulpdu.data());
  return ulpdu;
}

/// A segment of a Send.
inline Bytes send_message(uint32_t msn, size_t payload, uint32_t mo = 0, bool last = true) {
  return untagged(RdmapOpcode::kSend, 0, msn, mo, payload, last);
}

inline Bytes read_request(const ReadRequestHeader& header, uint32_t msn) {
  Bytes ulpdu = untagged(RdmapOpcode::kReadRequest, 1, msn, 0, ReadRequestHeader::kWireSize);
  header.encode(ulpdu.data() + UntaggedHeader::kWireSize);
  return ulpdu;
}

inline Bytes atomic_request(const AtomicRequestHeader& header, uint32_t msn) {
  Bytes ulpdu = untagged(RdmapOpcode::kAtomicRequest, 1, msn, 0, AtomicRequestHeader::kWireSize);
  header.encode(ulpdu.data() + UntaggedHeader::kWireSize);
  return ulpdu;
}

inline Bytes atomic_response(const AtomicResponseHeader& header, uint32_t msn) {
  Bytes ulpdu = untagged(RdmapOpcode::kAtomicResponse, 3, msn, 0, AtomicResponseHeader::kWireSize);
  header.encode(ulpdu.data() + UntaggedHeader::kWireSize);
  return ulpdu;
}

/// The bytes of a line of hexadecimal digits; spaces are ignored.
inline Bytes from_hex(std::string_view digits) {
  Bytes bytes;
  int high = -1;
  for (const char digit : digits) {
    if (digit == ' ') continue;
    const int value = digit <= '9' ? digit - '0' : digit - 'a' + 10;
    if (high >= 0) bytes.push_back(static_cast<std::byte>(high << 4 | value));
    high = high >= 0 ? -1 : value;
  }
  return bytes;
}

inline RdmapOpcode opcode_of(const Bytes& ulpdu) {
  return RdmapControl{static_cast<uint8_t>(ulpdu[1])}.opcode();
}

/// The device under test with its raw peer. Neither side sends an RTR.
class RawPeer {
 public:
  explicit RawPeer(StreamConfig config = {}, const QpConfig& shape = End::default_shape())
      : dut(regions, shape),
        crc(config.crc),
        scan(config.crc, config.mulpdu, config.first_msn.value, config.peer_is_uwarp) {
    if (config.ord == 0) config.ord = 4;
    if (config.ird == 0) config.ird = 4;
    memory_region =
        *regions.add(dut.domain, memory.data(), memory.size(), memory.address(), kAllAccess);
    EXPECT_TRUE(dut.qp->start_stream(config));
  }
  /// In every test the device's FPDUs must be well formed.
  ~RawPeer() {
    for (const std::string& finding : scan.findings()) ADD_FAILURE() << finding;
  }
  RawPeer(const RawPeer&) = delete;
  RawPeer& operator=(const RawPeer&) = delete;

  /// Posts a receive for `size` bytes of memory that is not remotely accessible.
  void post_receive(uint64_t wr_id, uint32_t size = 0) {
    if (receive_region == nullptr)
      receive_region = *regions.add(dut.domain, receive_memory.data(), receive_memory.size(),
                                    receive_memory.address(), kAccessLocalWrite);
    const Sge sge{receive_memory.address(), size, receive_region->key.load()};
    EXPECT_EQ(dut.qp->post_recv(wr_id, {&sge, size == 0 ? 0u : 1u}), 0);
  }
  /// The key of a region without remote access.
  STag key_for_local_use() {
    return STag{(*regions.add(dut.domain, memory.data(), memory.size(), memory.address(),
                              kAccessLocalWrite))
                    ->key.load()};
  }
  STag stag() const { return STag{memory_region->key.load()}; }
  uint64_t base() { return memory.address(); }

  void feed(const Bytes& bytes, size_t chunk = 0) {
    size_t at = 0;
    while (at < bytes.size() && !dut.qp->receiver().rnr_blocked()) {
      const auto lock = dut.qp->receive_side().lock_exclusive();
      auto window = dut.qp->receiver().next_iovecs(dut.staging);
      size_t room = std::min(bytes.size() - at, chunk == 0 ? ~size_t{0} : chunk);
      size_t done = 0;
      for (const iovec& piece : window) {
        const size_t here = std::min(piece.iov_len, room - done);
        std::memcpy(piece.iov_base, bytes.data() + at + done, here);
        done += here;
      }
      at += done;
      dut.outcome |= dut.qp->receiver().received(dut.staging, done);
      if (!dut.staging) dut.staging = std::make_unique<StagingBuffer>();
    }
    settle();
  }
  void send(const Bytes& ulpdu) { feed(frame(ulpdu, crc)); }
  void settle() {
    dut.resume();
    pump();
    if (dut.qp->flush_due()) dut.qp->flush();
    pump();
  }
  void pump() {
    if (!reads) return;
    auto turn = dut.qp->transmit_side().begin();
    if (!turn) return;
    for (auto window = dut.qp->transmitter().next_iovecs(); !window.empty();
         window = dut.qp->transmitter().next_iovecs()) {
      size_t done = 0;
      for (const iovec& piece : window) {
        const auto* from = static_cast<const std::byte*>(piece.iov_base);
        out.insert(out.end(), from, from + piece.iov_len);
        scan.feed({from, piece.iov_len});
        done += piece.iov_len;
      }
      dut.qp->transmitter().sent(done);
    }
    (void)turn.end();
  }
  /// The ULPDUs that the device sent since the last call.
  std::vector<Bytes> ulpdus() {
    std::vector<Bytes> all;
    while (out.size() >= 2) {
      const size_t length = load_be16(out.data());
      const size_t size = fpdu_size(length);
      if (out.size() < size) break;
      if (crc) {
        EXPECT_TRUE(verify_fpdu_crc({out.data(), size}));
      }
      all.emplace_back(out.begin() + 2, out.begin() + 2 + static_cast<ptrdiff_t>(length));
      out.erase(out.begin(), out.begin() + static_cast<ptrdiff_t>(size));
    }
    EXPECT_TRUE(out.empty());
    return all;
  }
  /// The Terminate, which must be the only and last thing that the device sent.
  std::optional<TerminateHeader> terminate() {
    const auto all = ulpdus();
    if (all.size() != 1) return std::nullopt;
    const UntaggedHeader header = UntaggedHeader::decode(all[0].data());
    EXPECT_EQ(header.qn, QueueNumber::kTerminate);
    EXPECT_EQ(header.msn, Msn{1});
    EXPECT_EQ(header.mo, 0u);
    if (static_cast<uint8_t>(all[0][1]) != 0x47) return std::nullopt;
    return TerminateHeader::decode(std::span(all[0]).subspan(UntaggedHeader::kWireSize));
  }

  RegionTable regions;
  End dut;
  bool crc;
  bool reads = true;  // false: the device can send nothing
  GuardedMemory memory{20000};
  MemoryRegion* memory_region = nullptr;
  GuardedMemory receive_memory{5000};
  MemoryRegion* receive_region = nullptr;
  Bytes out;
  FpduScan scan;
};

}  // namespace uwarp::sim
