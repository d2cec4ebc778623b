// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Reads all that one side of a stream sends, and checks every FPDU against what RFC 5040, 5041,
// 5044 and 7306 ask of senders. Of the product it uses only the header layouts.
#pragma once

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/crc32c.h"

namespace uwarp::sim {

/// One whole message as it was sent.
struct ScannedMessage {
  uint8_t opcode = 0;
  bool tagged = false;
  // The STag of a tagged message; of an untagged one the field of the STag to invalidate.
  uint32_t stag = 0;
  uint64_t to = 0;
  uint32_t qn = 0, msn = 0;
  size_t segments = 0;
  std::vector<std::byte> payload;  // everything after the DDP headers
};

class FpduScan {
 public:
  /// `to_uwarp`: a segment may say how many segments of its size follow (docs/wire.md).
  explicit FpduScan(bool crc = false, size_t mulpdu = 65535, uint32_t first_msn = 1,
                    bool to_uwarp = false)
      : crc_(crc),
        mulpdu_(mulpdu),
        to_uwarp_(to_uwarp),
        next_msn_{first_msn, first_msn, 1, first_msn} {}

  void feed(std::span<const std::byte> bytes) {
    pending_.insert(pending_.end(), bytes.begin(), bytes.end());
    size_t at = 0;
    while (pending_.size() - at >= 2) {
      const size_t size = fpdu_bytes(load_be16(&pending_[at]));
      if (pending_.size() - at < size) break;
      check_fpdu({&pending_[at], size});
      at += size;
    }
    pending_.erase(pending_.begin(), pending_.begin() + static_cast<ptrdiff_t>(at));
  }
  /// The faults that were found; the list stops after some lines.
  const std::vector<std::string>& findings() const { return findings_; }
  const std::vector<ScannedMessage>& messages() const { return messages_; }
  size_t fpdus() const { return fpdus_; }
  /// Segments that an earlier segment had announced.
  size_t announced() const { return announced_; }
  bool terminated() const { return terminated_; }
  /// XRC: messages for queue 0 name a shared receive queue instead; all share one sequence of MSNs.
  void expect_shared_queues() { shared_queues_ = true; }
  /// True between messages: no FPDU and no message is half sent.
  bool at_boundary() const { return pending_.empty() && !open_; }

 private:
  static constexpr size_t kTagged = 14, kUntagged = 18;

  static size_t fpdu_bytes(size_t ulpdu) { return (2 + ulpdu + 3) / 4 * 4 + 4; }

  void expect(bool right, const char* rule) {
    if (right || findings_.size() >= 20) return;
    char text[160];
    std::snprintf(text, sizeof text, "FPDU %zu: %s", fpdus_, rule);
    findings_.push_back(text);
  }

  // RFC 5044 4: length, pad, CRC.
  void check_fpdu(std::span<const std::byte> fpdu) {
    ++fpdus_;
    expect(!terminated_, "sent behind a Terminate");
    const size_t length = load_be16(fpdu.data());
    const size_t covered = fpdu.size() - 4;
    for (size_t i = 2 + length; i < covered; ++i)
      expect(fpdu[i] == std::byte{0}, "pad is not zero");
    const uint32_t sent = load_le32(&fpdu[covered]);
    expect(sent == (crc_ ? crc32c(fpdu.data(), covered) : 0), "CRC");
    expect(length <= mulpdu_, "longer than MULPDU");
    check_segment(fpdu.subspan(2, length));
  }

