// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The records of one link: what each end has been told to do, what must have come of it, and what
// the memory of both ends must contain. Finds completions that are missing, come twice, out of
// order or with the wrong contents, and every wrong byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "soak/commands.h"

namespace soak {

using Random = std::mt19937_64;
using Bytes = std::vector<std::byte>;

inline uint64_t pick(Random& random, uint64_t count) { return random() % count; }
inline bool chance(Random& random, uint64_t of) { return random() % of == 0; }

/// Prints what was found and ends the run.
[[noreturn]] void violation(const std::string& what);

/// Counts what the whole run has done.
struct Tally {
  std::map<std::string, uint64_t> counts;
  uint64_t bytes = 0;
  void add(const char* what) { ++counts[what]; }
};

/// The buffers of one side's shared receive queue.
struct SharedBuffers {
  std::byte* memory = nullptr;  // of the side
  Bytes expected;
  std::map<uint64_t, uint32_t> posted;  // id -> buffer
  std::vector<uint32_t> free;
  uint32_t claimed = 0;  // by messages under way

  void reset(std::byte* side_memory);
};

/// One request, from its post until nothing depends on it.
struct Request {
  uint64_t id = 0;
  ibv_wr_opcode opcode = IBV_WR_SEND;
  bool signaled = true;
  uint32_t source_slot = 0;  // at the initiator; for a Read at the target
  uint32_t target_slot = 0;  // at the target; for a Read at the initiator. For an atomic the cell
  Bytes data;                // the bytes expected in the target's memory or in the receive
  uint32_t imm = 0;
  uint64_t before = 0;  // atomics: the earlier value of the cell
  Bytes result;         // atomics: the value that the initiator must get
};
using RequestPointer = std::shared_ptr<Request>;

class Link {
 public:
  enum class State { kDown, kPreparing, kUp, kLost, kStopping };

  /// Takes the commands for an end.
  using Send = std::function<void(const Command&)>;
  struct EndSetup {
    uint32_t index;     // of the link, on that side
    std::byte* memory;  // of the side, as the hub sees it
    SharedBuffers* shared;
    Send send;
  };
  Link(uint32_t number, EndSetup hub, EndSetup peer, Tally& tally, uint64_t& ids);

  State state() const { return state_; }
  /// Both sides run: starts a new connection.
  void start(Random& random);
  /// One random action. Only when up.
  void act(Random& random);
  void handle(int end, const Report& report);
  /// lose(): the hub is about to kill the process of the peer. stop(): both ends are to stop.
  void lose();
  void stop();
  /// The peer's process has ended. The link is stopped once the hub's end has been flushed.
  void peer_gone();
  /// Takes the next step of a start or stop that waits for completions.
  void advance();
  /// True if a completion or a report is still expected.
  bool waits() const;
  /// Compares all memory that no request under way may write to.
  void verify() const;
  std::string describe() const;

 private:
  struct Window {
    enum class State { kNone, kBinding, kBound, kInvalidating } state = State::kNone;
    uint32_t key = 0;
    uint32_t slot = 0;
  };
  struct End {
    EndSetup setup;
    Bytes expected;
    Address address{};
    std::vector<bool> slot_busy, cell_busy, receive_busy;
    std::deque<RequestPointer> sends;  // posted here, not completed
    // Sent from here; the other end must still complete a receive.
    std::deque<RequestPointer> messages;
    std::deque<RequestPointer> unconfirmed;  // Writes from here that may not have been placed yet
    std::vector<RequestPointer> failed;      // from here, with an error or without a completion
    std::deque<std::pair<uint64_t, uint32_t>> receives;  // posted here: id, buffer
    Window window;
    bool prepared = false;
    bool errored = false;  // has reported kErrored
    bool failing = false;  // a request has failed
    bool proven = false;   // a request has succeeded
    bool alive = true;
  };

  std::byte* memory(const End& end) const;
  std::byte* slot_memory(const End& end, uint32_t slot) const;
  bool doomed() const { return state_ == State::kLost || state_ == State::kStopping; }
  [[noreturn]] void wrong(const std::string& what) const;
  void demand(bool holds, const char* what) const {
    if (!holds) wrong(what);
  }

  bool post_receive(int end);
  void post_send(int end, ibv_wr_opcode opcode, Random& random);
  void post_write(int end, ibv_wr_opcode opcode, Random& random);
  void post_read(int end, Random& random);
  void post_atomic(int end, ibv_wr_opcode opcode, Random& random);
  void post_bind(int end, Random& random);
  void post_invalidate(int end, Random& random);
  RequestPointer make(ibv_wr_opcode opcode);
  void issue(int end, const RequestPointer& request, Command command, Random& random);
  bool has_receive_for(int target) const;
  bool choose_slots(const End& from, const End& to, Random& random, uint32_t& source,
                    uint32_t& target) const;
  Bytes fill_source(End& end, uint32_t slot, uint32_t length, Random& random);

  void handle_send(int end, const Report& report);
  void handle_receive(int end, const Report& report, uint32_t buffer, bool shared);
  void succeed(int end, const RequestPointer& request, const Report& report);
  /// All that `end` has sent before `request` has been placed.
  void confirm(int end, uint64_t before_id);
  void place(End& at, size_t offset, const Bytes& data, const char* what);
  static bool all_sent(const End& end);
  void finish_stop();
  void settle_memory(int end);

  const uint32_t number_;
  End ends_[2];
  Tally& tally_;
  uint64_t& ids_;
  State state_ = State::kDown;
  uint64_t epoch_ = 0;
};

}  // namespace soak
