// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A connection in FPDU mode, up to the decision how it ends: what the events of its stream and the
// time mean. Without IO: acts on the queue pair only, and says what else is to be done.
#pragma once

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <utility>
#include <variant>

#include "base/ids.h"
#include "base/log.h"
#include "base/tuning.h"
#include "connect/connection_socket.h"
#include "inject/fault_plan.h"
#include "os/clock.h"
#include "stream/stream.h"

namespace uwarp {

/// How the log names the ways in which a peer ends the stream.
constexpr const char* describe(StreamEnd end) {
  return end == StreamEnd::kFin     ? "the peer has closed it"
         : end == StreamEnd::kReset ? "the peer has reset it"
                                    : "the peer does not answer any more";
}

/// The cause of the failure. Where this side found it, also the status of the request that fails.
inline void log_failure(Qpn number, const StreamFailure& failure) {
  const char* const status = failure.status == WcStatus::kWrFlushErr
                                 ? "no request is to blame"
                                 : name_of_status(static_cast<uint32_t>(failure.status));
  if (failure.by_peer)
    log_event("qp %#x: the peer terminates the stream: %s", number.value,
              describe(failure.terminate.code));
  else if (failure.send_terminate)
    log_event("qp %#x: stream terminated: %s (%s)", number.value, describe(failure.terminate.code),
              status);
  else
    log_event("qp %#x: stream failed (%s)", number.value, status);
}

/// An FPDU has gone in part. The rest of it is in memory of our own once the queue pair is flushed.
inline bool half_sent(QueuePair& qp) {
  const auto transmit = qp.transmit_side().lock_exclusive();
  return !qp.transmitter().next_iovecs().empty();
}

/// Under the connection's mutex, in which `Endpoint` and `Socket` may be used. Time in nanoseconds.
template <class Endpoint, class Socket>
class ConnectedState {
 public:
  /// siw as responder sees what came before it was ready only when more comes (docs/siw.md): when
  /// the peer has sent nothing after this time, and after each eightfold of it, we send more.
  static constexpr uint64_t kFirstNudgeNs = 5'000'000;
  static constexpr uint64_t kLastNudgeNs = 512 * kFirstNudgeNs;
  /// Looks at a peer that owes acknowledgements, within its timeout.
  static constexpr uint32_t kPeerChecks = 2;
  /// How long requests wait before they fail, if the peer has ended without a disconnect: as long
  /// as an adapter would repeat them, within these limits.
  static constexpr uint32_t kLeastSilenceMs = 100;
  static constexpr uint32_t kLongestSilenceMs = 600;

  /// A ring of shared memory that has been unused for once or twice this time is made smaller.
  static constexpr uint64_t kTrimAfterNs = 1'000'000'000;

  struct Terms {
    bool rendezvous = false;    // made without rdma_cm: a FIN is silent
    bool acknowledged = false;  // see QpConfig
    bool unreliable = false;    // see is_unreliable()
    bool nudges = false;        // the peer may overlook our first FPDU
    Deadline first_fpdu{};      // until when the peer's must have come, if it opens the stream
    uint32_t peer_timeout_ms = 0;
  };
  enum class Leave : uint8_t { kStay, kDrain, kGentle, kReset };
  /// What is to be done: what says "later" after the mutex is given up.
  struct Next {
    Leave leave = Leave::kStay;  // all but kStay: tell the owner of the end as well
    bool established = false;    // both directions are open: tell the owner
    bool notify_end = false;     // ... that it has ended, though the stream goes on for a while
    bool turn = false;           // what came before the end is read first
    bool pump = false;           // later: there is something to send
    bool transmit_overdue = false, release = false, expire = false,
         wire = false;  // later, by the stream
  };

  ConnectedState(Endpoint& endpoint, Socket& socket, const Terms& terms, uint64_t now_ns)
      : endpoint_(&endpoint), socket_(&socket), terms_(terms) {
    if (terms.nudges) nudge_ = {now_ns + nudge_wait_ns_};
  }

