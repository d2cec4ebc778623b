// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The other end of a connection, made by hand on verbs, to send what the library never would and to
// see exactly what it sends.
#pragma once

#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

#include <array>
#include <optional>
#include <string>

#include "core/header.h"
#include "core/private_data.h"
#include "rpcrdma/verbs/rpcrdma_fixture.h"

namespace rpcrdma {

/// A message that came, and what came with it.
struct RawMessage {
  Bytes bytes;
  core::DecodedHeader decoded;
  std::optional<uint32_t> invalidated;

  std::span<const std::byte> rpc() const { return std::span(bytes).subspan(decoded.size); }
};

class RawPeer {
 public:
  static constexpr size_t kReceives = 16;
  static constexpr size_t kReceiveSize = 262144;
  static constexpr size_t kSendSize = 262144;

  RawPeer() : memory_(kReceives * kReceiveSize + kSendSize + kChunkSize) {}
  ~RawPeer() {
    for (ibv_mw* mw : windows_) ibv_dealloc_mw(mw);
    if (id_ != nullptr) {
      // It waits for an event, which does not come for a connection that never was.
      if (connected_) rdma_disconnect(id_);
      if (region_ != nullptr) rdma_dereg_mr(region_);
      rdma_destroy_ep(id_);
    }
    if (listener_ != nullptr) rdma_destroy_ep(listener_);
  }
  RawPeer(const RawPeer&) = delete;
  RawPeer& operator=(const RawPeer&) = delete;

  /// As a client. Receives are posted. False: refused.
  bool connect(uint16_t port, const Bytes& private_data) {
    rdma_addrinfo hints{}, *found = nullptr;
    hints.ai_port_space = RDMA_PS_TCP;
    if (rdma_getaddrinfo(kHost, std::to_string(port).c_str(), &hints, &found) != 0) return false;
    ibv_qp_init_attr attributes = queues();
    const int made = rdma_create_ep(&id_, found, nullptr, &attributes);
    rdma_freeaddrinfo(found);
    if (made != 0 || !post_receives()) return false;
    rdma_conn_param parameters = with(private_data);
    connected_ = rdma_connect(id_, &parameters) == 0;
    if (connected_) keep_private_data();
    return connected_;
  }

  /// As a server.
  uint16_t listen() {
    rdma_addrinfo hints{}, *found = nullptr;
    hints.ai_port_space = RDMA_PS_TCP;
    hints.ai_flags = RAI_PASSIVE;
    if (rdma_getaddrinfo(kHost, nullptr, &hints, &found) != 0) return 0;
    ibv_qp_init_attr attributes = queues();
    const int made = rdma_create_ep(&listener_, found, nullptr, &attributes);
    rdma_freeaddrinfo(found);
    if (made != 0 || rdma_listen(listener_, 4) != 0) return 0;
    return ntohs(rdma_get_src_port(listener_));
  }
  /// Blocks until a client comes.
  bool accept(const Bytes& private_data) {
    if (rdma_get_request(listener_, &id_) != 0) return false;
    keep_private_data();
    rdma_conn_param parameters = with(private_data);
    connected_ = post_receives() && rdma_accept(id_, &parameters) == 0;
    return connected_;
  }

  /// What the other side announced.
  const Bytes& private_data() const { return private_data_; }

  void post(const Bytes& bytes) {
    ASSERT_LE(bytes.size(), kSendSize);
    std::memcpy(send_buffer(), bytes.data(), bytes.size());
    ASSERT_EQ(rdma_post_send(id_, nullptr, send_buffer(), bytes.size(), region_, IBV_SEND_SIGNALED),
              0);
  }
  void send(const Bytes& bytes) {
    post(bytes);
    ASSERT_TRUE(send_completes());
  }
  void send(const core::Header& header, const Bytes& rpc = {}) {
    Bytes bytes(4096);
    bytes.resize(header.encode(bytes));
    bytes.insert(bytes.end(), rpc.begin(), rpc.end());
    send(bytes);
  }
  bool send_completes() {
    ibv_wc completion{};
    return eventually([&] { return ibv_poll_cq(id_->send_cq, 1, &completion) != 0; }) &&
           completion.status == IBV_WC_SUCCESS;
  }

