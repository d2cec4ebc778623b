// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A peer that speaks MPA, DDP and RDMAP by hand over a real socket to an endpoint of the engine. It
// initiates with MPA revision 2 and no RTR, and starts the stream with an empty Write.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <map>
#include <optional>
#include <vector>

#include "sim/raw_peer.h"
#include "unit/connect/node.h"

namespace uwarp::conformance {

using sim::Bytes;
using T = TerminateCode;
using O = RdmapOpcode;

/// Strictly as RFC 5041 7.1 says: a message without a receive ends the stream at once.
inline const bool kStrict = setenv("UWARP_RNR_TIMEOUT_MS", "0", 1) == 0;

class SocketPeer {
 public:
  struct Options {
    bool crc = false;
    uint16_t depth = 4;
    bool open = true;       // send the empty Write
    int receive_bytes = 0;  // of the peer's socket buffer; 0: the system's default
    uint32_t queue_depth = 64;
    bool extensions = true;  // RFC 7306
  };
  static constexpr size_t kTarget = 65536, kTargetSize = 20000;

  SocketPeer() : SocketPeer(Options{}) {}
  explicit SocketPeer(const Options& options)
      : dut(options.queue_depth, options.queue_depth, options.extensions),
        crc(options.crc),
        scan(options.crc) {
    EXPECT_TRUE(kStrict);
    EXPECT_EQ(dut.endpoint->init_for_cm(), 0);
    target = dut.engine.regions()
                 .add(dut.domain, dut.memory.data() + kTarget, kTargetSize, base(), sim::kAllAccess)
                 .value();
    auto bound = bind_port(loopback_address(), {});
    EXPECT_TRUE(bound.ok());
    listener_ = Listener::start(dut.engine.context(), *bound, requests_).value();
    dial(options);
  }
  ~SocketPeer() {
    for (const std::string& finding : scan.findings()) ADD_FAILURE() << finding;
    listener_->close();
    if (connection) connection->abort();
    close();
    for (MemoryRegion* one : windows_) dut.engine.regions().release_window(*one);
    if (target != nullptr) remove_target();
    for (MemoryRegion* one : others_) dut.engine.remove_region(*one);
  }
  SocketPeer(const SocketPeer&) = delete;
  SocketPeer& operator=(const SocketPeer&) = delete;

  // ---- The device's memory.
  uint64_t base() { return reinterpret_cast<uint64_t>(dut.memory.data() + kTarget); }
  STag stag() const { return STag{target->key.load()}; }
  /// Registers a part of the target once more.
  MemoryRegion* add_region(uint32_t access, ProtectionDomain* domain = nullptr, size_t offset = 0,
                           size_t size = kTargetSize) {
    others_.push_back(dut.engine.regions()
                          .add(domain != nullptr ? *domain : dut.domain,
                               dut.memory.data() + kTarget + offset, size, base() + offset, access)
                          .value());
    return others_.back();
  }
  STag key_of(uint32_t access, ProtectionDomain* domain = nullptr) {
    return STag{add_region(access, domain)->key.load()};
  }
  /// A window over the whole target, bound to the stream with this number (0: type 1, no stream).
  STag window_key(uint64_t stream) {
    RegionTable& regions = dut.engine.regions();
    const MemoryRegion* region = add_region(sim::kAllAccess | kAccessMwBind);
    windows_.push_back(regions
                           .add_window(dut.domain, stream == 0 ? RegionKind::kWindowType1
                                                               : RegionKind::kWindowType2)
                           .value());
    const STag key{regions.window_key(*windows_.back())};
    EXPECT_TRUE(regions.bind(
        {key, region->key.load(), base(), kTargetSize, kAccessRemoteWrite | kAccessRemoteRead},
        {&dut.domain, stream, 0}));
    return key;
  }
  /// Binds a type 2 window to the device's queue pair, with a work request.
  STag own_window() {
    RegionTable& regions = dut.engine.regions();
    const MemoryRegion* region = add_region(sim::kAllAccess | kAccessMwBind);
    windows_.push_back(regions.add_window(dut.domain, RegionKind::kWindowType2).value());
    SendRequest request;
    request.wr_id = kBindId;
    request.opcode = SendOpcode::kBindWindow;
    request.rkey = regions.window_key(*windows_.back());
    request.bind_lkey = region->key.load();
    request.remote_address = base();
    request.bind_length_bytes = kTargetSize;
    request.bind_access = kAccessRemoteWrite | kAccessRemoteRead;
    EXPECT_EQ(dut.post(request, 0, 0), 0);
    const WorkCompletion done = dut.wait_passive();
    EXPECT_EQ(done.wr_id, kBindId);
    EXPECT_EQ(done.status, WcStatus::kSuccess);
    return STag{request.rkey};
  }
  static constexpr uint64_t kBindId = 99;
  void remove_target() {
    EXPECT_EQ(dut.engine.remove_region(*target), 0);
    target = nullptr;
  }

