// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "orderly_end.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <thread>

#include "base/crc32c.h"
#include "protocol/mpa/fpdu.h"
#include "protocol/wire/ddp_headers.h"
#include "protocol/wire/rdmap_headers.h"

namespace doctor {
namespace {

/// The address that an empty message names. No peer checks it.
constexpr uwarp::STag kAnyStag{1};
constexpr std::chrono::seconds kEndPatience{1};
/// What a uwarp says of itself is in its first FPDUs.
constexpr size_t kKeptBytes = 4096;
/// The Linux siw module as responder may sleep through what comes before it is ready, and suffers
/// if the end is all that it then sees (docs/siw.md): it is woken a few times before.
constexpr int kWakeUps = 3;
constexpr std::chrono::milliseconds kWakeUpWait{20};

void append_frame(std::vector<std::byte>& out, std::span<const std::byte> ulpdu, bool crc) {
  const size_t start = out.size();
  out.resize(start + uwarp::fpdu_size(ulpdu.size()));
  std::byte* at = out.data() + start;
  uwarp::store_be16(at, static_cast<uint16_t>(ulpdu.size()));
  std::copy(ulpdu.begin(), ulpdu.end(), at + uwarp::kFpduLengthSize);
  const size_t length = uwarp::kFpduLengthSize + ulpdu.size();
  const size_t covered = length + uwarp::fpdu_pad(ulpdu.size());
  std::fill(at + length, at + covered, std::byte{0});
  (void)uwarp::write_fpdu_trailer(at + length, ulpdu.size(), crc ? uwarp::crc32c(at, covered) : 0);
}

/// A Write without bytes. No peer checks where it goes.
void append_write(std::vector<std::byte>& out, bool crc, uwarp::STag stag = kAnyStag,
                  uwarp::TaggedOffset to = 0) {
  std::array<std::byte, uwarp::TaggedHeader::kWireSize> ulpdu;
  const uwarp::TaggedHeader header{.control = uwarp::DdpControl::make(true, true),
                                   .rsvd_ulp = make_rdmap_control(uwarp::RdmapOpcode::kWrite),
                                   .stag = stag,
                                   .to = to};
  header.encode(ulpdu.data());
  append_frame(out, ulpdu, crc);
}

void append_read(std::vector<std::byte>& out, bool crc) {
  using uwarp::ReadRequestHeader, uwarp::UntaggedHeader;
  std::array<std::byte, UntaggedHeader::kWireSize + ReadRequestHeader::kWireSize> ulpdu;
  const UntaggedHeader header{.control = uwarp::DdpControl::make(false, true),
                              .rsvd_ulp = make_rdmap_control(uwarp::RdmapOpcode::kReadRequest),
                              .invalidate_stag = {},
                              .qn = uwarp::QueueNumber::kReadRequest,
                              .msn = uwarp::Msn{1},
                              .mo = 0};
  header.encode(ulpdu.data());
  const ReadRequestHeader read{
      .sink_stag = kAnyStag, .sink_to = 0, .size = 0, .source_stag = kAnyStag, .source_to = 0};
  read.encode(ulpdu.data() + UntaggedHeader::kWireSize);
  append_frame(out, ulpdu, crc);
}

bool send_all(int fd, std::span<const std::byte> bytes) {
  // A few bytes into an empty buffer.
  return send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
}

}  // namespace

std::vector<std::byte> opening_frames(const uwarp::MpaNegotiated& negotiated,
                                      uwarp::PersonaWrite::Said own) {
  std::vector<std::byte> frames;
  if (!negotiated.peer_to_peer) return frames;
  if (negotiated.rtr == uwarp::RtrKind::kRead) {
    append_read(frames, negotiated.crc);
  } else {
    append_write(frames, negotiated.crc, uwarp::kPeerMagicStag, uwarp::kPeerMagicOffset);
  }
  append_write(frames, negotiated.crc, uwarp::PersonaWrite::kStag,
               uwarp::PersonaWrite::offset(own));
  return frames;
}

std::vector<std::byte> leave_in_order(int fd, const uwarp::MpaNegotiated& negotiated,
                                      uwarp::PersonaWrite::Said own, Clock::time_point end) {
  std::vector<std::byte> kept;
  const auto frames = opening_frames(negotiated, own);
  if (!frames.empty()) {
    if (!send_all(fd, frames)) return kept;
    for (int i = 0; i < kWakeUps; ++i) {
      std::this_thread::sleep_for(kWakeUpWait);
      std::vector<std::byte> again;
      append_write(again, negotiated.crc);
      if (!send_all(fd, again)) return kept;
    }
  }
  shutdown(fd, SHUT_WR);
  const auto last = std::min(end, Clock::now() + kEndPatience);
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(last - Clock::now());
    pollfd entry{.fd = fd, .events = POLLIN, .revents = 0};
    if (left.count() <= 0 || poll(&entry, 1, static_cast<int>(left.count())) <= 0) return kept;
    std::array<std::byte, 1024> buffer;
    const ssize_t count = recv(fd, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (count <= 0) return kept;
    const size_t space = kKeptBytes - std::min(kKeptBytes, kept.size());
    const auto bytes = std::span<const std::byte>(buffer).first(static_cast<size_t>(count));
    kept.insert(kept.end(), bytes.begin(), bytes.begin() + std::min(space, bytes.size()));
  }
}

}  // namespace doctor