  bool rendezvous() const { return terms_.rendezvous; }
  Deadline deadline() const {
    const auto of_phase = [](const auto& phase) { return phase.until; };
    return earliest({std::visit(of_phase, phase_), terms_.first_fpdu, rnr_, fault_, post_,
                     peer_check_, nudge_, trim_, wire_});
  }

  Next on_events(const StreamEvents& events, uint64_t now_ns) {
    Next next;
    wire_ = {endpoint_->stream().wire_deadline_ns()};
    FaultScript* const script = qp().script();
    if (script != nullptr) {  // what it has decided inside the stream
      if (script->take_reset() && !in<Failing>()) {
        end(StreamEnd::kReset, next, now_ns);
        return next;
      }
      fault_ = {script->deadline_ns(now_ns)};
    }
    if (events.began_to_send && !peer_check_) watch_peer(now_ns);
    // The thread that read the first FPDU may come here later than one that has read the end.
    if (terms_.first_fpdu && qp().peer_has_spoken()) {
      terms_.first_fpdu = {};
      next.established = true;
    }
    if ((events.outcome & (kRxFailed | kRxTerminated)) != 0 || qp().flush_due()) {
      fail(next, now_ns);
    } else if ((events.outcome & kRxRnrBlocked) != 0 && qp().receiver().rnr_blocked()) {
      const bool stalled = script != nullptr && script->receive_stalled();
      rnr_ = {stalled ? 0 : endpoint_->rnr_deadline_ns()};
    }
    if (events.ended) end(events.end, next, now_ns);
    if (next.leave == Leave::kStay) hang_up(endpoint_->stream().hang_up(), next, now_ns);
    if (next.leave == Leave::kStay) check_transmit(next);
    return next;
  }

  /// Posts wait for others.
  void on_post_waits(uint64_t now_ns) { post_ = {now_ns + tuning::kPostWaitNs}; }

  /// The stream uses shared memory, and is busy.
  void on_busy_ring(uint64_t now_ns) { trim_ = {now_ns + kTrimAfterNs}; }

  /// The owner's wish: what was posted goes out, then FIN. EINVAL before the stream is established.
  /// RFC 5044-7.2-a.
  int on_disconnect(Next& next, uint64_t now_ns) {
    if (terms_.first_fpdu) return EINVAL;
    if (peer_has_disconnected()) {
      (void)qp().end_stream(StreamEnd::kLocalClose);
      next.leave = Leave::kDrain;
      return 0;
    }
    if (auto* const finished = std::get_if<PeerFinished>(&phase_)) {
      if (std::exchange(finished->disconnecting, true)) return 0;
      finished->until = {now_ns + kCloseWaitNs};
    } else if (in<Disconnecting>() || in<Failing>()) {
      return 0;
    } else {
      phase_ = Disconnecting{{now_ns + kCloseWaitNs}};
    }
    // rdma_disconnect() has moved the queue pair to SQD before: what was posted goes out all the
    // same.
    if (qp().state() == QpState::kSqd) qp().to_rts();
    endpoint_->stream().watch_transmit();
    next.pump = true;
    return 0;
  }

  /// The stream cannot go on for want of memory.
  Next on_out_of_memory(uint64_t now_ns) {
    Next next;
    end(StreamEnd::kReset, next, now_ns);
    return next;
  }

