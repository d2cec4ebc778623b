// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The transmit side of a stream: chooses what goes next, and fills batches with it. One thread at a
// time (QueuePair holds the side). RFC 5040 5, 5041 5.2, 5044 4.
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "qp/send_queue.h"
#include "qp/stream_state.h"
#include "qp/transmit/fpdu_writer.h"
#include "qp/transmit/requester.h"
#include "qp/transmit/responder.h"
#include "qp/transmit/send_completer.h"
#include "qp/transmit/transmit_trace.h"

namespace uwarp {

class Transmitter {
 public:
  Transmitter(const QpConfig& config, SendQueue& queue, StreamState& stream,
              TransmitCounters& counters);

  /// Begins a stream (StreamState::restart was called).
  void restart();
  /// The next bytes to send: valid until sent(), or until the side is given back. Empty when
  /// nothing may be sent now. Completes what needs no bytes on the way.
  std::span<const iovec> window();
  /// The last window() is empty for want of memory: try again.
  bool starved() const {
    return stream_.running.load(std::memory_order_relaxed) && batch_.starved();
  }
  /// The first `bytes` of the window are with the kernel: completes the requests they finish. True
  /// if there may be more to send.
  bool sent(size_t bytes);
  /// The kernel could not read the application's memory.
  void fault();
  /// Work that window() may turn into bytes now, as far as a look from outside can tell: it may
  /// still have to wait for ORD or a fence. Lock-free.
  bool wanted() const;

  /// The last bytes that may go over the present carrier have gone: carrier_changed() follows once
  /// what comes next goes over another one.
  bool carrier_change_due() const { return switching_ && batch_.empty(); }
  void carrier_changed() {
    switching_ = false;
    lent_from_ = writer_.sent_position();
  }

  /// What the last window() holds is mostly of large messages.
  bool sends_large() const { return batch_.large(); }
  /// All that was posted or owed has been handed over, so that a FIN loses nothing (answers to
  /// Reads may still be out).
  bool idle() const { return idle_.load(std::memory_order_acquire) && !queue_.waiting(); }
  /// Nothing could be sent at the last try, perhaps because requests wait for answers.
  bool dry() const { return dry_.load(std::memory_order_acquire); }
  /// Asks for another try.
  void forget_dry() { dry_.store(false, std::memory_order_release); }
  /// Failed, and the Terminate (if one was due) has been handed over: the stream may be shut down
  /// for writing.
  bool finished() const { return finished_.load(std::memory_order_acquire); }

  bool bound_windows() const { return requester_.bound_windows(); }
  SendCompleter& completer() { return completer_; }

  /// Completes all requests, as SendCompleter::flush() says. Pending bytes of half-sent FPDUs move
  /// into memory of our own.
  bool flush();
  /// The peer has ended in order, and reads no more. `unread`: bytes that it had not received then,
  /// where the carrier is a socket; lent memory says so itself.
  void note_peer_end(uint64_t unread);
  /// Completes what has gone and has its answer. `peer_done`: the peer will answer no more, so what
  /// it has read counts as acknowledged (note_peer_end(); all that has gone without that). `cut`:
  /// what has not gone never will.
  void settle(bool peer_done, bool cut);
  /// Nothing goes out: what has been posted is lost (Requester::lose()).
  void lose();
  /// Forgets everything without completions.
  void reset();
  /// No byte of what `shape` says this region was is looked at after this.
  void quiesce(const MemoryRegion& region, const RegionShape& shape);

 private:
  void fill();  // what is noinline in its classes stays out of it, see there
  [[gnu::noinline, gnu::cold]] void fill_traced();
  /// The message under way is worth a place in a batch that is full otherwise.
  bool ends_soon() const;
  bool append_segment();
  /// Begins the next message. False: nothing may go now.
  bool begin_next();
  // Faults that are asked for (QpConfig::script).
  enum class AfterFaults : uint8_t { kGo, kNoRequest, kNothing, kEmitted };
  [[gnu::noinline, gnu::cold]] AfterFaults apply_faults(bool response, bool request);
  [[gnu::noinline]] bool apply_fault_verdict(uint64_t position, const FaultVerdict& verdict);
  [[gnu::noinline]] bool emit_opening();
  [[gnu::noinline, gnu::cold]] bool emit_mark(uint32_t due);
  [[gnu::noinline]] bool begin_local();
  [[gnu::noinline]] bool emit_terminate();
  [[gnu::noinline]] bool emit_when_idle();
  bool acknowledgement_due(bool request) const;
  [[gnu::noinline]] void emit_acknowledgement();
  void drop_messages();
  void drop_batch();
  void withdraw();
  void note_progress();

  const QpConfig& config_;
  SendQueue& queue_;
  StreamState& stream_;
  TransmitCounters& counters_;
  const std::unique_ptr<TransmitTrace> trace_;  // null unless steps are written down
  FpduWriter writer_;
  TransmitBatch& batch_ = writer_.batch();
  SendCompleter completer_;
  Requester requester_;
  Responder responder_;

  bool response_turn_ = false;  // fairness: answers and requests alternate
  bool closed_ = true;          // nothing is built any more
  bool flushed_ = false;        // a failure's work has been flushed: the Terminate may follow
  bool opened_ = false;         // RTR and magic are out
  bool switching_ = false;      // ... and the mark behind which the carrier changes
  std::optional<uint64_t> lent_from_;  // stream position behind which lent memory carries
  std::optional<uint64_t> peer_read_;  // ... which the peer had reached when it ended
  std::atomic<bool> dry_{true};
  std::atomic<bool> idle_{true};
  std::atomic<bool> finished_{false};
};

}  // namespace uwarp