  // ---- Sending.
  void write(const Bytes& bytes) const {
    size_t at = 0;
    while (at < bytes.size()) {
      const ssize_t sent = ::send(fd_, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent <= 0) return;  // the device has closed; what it sent shows the test why
      at += static_cast<size_t>(sent);
    }
  }
  Bytes framed(const std::vector<Bytes>& ulpdus) const {
    Bytes all;
    for (const Bytes& one : ulpdus) {
      const Bytes fpdu = sim::frame(one, crc);
      all.insert(all.end(), fpdu.begin(), fpdu.end());
    }
    return all;
  }
  void send(const Bytes& ulpdu) const { write(sim::frame(ulpdu, crc)); }
  void send_all(const std::vector<Bytes>& ulpdus) const { write(framed(ulpdus)); }
  void finish() const { shutdown(fd_, SHUT_WR); }
  void reset() {
    const linger now{.l_onoff = 1, .l_linger = 0};
    setsockopt(fd_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    close();
  }
  void close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }
  int fd() const { return fd_; }

  // ---- Receiving.
  /// The next ULPDU; empty at the end of the stream.
  std::optional<Bytes> next() {
    Bytes length = read(2);
    if (length.size() < 2) {
      cut_ |= !length.empty();
      return std::nullopt;
    }
    const size_t size = load_be16(length.data());
    Bytes rest = read(fpdu_size(size) - 2);
    if (rest.size() < fpdu_size(size) - 2) {
      cut_ = true;
      return std::nullopt;
    }
    rest.resize(size);
    return rest;
  }
  /// All ULPDUs until the device's FIN.
  std::vector<Bytes> all() {
    std::vector<Bytes> ulpdus;
    while (auto one = next()) ulpdus.push_back(std::move(*one));
    return ulpdus;
  }
  /// The device closed its side orderly, and not inside an FPDU.
  bool ended_by_fin() const { return fin_ && !cut_; }
  /// The same, and not inside a message either.
  bool orderly() const { return fin_ && scan.at_boundary(); }
  bool was_reset() const { return reset_; }
  bool silent(int milliseconds = 20) const {
    pollfd entry{.fd = fd_, .events = POLLIN, .revents = 0};
    return poll(&entry, 1, milliseconds) == 0;
  }

  // ---- The device's work.
  /// The next `count` completions by id; checks that there are no more.
  std::map<uint64_t, WorkCompletion> completions(size_t count) {
    std::map<uint64_t, WorkCompletion> found;
    for (size_t i = 0; i < count; ++i) {
      const WorkCompletion one = dut.wait_passive();
      EXPECT_TRUE(found.emplace(one.wr_id, one).second) << "completed twice: " << one.wr_id;
    }
    WorkCompletion more;
    EXPECT_EQ(dut.cq.poll(&more, 1), 0);
    return found;
  }
  bool ended() {
    return eventually([&] { return owner->ended == 1; });
  }

  Node dut;
  const bool crc;
  MemoryRegion* target = nullptr;
  sim::FpduScan scan;
  std::shared_ptr<RecordingOwner> owner = std::make_shared<RecordingOwner>();
  std::shared_ptr<Connection> connection;

 private:
  void dial(const Options& options) {
    const sockaddr_storage where = listener_->local_address();
    fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int on = 1;
    setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (options.receive_bytes != 0)
      setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &options.receive_bytes, sizeof(int));
    ASSERT_EQ(::connect(fd_, reinterpret_cast<const sockaddr*>(&where), sizeof(sockaddr_in)), 0);
    // After the call: the kernel does not start a call with a limit again that something has
    // disturbed.
    const timeval guard{.tv_sec = 60, .tv_usec = 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &guard, sizeof guard);
    setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &guard, sizeof guard);
    Bytes request(24);
    std::memcpy(request.data(), "MPA ID Req Frame", 16);
    request[16] = std::byte{static_cast<uint8_t>(options.crc ? 0x50 : 0x10)};
    request[17] = std::byte{2};
    store_be16(&request[18], 4);
    store_be16(&request[20], options.depth);
    store_be16(&request[22], options.depth);
    write(request);
    connection = requests_->take();
    ASSERT_NE(connection, nullptr);
    ConnectParameters parameters;
    parameters.initiator_depth = parameters.responder_resources = options.depth;
    ASSERT_EQ(connection->accept(dut.endpoint, parameters, owner), 0);
    ASSERT_EQ(read_raw(24).size(), 24u);
    if (options.open) send(sim::tagged(O::kWrite, STag{1}, 0, 0));
  }
  Bytes read_raw(size_t size) {
    Bytes bytes(size);
    size_t got = 0;
    while (got < size) {
      const ssize_t count = recv(fd_, bytes.data() + got, size - got, 0);
      if (count < 0 && errno == EINTR) continue;
      if (count == 0) fin_ = true;
      if (count < 0 && errno == ECONNRESET) reset_ = true;
      if (count <= 0) break;
      got += static_cast<size_t>(count);
    }
    bytes.resize(got);
    return bytes;
  }
  Bytes read(size_t size) {
    Bytes bytes = read_raw(size);
    scan.feed(bytes);
    return bytes;
  }

  std::shared_ptr<RecordingListener> requests_ = std::make_shared<RecordingListener>();
  std::shared_ptr<Listener> listener_;
  std::vector<MemoryRegion*> others_, windows_;
  int fd_ = -1;
  bool fin_ = false, reset_ = false, cut_ = false;
};

inline ReadRequestHeader read_of(SocketPeer& peer, uint32_t size = 64) {
  return {.sink_stag = STag{7},
          .sink_to = 9,
          .size = size,
          .source_stag = peer.stag(),
          .source_to = peer.base()};
}

}  // namespace uwarp::conformance