  Next on_deadline(uint64_t now_ns) {
    Next next;
    if (nudge_.take_passed(now_ns)) nudge(next, now_ns);
    next.transmit_overdue = post_.take_passed(now_ns);
    next.expire = rnr_.take_passed(now_ns);
    next.release = fault_.take_passed(now_ns);
    next.wire = wire_.take_passed(now_ns);
    if (trim_.take_passed(now_ns) && !endpoint_->stream().trim_ring()) on_busy_ring(now_ns);
    if (auto* const silent = std::get_if<Silent>(&phase_);
        silent && silent->until.take_passed(now_ns)) {
      const StreamEnd kind = silent->end;
      phase_ = GivenUp{};
      end_stream(kind, next, now_ns);
      next.pump = true;  // requests that waited fail
    }
    if (next.leave == Leave::kStay && peer_check_.take_passed(now_ns)) check_peer(next, now_ns);
    if (next.leave == Leave::kStay && terms_.first_fpdu && terms_.first_fpdu.at_ns <= now_ns) {
      log_event("connection: start-up timed out");
      end(StreamEnd::kTimeout, next, now_ns);
    }
    Deadline* const last = next.leave == Leave::kStay ? closing() : nullptr;
    if (last != nullptr && last->take_passed(now_ns)) {
      // The peer takes nothing any more.
      if (!in<Failing>()) (void)qp().end_stream(StreamEnd::kLocalClose);
      next.leave = Leave::kReset;
    }
    return next;
  }

 private:
  // Phases; `until`: when the phase has taken long enough.
  struct Flowing {
    static constexpr Deadline until{};
  };
  struct Disconnecting {  // until all that was posted has gone
    Deadline until;
  };
  struct PeerFinished {  // its FIN has come; until what can be sent has gone
    Deadline until;
    bool disconnecting = false;
  };
  struct Silent {  // the peer has ended, without a disconnect
    Deadline until;
    StreamEnd end;
  };
  struct GivenUp {  // Silent for too long
    static constexpr Deadline until{};
  };
  struct Failing {  // flushed; until the Terminate has gone, or the rest of an FPDU
    Deadline until;
  };

  template <class Phase>
  bool in() const {
    return std::holds_alternative<Phase>(phase_);
  }
  /// Null: nothing that was handed over has to go out before the end.
  Deadline* closing() {
    if (auto* const phase = std::get_if<Disconnecting>(&phase_)) return &phase->until;
    if (auto* const phase = std::get_if<PeerFinished>(&phase_)) return &phase->until;
    auto* const phase = std::get_if<Failing>(&phase_);
    return phase != nullptr ? &phase->until : nullptr;
  }
  auto& qp() { return endpoint_->qp(); }
  auto& qp() const { return endpoint_->qp(); }

  void watch_peer(uint64_t now_ns) {
    peer_check_ = {now_ns + terms_.peer_timeout_ms * kNsPerMs / kPeerChecks};
  }

  // A peer that a debugger has stopped takes nothing, but its TCP still answers. If its TCP is
  // silent too, although it owed an answer all the time, the peer is lost.
  void check_peer(Next& next, uint64_t now_ns) {
    endpoint_->stream().unwatch_peer();
    if (!socket_->owes_acknowledgement()) {
      peer_checks_ = 0;
      return;
    }
    if (peer_checks_ >= kPeerChecks && socket_->silent_for(terms_.peer_timeout_ms))
      return end(StreamEnd::kTimeout, next, now_ns);
    ++peer_checks_;
    watch_peer(now_ns);
  }

  void nudge(Next& next, uint64_t now_ns) {
    next.pump = true;  // the Write, or the end that has waited for this moment
    if (!qp().nudge() || nudge_wait_ns_ >= kLastNudgeNs) return;
    nudge_wait_ns_ *= 8;
    nudge_ = {now_ns + nudge_wait_ns_};
  }