  /// The next message; nothing when the connection has ended instead.
  std::optional<RawMessage> receive() {
    ibv_wc completion{};
    if (!eventually([&] { return ibv_poll_cq(id_->recv_cq, 1, &completion) != 0; })) {
      ADD_FAILURE() << "neither a message nor the end";
      return std::nullopt;
    }
    if (completion.status != IBV_WC_SUCCESS) return std::nullopt;
    const auto* at = reinterpret_cast<const std::byte*>(completion.wr_id);
    RawMessage message{{at, at + completion.byte_len}, {}, std::nullopt};
    message.decoded = core::decode_header(message.bytes);
    if ((completion.wc_flags & IBV_WC_WITH_INV) != 0)
      message.invalidated = completion.invalidated_rkey;
    return message;
  }

  /// Binds a window of type 2 to a part of chunk(), open for remote access.
  core::Segment expose(size_t offset, uint32_t length) {
    ibv_mw* mw = ibv_alloc_mw(id_->pd, IBV_MW_TYPE_2);
    EXPECT_NE(mw, nullptr);
    windows_.push_back(mw);
    ibv_send_wr request{}, *bad = nullptr;
    request.opcode = IBV_WR_BIND_MW;
    request.send_flags = IBV_SEND_SIGNALED;
    request.bind_mw.mw = mw;
    request.bind_mw.rkey = ibv_inc_rkey(mw->rkey);
    request.bind_mw.bind_info = {region_, reinterpret_cast<uint64_t>(chunk().data() + offset),
                                 length, IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE};
    EXPECT_EQ(ibv_post_send(id_->qp, &request, &bad), 0);
    EXPECT_TRUE(send_completes());
    return {request.bind_mw.rkey, length, request.bind_mw.bind_info.addr};
  }
  std::span<std::byte> chunk() {
    return std::span(memory_).subspan(kReceives * kReceiveSize + kSendSize);
  }

  rdma_cm_id* id() { return id_; }
  ibv_mr* region() { return region_; }

 private:
  static constexpr size_t kChunkSize = 65536;

  static ibv_qp_init_attr queues() {
    ibv_qp_init_attr attributes{};
    attributes.cap = {64, kReceives, 1, 1, 0};
    attributes.qp_type = IBV_QPT_RC;
    return attributes;
  }
  static rdma_conn_param with(const Bytes& private_data) {
    rdma_conn_param parameters{};
    parameters.private_data = private_data.empty() ? nullptr : private_data.data();
    parameters.private_data_len = static_cast<uint8_t>(private_data.size());
    parameters.responder_resources = parameters.initiator_depth = 4;
    parameters.retry_count = parameters.rnr_retry_count = 7;
    return parameters;
  }
  bool post_receives() {
    region_ = ibv_reg_mr(id_->pd, memory_.data(), memory_.size(),
                         IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE |
                             IBV_ACCESS_MW_BIND);
    if (region_ == nullptr) return false;
    for (size_t i = 0; i < kReceives; ++i) {
      std::byte* at = memory_.data() + i * kReceiveSize;
      if (rdma_post_recv(id_, at, at, kReceiveSize, region_) != 0) return false;
    }
    return true;
  }
  void keep_private_data() {
    const rdma_conn_param& parameters = id_->event->param.conn;
    const auto* at = static_cast<const std::byte*>(parameters.private_data);
    if (at != nullptr) private_data_.assign(at, at + parameters.private_data_len);
  }
  std::byte* send_buffer() { return memory_.data() + kReceives * kReceiveSize; }

  Bytes memory_;
  Bytes private_data_;
  rdma_cm_id* id_ = nullptr;
  bool connected_ = false;
  rdma_cm_id* listener_ = nullptr;
  ibv_mr* region_ = nullptr;
  std::vector<ibv_mw*> windows_;
};

inline Bytes announcement(bool remote_invalidation, uint32_t send_size, uint32_t receive_size) {
  Bytes room(core::PrivateData::kWireSize);
  EXPECT_EQ((core::PrivateData{remote_invalidation, send_size, receive_size}.encode(room)), 8u);
  return room;
}

inline core::Header call_header(uint32_t xid, core::ChunkLists chunks = {}) {
  core::Header header;
  header.xid = xid;
  header.credits = 8;
  header.chunks = std::move(chunks);
  return header;
}

/// The test program's call, as it is on the wire when nothing of it is a chunk.
inline Bytes call_bytes(uint32_t xid, const Bytes& data, uint32_t filler, uint32_t result) {
  const TestCall test(xid, data, filler, result);
  Bytes bytes = test.head;
  bytes.insert(bytes.end(), data.begin(), data.end());
  bytes.resize(core::round_up(bytes.size()));
  bytes.insert(bytes.end(), test.tail.begin(), test.tail.end());
  return bytes;
}

}  // namespace rpcrdma
