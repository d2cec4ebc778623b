// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The active side of an rdma_cm id of datagrams: asks a UDP port for the queue pair behind it,
// until there is a reply (service ID resolution, docs/wire.md).
#pragma once

#include <sys/socket.h>

#include <array>
#include <memory>
#include <mutex>
#include <span>

#include "base/result.h"
#include "carrier/udp_socket.h"
#include "connect/connection_events.h"
#include "connect/sidr_repetition.h"
#include "progress/progress.h"
#include "protocol/wire/sidr_message.h"

namespace uwarp {

struct ConnectContext;

/// Any thread. The owner is called once at most, by the thread that progresses and without locks:
/// connection_established() with the peer's queue pair, connection_rejected() with a SidrStatus, or
/// connection_failed() with -ETIMEDOUT after UWARP_CONNECT_TIMEOUT_MS.
class SidrQuery final : public Source {
 public:
  /// `request` needs no transaction. Errors: those of connect(2), ENOMEM, EAGAIN (no thread).
  static Result<std::shared_ptr<SidrQuery>> start(ConnectContext& context, UdpSocket bound,
                                                  const sockaddr_storage& remote,
                                                  SidrRequest request,
                                                  std::weak_ptr<ConnectionOwner> owner);
  ~SidrQuery() override;

  /// Its port is held until end(), also after the reply.
  sockaddr_storage local_address() const;
  /// Stops, and gives the port back; at most an owner call that is under way still arrives.
  /// Idempotent.
  void end();

  bool ready(uint32_t events) override;
  void deadline_passed() override;

 private:
  SidrQuery(ConnectContext& context, UdpSocket bound, const SidrRequest& request,
            std::weak_ptr<ConnectionOwner> owner);
  void send_locked();
  /// ICMP's "port unreachable". True: the question is over.
  bool refused_locked();
  /// No more datagrams and deadlines; the owner, for the one call that is due.
  std::shared_ptr<ConnectionOwner> finish_locked();
  /// One datagram or error of the socket. False: nothing was there, or the question is over.
  bool receive_one();
  void replied(std::unique_lock<std::mutex>& guard, SidrReply reply);
  void fail_as(std::unique_lock<std::mutex>& guard, SidrStatus status);

  ConnectContext& context_;
  const uint64_t transaction_;
  const std::array<std::byte, SidrRequest::kWireSize> request_;
  mutable std::mutex mutex_;
  UdpSocket socket_;
  Progress::Ticket ticket_ = 0;
  SidrRepetition repetition_;
  std::weak_ptr<ConnectionOwner> owner_;
  bool over_ = false;
};

}  // namespace uwarp