  // The connection is gone as far as epoll or a send could tell.
  void hang_up(uint32_t events, Next& next, uint64_t now_ns) {
    if (events == 0) return;
    const bool dead = (events & (EPOLLHUP | EPOLLERR)) != 0;
    const bool rnr_blocked = qp().receiver().rnr_blocked();
    if (dead && in<Failing>()) {
      next.leave = Leave::kReset;  // the peer cannot read the Terminate any more
    } else if (dead && in<PeerFinished>()) {
      end(StreamEnd::kFin, next, now_ns);
    } else if ((events & EPOLLERR) != 0 && endpoint_->stream().ended()) {
      // The peer answers by RST what was sent as its silent end came: it has not read that.
      end(StreamEnd::kReset, next, now_ns);
    } else if (dead && rnr_blocked) {
      const bool timeout = socket_->take_error() == ETIMEDOUT;
      end(timeout ? StreamEnd::kTimeout : StreamEnd::kReset, next, now_ns);
    } else if (dead && !endpoint_->stream().ended()) {
      next.turn = true;
    } else if (rnr_blocked && !terms_.rendezvous) {
      // A FIN behind messages that can still be delivered: the owner is told. Receives may be
      // posted until the grace time is over.
      next.notify_end = true;
    }
  }

  // The Terminate says why, then the connection ends. RFC 5040-6.2-b, 5040-6.2.1-a, 5040-7-a/c.
  void fail(Next& next, uint64_t now_ns) {
    if (in<Failing>()) return;
    if (log_enabled()) log_failure(endpoint_->number(), qp().failure());
    rnr_ = {};
    qp().flush();
    send_before_end(Failing{{now_ns + kCloseWaitNs}}, next);
  }

  // Tells the owner of the end now. The connection goes when check_transmit() finds all sent, or
  // when that has taken too long.
  template <class Phase>
  void send_before_end(const Phase& phase, Next& next) {
    phase_ = phase;
    endpoint_->stream().watch_transmit();
    next.notify_end = next.pump = true;
  }

  // A FIN ends one direction only: what can be sent without an answer is sent, and no frame is cut.
  // Not with acknowledgements, of which none can come any more. RFC 5041-6.2.1-d.
  bool send_the_rest(StreamEnd kind, Next& next, uint64_t now_ns) {
    if (kind != StreamEnd::kFin || in<PeerFinished>() || in<Failing>() || terms_.rendezvous)
      return false;
    if (terms_.acknowledged || !qp().finish_input()) return false;
    const bool disconnecting = in<Disconnecting>();
    send_before_end(
        PeerFinished{disconnecting ? *closing() : Deadline{now_ns + kCloseWaitNs}, disconnecting},
        next);
    return true;
  }

  // With rdma_cm: what becomes of its end of the connection is nothing to the application any more.
  bool peer_has_disconnected() const {
    return !terms_.rendezvous && (in<Silent>() || in<GivenUp>());
  }

  // Between InfiniBand adapters requests to a peer that has gone fail only after all repetitions.
  // Without rdma_cm a peer's end has no message, and applications with many queue pairs rely on
  // that time: when one queue pair's peer leaves, what it sent on the others has still to be
  // polled. With rdma_cm the owner learns of a disconnect at once, and moves the queue pair when
  // it likes. True while that time lasts.
  bool fall_silent(StreamEnd kind, Next& next, uint64_t now_ns) {
    const bool in_order = kind == StreamEnd::kFin;
    if (!in_order && !(terms_.rendezvous && kind == StreamEnd::kReset)) return false;
    if (!terms_.rendezvous && !terms_.acknowledged) return false;
    if (auto* const silent = std::get_if<Silent>(&phase_)) {
      if (!in_order) silent->end = kind;
      return qp().fall_silent(kind);
    }
    if (!in<Flowing>() || !qp().fall_silent(kind)) return false;
    next.notify_end |= !terms_.rendezvous;
    const uint32_t timeout_ms = endpoint_->peer_timeout_ms();
    const uint32_t silence_ms = timeout_ms == 0
                                    ? kLongestSilenceMs
                                    : std::clamp(timeout_ms, kLeastSilenceMs, kLongestSilenceMs);
    phase_ = Silent{{now_ns + silence_ms * kNsPerMs}, kind};
    return true;
  }

