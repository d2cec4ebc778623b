// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// A queue pair of the sans-IO core whose stream takes every byte at once and keeps none: what
// posting and polling cost without sockets, threads and system calls.
#pragma once

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "qp/queue_pair.h"

namespace uwarp::bench {

class NullStreamSender {
 public:
  static constexpr size_t kMemoryBytes = 64 << 10;

  explicit NullStreamSender(bool crc = false)
      : cq_(2 * kDepth, nullptr), memory_(kMemoryBytes), qp_(shape()) {
    const auto region = regions_.add(domain_, memory_.data(), memory_.size(), address(),
                                     kAccessLocalWrite | kAccessRemoteWrite | kAccessRemoteRead);
    if (!region.ok()) fail("registration");
    lkey_ = (*region)->key.load();
    qp_.to_init();
    StreamConfig stream;
    stream.crc = crc;
    stream.ord = stream.ird = 16;
    if (!qp_.start_stream(stream)) fail("start of the stream");
  }

  /// Posts one signalled request, sends its bytes to nowhere and takes its completion.
  void post_and_poll(SendOpcode opcode, uint32_t bytes) {
    post(opcode, bytes);
    pump();
    WorkCompletion completion;
    if (cq_.poll(&completion, 1) != 1 || completion.status != WcStatus::kSuccess) {
      fail("completion");
    }
  }

  void post(SendOpcode opcode, uint32_t bytes) {
    const Sge sge{address(), bytes, lkey_};
    SendRequest request;
    request.wr_id = 1;
    request.opcode = opcode;
    request.flags = kSendSignaled;
    request.sges = {&sge, 1};
    request.remote_address = address();
    request.rkey = 0x100;
    if (qp_.post_send(request) != 0) fail("post");
  }

  void pump() {
    auto turn = qp_.transmit_side().begin();
    if (!turn) fail("transmit side");
    for (;;) {
      const auto window = qp_.transmitter().next_iovecs();
      if (window.empty()) break;
      size_t bytes = 0;
      for (const iovec& piece : window) bytes += piece.iov_len;
      if (!qp_.transmitter().sent(bytes)) break;
    }
    (void)turn.end();
  }

 private:
  static constexpr uint32_t kDepth = 128;

  [[noreturn]] static void fail(const char* what) {
    std::fprintf(stderr, "null stream: %s failed\n", what);
    std::exit(1);
  }

  uint64_t address() { return reinterpret_cast<uint64_t>(memory_.data()); }
  QpConfig shape() {
    QpConfig shape;
    shape.domain = &domain_;
    shape.send_cq = shape.recv_cq = &cq_;
    shape.regions = &regions_;
    shape.max_send_wr = shape.max_recv_wr = kDepth;
    return shape;
  }

  ProtectionDomain domain_;
  RegionTable regions_;
  CompletionQueue cq_;
  std::vector<std::byte> memory_;
  QueuePair qp_;
  uint32_t lkey_ = 0;
};

}  // namespace uwarp::bench
