// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A queue pair as applications know it: the sans-IO core, its number, its attributes, and the
// connection that carries it, made by rdma_cm or by the rendezvous. verbs/ talks to this class.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/ids.h"
#include "base/result.h"
#include "cm/connection.h"
#include "net/net_device.h"
#include "qp/queue_pair.h"

namespace uwarp {

class Engine;

/// Attributes of a queue pair in the engine's terms; verbs/ fills it from ibv_qp_attr. The mask bits
/// are those of ibv_qp_attr_mask.
struct QpAttributes {
  QpState state = QpState::kReset;
  QpState current_state = QpState::kReset;
  bool notify_drained = false;
  uint32_t access = 0;
  uint8_t port = 1;
  uint16_t pkey_index = 0;
  uint8_t path_mtu = 5;
  uint32_t dest_qp_num = 0;
  uint32_t rq_psn = 0;
  uint32_t sq_psn = 0;
  uint8_t max_rd_atomic = 0;       // ORD
  uint8_t max_dest_rd_atomic = 0;  // IRD
  uint8_t min_rnr_timer = 0;
  uint8_t timeout = 0;
  uint8_t retry_count = 0;
  uint8_t rnr_retry = 0;
  bool has_address = false;   // an address vector was given
  uint8_t dgid[16] = {};
  uint8_t sgid_index = 0;
  uint8_t traffic_class = 0;
};

class Endpoint : public std::enable_shared_from_this<Endpoint> {
 public:
  /// Makes a queue pair on `device`: reserves its number and with it the rendezvous port (decision
  /// 4). config.number is filled in here. Errors: ENOMEM, EADDRINUSE (no port), EMFILE.
  static Result<std::shared_ptr<Endpoint>> create(Engine& engine, const NetDevice& device,
                                                  QpConfig config);
  virtual ~Endpoint() = default;

  QueuePair& qp() { return qp_; }
  Qpn number() const { return qp_.config().number; }

  /// ibv_modify_qp: checks mask and state table (decision 17), keeps the attributes, moves the
  /// state, starts or ends what hangs on it. 0 or EINVAL, ENOMEM...
  virtual int modify(const QpAttributes& attributes, uint32_t mask) = 0;
  /// All that was set, plus the state at this moment.
  virtual QpAttributes attributes() const = 0;

  /// Hot path: post and, if nobody transmits, transmit in the caller.
  int post_send(const SendRequest& request) {
    int error = qp_.post_send(request);
    return error;
  }
  /// Hot path of a list: post several, then one pump().
  virtual void pump() = 0;
  int post_recv(uint64_t wr_id, std::span<const Sge> sges) {
    int error = qp_.post_recv(wr_id, sges);
    if (qp_.receive_resumable()) resume();
    return error;
  }
  /// A held stream may go on (a receive was posted, also through an SRQ).
  virtual void resume() = 0;

  /// ibv_destroy_qp: aborts the connection and the rendezvous. When it returns no thread touches
  /// the queue pair, its completion queues or the memory of its domain on its behalf any more.
  virtual void destroy() = 0;

 protected:
  explicit Endpoint(const QpConfig& config) : qp_(config) {}
  QueuePair qp_;
};

}  // namespace uwarp