  // An adapter that gets no acknowledgements does not notice its peer's end either. The stream
  // stays attached: what is posted is lost.
  bool lose_peer(StreamEnd kind) {
    if (!terms_.unreliable || terms_.first_fpdu || in<Failing>() || qp().flush_due()) return false;
    peer_check_ = {};
    if (qp().lose_peer(kind))
      log_event("qp %#x: end of the stream: %s; what is sent from now on is lost",
                endpoint_->number().value, describe(kind));
    return true;
  }

  void end(StreamEnd kind, Next& next, uint64_t now_ns) {
    if (lose_peer(kind) || peer_has_disconnected()) return;
    if (send_the_rest(kind, next, now_ns)) return;
    const bool fin = kind == StreamEnd::kFin;
    const bool never_used = terms_.rendezvous && terms_.first_fpdu;
    if (in<Failing>()) {
      // Our Terminate goes out first; then this end is found again while draining.
      if (fin && !qp().transmitter().finished()) return;
    } else if (!never_used) {
      if (fin && terms_.acknowledged)
        qp().note_peer_end(endpoint_->stream().unread_at_most(socket_->unacknowledged_bytes()));
      if (!fall_silent(kind, next, now_ns)) end_stream(kind, next, now_ns);
      return;
    }
    next.leave = fin ? Leave::kGentle : Leave::kReset;
  }

  void end_stream(StreamEnd kind, Next& next, uint64_t now_ns) {
    const bool fin = kind == StreamEnd::kFin;
    const bool open = qp().end_stream(kind);
    log_event("qp %#x: end of the stream: %s%s", endpoint_->number().value, describe(kind),
              open ? ", with work open" : "");
    // After the peer's end in order nothing happens until something is sent to it. The stream
    // stays attached, so that requests posted later fail.
    const bool stays = terms_.rendezvous || in<GivenUp>();
    if (stays && fin && !qp().flush_due() && qp().state() != QpState::kErr) return;
    // Even if the rest may not follow, the rest of an FPDU that is half sent does: the peer may
    // still read. As after a failure, but without a Terminate.
    if (fin && !in<PeerFinished>() && half_sent(qp()))
      return send_before_end(Failing{{now_ns + kCloseWaitNs}}, next);
    next.leave = fin ? Leave::kGentle : Leave::kReset;
  }

  // Something waited for the send side: the Terminate, or the last of what was posted.
  void check_transmit(Next& next) {
    if (endpoint_->stream().carries_output()) return;
    if (in<Failing>()) {
      if (!qp().transmitter().finished()) return;
    } else if (in<PeerFinished>()) {
      if (!qp().transmitter().dry()) return;
      (void)qp().end_stream(StreamEnd::kFin);
    } else if (in<Disconnecting>()) {
      // If our FIN follows, siw never sees what it has overlooked, and its iw_cm may crash.
      const bool first_nudge_due =
          nudge_wait_ns_ == kFirstNudgeNs && nudge_ && !qp().peer_has_spoken();
      if (!qp().transmitter().idle() || first_nudge_due) return;
      (void)qp().end_stream(StreamEnd::kLocalClose);
    } else {
      return;
    }
    next.leave = Leave::kDrain;
  }

  Endpoint* endpoint_;
  Socket* socket_;
  Terms terms_;
  std::variant<Flowing, Disconnecting, PeerFinished, Silent, GivenUp, Failing> phase_;
  Deadline rnr_;         // a receive must have been posted
  Deadline fault_;       // a FaultScript holds a direction
  Deadline wire_;        // a wire has carried something
  Deadline post_;        // posts that wait for others go out
  Deadline peer_check_;  // the next look whether the peer acknowledges what was sent
  Deadline trim_;        // the next look whether the ring is unused
  Deadline nudge_;       // an empty Write goes to a peer that has sent nothing yet
  uint64_t nudge_wait_ns_ = kFirstNudgeNs;
  uint32_t peer_checks_ = 0;  // at which it owed something, in a row
};

}  // namespace uwarp