  // RFC 5041 4, RFC 5040 4.1.
  void check_segment(std::span<const std::byte> ulpdu) {
    if (ulpdu.size() < kTagged) return expect(false, "no room for a DDP header");
    const auto ddp = static_cast<uint8_t>(ulpdu[0]), rdmap = static_cast<uint8_t>(ulpdu[1]);
    const bool tagged = (ddp & 0x80) != 0, last = (ddp & 0x40) != 0;
    const uint8_t opcode = rdmap & 0x0F;
    if (!tagged && ulpdu.size() < kUntagged) return expect(false, "no room for a DDP header");
    check_following(ulpdu.size(), (ddp & 0x3C) >> 2, last, opcode);
    expect((ddp & 0x03) == 1, "DDP version");
    expect(rdmap >> 6 == 1, "RDMAP version");
    const bool marked = to_uwarp_ && opcode == 0 && (rdmap & 0x30) == 0x20;
    expect((rdmap & 0x30) == 0 || opcode == 0xF || marked, "RDMAP reserved bits");
    expect(opcode <= 0xB || opcode == 0xF, "undefined opcode");
    expect(tagged == (opcode == 0 || opcode == 2), "T flag does not fit the opcode");
    if (opcode == 0x7) open_ = false;  // a Terminate may end the stream inside a message
    const size_t header = tagged ? kTagged : kUntagged;
    const auto payload = ulpdu.subspan(header);
    expect(last || !payload.empty(), "empty segment that is not the last");
    tagged ? check_tagged(ulpdu, opcode) : check_untagged(ulpdu, opcode);
    // The next segment of an open message must repeat the fields that belong to the whole message.
    std::copy_n(ulpdu.begin(), header, first_.begin());
    ScannedMessage& message = message_;
    message.payload.insert(message.payload.end(), payload.begin(), payload.end());
    ++message.segments;
    open_ = !last;
    if (!last) return;
    check_message(message);
    messages_.push_back(std::move(message));
    message_ = {};
  }

  // An announced segment must come next, unless the stream ends first.
  void check_following(size_t size, unsigned following, bool last, uint8_t opcode) {
    expect(following == 0 || (to_uwarp_ && !last && size >= 16384), "DDP reserved bits");
    if (opcode == 0x7) return;
    if (due_ != 0) {
      expect(open_ && size == due_size_, "not the segment that was announced");
      ++announced_;
      --due_;
    }
    due_ = std::max(due_, following);
    due_size_ = size;
  }

  bool same_bytes(std::span<const std::byte> ulpdu, size_t from, size_t to) const {
    return std::memcmp(&ulpdu[from], &first_[from], to - from) == 0;
  }

  void begin(std::span<const std::byte> ulpdu, uint8_t opcode, bool tagged) {
    message_ = {};
    message_.opcode = opcode;
    message_.tagged = tagged;
    message_.stag = load_be32(&ulpdu[2]);
  }

  void check_tagged(std::span<const std::byte> ulpdu, uint8_t opcode) {
    const uint64_t to = load_be64(&ulpdu[6]);
    if (!open_) {
      begin(ulpdu, opcode, true);
      message_.to = to;
      return;
    }
    expect(message_.tagged && same_bytes(ulpdu, 1, 6),
           "segments of one message differ in opcode or STag, or messages are mixed");
    expect(to == message_.to + message_.payload.size(), "TO is not that of the next byte");
  }

  void check_untagged(std::span<const std::byte> ulpdu, uint8_t opcode) {
    const uint32_t named = load_be32(&ulpdu[6]), msn = load_be32(&ulpdu[10]),
                   mo = load_be32(&ulpdu[14]);
    const uint32_t qn = shared_queues_ && named >= 16 ? 0 : named;
    constexpr uint32_t kQueues[16] = {9, 1, 9, 0, 0, 0, 0, 2, 0, 0, 1, 3, 9, 9, 9, 0};
    expect(qn == kQueues[opcode], "queue number does not fit the opcode");
    if (opcode != 4 && opcode != 6 && opcode != 0xF)
      expect(load_be32(&ulpdu[2]) == 0, "STag to invalidate is not zero");
    if (!open_) {
      begin(ulpdu, opcode, false);
      message_.qn = named;
      message_.msn = msn;
      expect(qn > 3 || msn == next_msn_[qn], "MSN does not go up by one");
      if (qn <= 3) next_msn_[qn] = msn + 1;
      return expect(mo == 0, "first MO is not 0");
    }
    expect(!message_.tagged && same_bytes(ulpdu, 1, 14),
           "segments of one message differ in header, or messages are mixed");
    expect(mo == message_.payload.size(), "MO is not that of the next byte");
  }

