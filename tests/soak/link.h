// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The books of one link: what each end has been told to do, what must have come of it, and what
// the memory of both ends must look like. Finds: completions that are missing, come twice, out of
// order or with the wrong contents, and every byte that is not what it ought to be.
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
using Octets = std::vector<std::byte>;

inline uint64_t pick(Random& random, uint64_t count) { return random() % count; }
inline bool chance(Random& random, uint64_t of) { return random() % of == 0; }

/// Says what was found and ends the run.
[[noreturn]] void violation(const std::string& what);

/// What the whole run has done.
struct Tally {
  std::map<std::string, uint64_t> counts;
  uint64_t bytes = 0;
  void add(const char* what) { ++counts[what]; }
};

/// The buffers of one side's shared receive queue.
struct SharedBuffers {
  std::byte* memory = nullptr;  // the side's
  Octets expected;
  std::map<uint64_t, uint32_t> posted;  // id -> buffer
  std::vector<uint32_t> free;
  uint32_t claimed = 0;  // by messages that are under way

  void reset(std::byte* side_memory);
};

/// One request, from its post until nothing depends on it any more.
struct Request {
  uint64_t id = 0;
  ibv_wr_opcode opcode = IBV_WR_SEND;
  bool signaled = true;
  uint32_t source_slot = 0;  // of the initiator; of the target for a Read
  uint32_t target_slot = 0;  // of the target; of the initiator for a Read. Or the cell
  Octets data;               // what is to be in the target's memory, or in the receive
  uint32_t imm = 0;
  uint64_t before = 0;  // atomics: what the cell has had
  Octets result;        // ... as the initiator gets it
};
using RequestPointer = std::shared_ptr<Request>;

class Link {
 public:
  enum class State { kDown, kPreparing, kUp, kLost, kStopping };

  /// Where commands of an end go.
  using Send = std::function<void(const Command&)>;
  struct EndSetup {
    uint32_t index;     // of the link, at that side
    std::byte* memory;  // of the side, as the hub sees it
    SharedBuffers* shared;
    Send send;
  };
  Link(uint32_t number, EndSetup hub, EndSetup peer, Tally& tally, uint64_t& ids);

  State state() const { return state_; }
  /// Both sides are there: a new connection.
  void start(Random& random);
  /// One random thing. Only when up.
  void act(Random& random);
  void handle(int end, const Report& report);
  /// The process of the peer's end is going to be killed, or both ends shall stop.
  void lose();
  void stop();
  /// The process of the peer's end is gone for good. Then it is stopped, as soon as the hub's end
  /// has been flushed.
  void peer_gone();
  /// Goes on with what waits for completions.
  void advance();
  /// A completion or a report is due.
  bool waits() const;
  /// Compares all memory that nothing is under way to.
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
    Octets expected;
    Address address{};
    std::vector<bool> slot_busy, cell_busy, receive_busy;
    std::deque<RequestPointer> sends;        // posted here, not completed
    std::deque<RequestPointer> messages;     // sent from here, a receive at the other end awaits
    std::deque<RequestPointer> unconfirmed;  // Writes from here that may not be placed yet
    std::vector<RequestPointer> failed;      // from here, with an error or without a completion
    std::deque<std::pair<uint64_t, uint32_t>> receives;  // posted here: id, buffer
    Window window;
    bool prepared = false;
    bool errored = false;  // has said so
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
  Octets fill_source(End& end, uint32_t slot, uint32_t length, Random& random);

  void handle_send(int end, const Report& report);
  void handle_receive(int end, const Report& report, uint32_t buffer, bool shared);
  void succeed(int end, const RequestPointer& request, const Report& report);
  /// Everything that `end` has sent before `request` has been placed.
  void confirm(int end, uint64_t before_id);
  void place(End& at, size_t offset, const Octets& data, const char* what);
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