  // A message that consists of headers only has a fixed size and is one segment. RFC 5040 4.2, RFC
  // 7306 4.2, 6.
  void check_message(const ScannedMessage& message) {
    size_t size = 0;
    switch (message.opcode) {
      case 0x1:
        size = 28;
        break;
      case 0x8:
      case 0x9:
        size = 8;
        break;
      case 0xA:
        size = 52;
        break;
      case 0xB:
        size = 12;
        break;
      case 0x7:
        return check_terminate(message);
      default:
        return;
    }
    expect(message.segments == 1, "a message that is all header is cut");
    expect(message.payload.size() == size, "size of an RDMAP header");
    if (message.opcode == 0x8 || message.opcode == 0x9) {
      expect(!messages_.empty() && messages_.back().opcode == 0x0,
             "Immediate Data without its Write directly before it");
    }
    if (message.opcode == 0xA && message.payload.size() == 52) {
      const uint32_t word = load_be32(message.payload.data());
      expect(word == 0 || word == 2, "atomic operation or its reserved bits");
    }
  }

  // RFC 5040 4.8, figure 10; RFC 7306 8.
  void check_terminate(const ScannedMessage& message) {
    terminated_ = true;
    expect(message.msn == 1, "a second Terminate");
    expect(message.segments == 1, "a Terminate is cut");
    const auto& bytes = message.payload;
    if (bytes.size() < 4) return expect(false, "size of a Terminate");
    const uint32_t word = load_be32(bytes.data());
    const uint8_t layer = word >> 28, etype = word >> 24 & 0xF, code = word >> 16 & 0xFF;
    const bool m = word >> 15 & 1, d = word >> 14 & 1, r = word >> 13 & 1;
    expect((word & 0x1FFF) == 0, "reserved bits of a Terminate");
    expect(defined_error(layer, etype, code), "undefined error in a Terminate");
    expect(m == d, "M and D differ");
    size_t size = 4;
    if (d && bytes.size() >= 7)
      size += 2 + ((static_cast<uint8_t>(bytes[6]) & 0x80) != 0 ? kTagged : kUntagged);
    if (r) size += 28;
    expect(bytes.size() == size, "size of a Terminate");
    const bool local = (layer < 2 && etype == 0) || layer == 2;
    expect(!local || !(m || d || r), "headers where there is nothing to show");
    if (layer == 1 && etype != 0 && code != (etype == 1 ? 4 : 6))
      expect(d && !r, "a DDP error without its header, or with an RDMA header");
    if (layer == 0 && etype != 0) expect(d, "an RDMAP error without its header");
    if (r && bytes.size() >= 8) {
      expect(layer == 0 && etype == 1, "RDMA header with an error that is not about a request");
      expect((static_cast<uint8_t>(bytes[7]) & 0xF) == 1, "RDMA header of another opcode");
    }
  }

  static bool defined_error(uint8_t layer, uint8_t etype, uint8_t code) {
    if (layer == 0 && etype == 0) return code == 0;
    if (layer == 0 && etype == 1) return code <= 4 || code == 9 || code == 0xFF;
    if (layer == 0 && etype == 2) return (code >= 5 && code <= 9) || code == 0xFF;
    if (layer == 1 && etype == 0) return code == 0;
    if (layer == 1 && etype == 1) return code <= 4;
    if (layer == 1 && etype == 2) return code >= 1 && code <= 6;
    return layer == 2 && etype == 0 && code >= 1 && code <= 7;
  }

  const bool crc_;
  const size_t mulpdu_;
  const bool to_uwarp_;
  bool shared_queues_ = false;
  unsigned due_ = 0;  // segments that are announced and have not arrived
  size_t due_size_ = 0;
  size_t announced_ = 0;
  uint32_t next_msn_[4];
  std::vector<std::byte> pending_;
  std::vector<std::string> findings_;
  std::vector<ScannedMessage> messages_;
  size_t fpdus_ = 0;
  bool terminated_ = false;
  bool open_ = false;
  ScannedMessage message_;
  std::array<std::byte, kUntagged> first_{};
};

}  // namespace uwarp::sim
