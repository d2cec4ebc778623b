// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "soak/link.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace soak {
namespace {

constexpr size_t kOutstanding = 12;  // most signaled requests of an end, so that no queue overflows

uint64_t load(const std::byte* at) {
  uint64_t value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

Bytes bytes_of(uint64_t value) {
  Bytes bytes(sizeof value);
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

bool is_message(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_SEND || opcode == IBV_WR_SEND_WITH_IMM ||
         opcode == IBV_WR_SEND_WITH_INV || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}
bool is_atomic(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || opcode == IBV_WR_ATOMIC_CMP_AND_SWP;
}
bool is_write(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_RDMA_WRITE || opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
}

const char* name(ibv_wr_opcode opcode) {
  switch (opcode) {
    case IBV_WR_SEND:
      return "send";
    case IBV_WR_SEND_WITH_IMM:
      return "send with immediate";
    case IBV_WR_SEND_WITH_INV:
      return "send with invalidate";
    case IBV_WR_RDMA_WRITE:
      return "write";
    case IBV_WR_RDMA_WRITE_WITH_IMM:
      return "write with immediate";
    case IBV_WR_RDMA_READ:
      return "read";
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
      return "fetch and add";
    case IBV_WR_ATOMIC_CMP_AND_SWP:
      return "compare and swap";
    case IBV_WR_BIND_MW:
      return "bind";
    default:
      return "invalidate";
  }
}

}  // namespace

void SharedBuffers::reset(std::byte* side_memory) {
  memory = side_memory;
  expected.assign(side_memory, side_memory + Layout::shared_bytes());
  posted.clear();
  claimed = 0;
  free.clear();
  for (uint32_t i = 0; i < kSharedReceives; ++i) free.push_back(i);
}

Link::Link(uint32_t number, EndSetup hub, EndSetup peer, Tally& tally, uint64_t& ids)
    : number_(number), tally_(tally), ids_(ids) {
  ends_[0].setup = std::move(hub);
  ends_[1].setup = std::move(peer);
}

void Link::wrong(const std::string& what) const {
  violation("link " + std::to_string(number_) + " in its life " + std::to_string(epoch_) + ": " +
            what + "\n" + describe());
}

std::string Link::describe() const {
  std::string text = "state " + std::to_string(static_cast<int>(state_));
  for (const End& end : ends_) {
    text += "; sends " + std::to_string(end.sends.size()) + ", messages " +
            std::to_string(end.messages.size()) + ", unconfirmed " +
            std::to_string(end.unconfirmed.size()) + ", receives " +
            std::to_string(end.receives.size()) + (end.alive ? "" : ", dead") +
            (end.proven ? ", proven" : "") + (end.errored ? ", errored" : "");
  }
  return text;
}

std::byte* Link::memory(const End& end) const {
  return end.setup.memory + Layout::link(end.setup.index);
}
std::byte* Link::slot_memory(const End& end, uint32_t slot) const {
  return memory(end) + Layout::slot(slot);
}

// ---- Life.

void Link::start(Random& random) {
  state_ = State::kPreparing;
  ++epoch_;
  for (End& end : ends_) {
    end.alive = true;
    end.prepared = end.errored = end.failing = end.proven = false;
    end.slot_busy.assign(Layout::kSlotBytes.size(), false);
    end.cell_busy.assign(kCells, false);
    end.receive_busy.assign(kReceives, false);
    end.window = {};
    end.expected.assign(memory(end), memory(end) + Layout::link_bytes());
    Command command{};
    command.kind = Command::kPrepare;
    command.link = end.setup.index;
    command.id = epoch_;
    command.imm = static_cast<uint32_t>(random());
    end.setup.send(command);
  }
  tally_.add("connections");
}

void Link::stop() {
  if (state_ == State::kDown || state_ == State::kStopping) return;
  state_ = State::kStopping;
  for (End& end : ends_) {
    if (!end.alive) continue;
    Command command{};
    command.kind = Command::kError;
    command.link = end.setup.index;
    end.setup.send(command);
  }
}

void Link::lose() {
  if (state_ != State::kDown && state_ != State::kStopping) state_ = State::kLost;
}

void Link::peer_gone() {
  ends_[1].alive = false;
  advance();
}

bool Link::waits() const {
  if (state_ == State::kDown) return false;
  return state_ != State::kUp || !all_sent(ends_[0]) || !all_sent(ends_[1]);
}

void Link::advance() {
  if (state_ == State::kLost && !ends_[1].alive) {
    // If the connection worked, the queue pairs flush by themselves.
    const End& hub = ends_[0];
    if (!(hub.proven && ends_[1].proven) || (all_sent(hub) && hub.receives.empty())) stop();
    return;
  }
  if (state_ != State::kStopping) return;
  for (const End& end : ends_) {
    if (end.alive && !(end.errored && all_sent(end) && end.receives.empty())) return;
  }
  finish_stop();
}

bool Link::all_sent(const End& end) {
  return std::none_of(end.sends.begin(), end.sends.end(),
                      [](const auto& request) { return request->signaled; });
}

void Link::finish_stop() {
  for (int end = 0; end < 2; ++end) settle_memory(end);
  for (int end = 0; end < 2; ++end) {
    End& from = ends_[end];
    if (uses_shared_queue(ends_[1 - end].setup.index))
      ends_[1 - end].setup.shared->claimed -= static_cast<uint32_t>(from.messages.size());
    from.sends.clear();
    from.messages.clear();
    from.unconfirmed.clear();
    from.failed.clear();
    from.receives.clear();
  }
  state_ = State::kDown;
}

/// Requests that were under way may have been placed wholly, in part or not at all; nothing else
/// may have changed. From here on the present bytes are the expected ones.
void Link::settle_memory(int end) {
  End& at = ends_[end];
  const End& from = ends_[1 - end];
  if (!at.alive) return;
  struct Patch {
    size_t offset;
    const Bytes* data;
  };
  std::vector<Patch> patches;
  const auto add_own = [&](const RequestPointer& request) {
    if (request->opcode == IBV_WR_RDMA_READ)
      patches.push_back({Layout::slot(request->target_slot), &request->data});
    if (is_atomic(request->opcode))
      patches.push_back({Layout::slot(request->source_slot), &request->result});
  };
  const auto add_peers = [&](const RequestPointer& request) {
    if (is_atomic(request->opcode)) {
      patches.push_back({Layout::cell(request->target_slot), &request->data});
    } else if (is_write(request->opcode)) {
      patches.push_back({Layout::slot(request->target_slot), &request->data});
    } else if (is_message(request->opcode)) {
      for (uint32_t i = 0; i < kReceives; ++i)
        patches.push_back({Layout::receive(i), &request->data});
    }
  };
  std::for_each(at.sends.begin(), at.sends.end(), add_own);
  std::for_each(at.failed.begin(), at.failed.end(), add_own);
  for (const auto* list : {&from.sends, &from.messages, &from.unconfirmed})
    std::for_each(list->begin(), list->end(), add_peers);
  std::for_each(from.failed.begin(), from.failed.end(), add_peers);
  const std::byte* now = memory(at);
  for (size_t i = 0; i < Layout::link_bytes(); ++i) {
    if (now[i] == at.expected[i]) continue;
    const bool allowed = std::any_of(patches.begin(), patches.end(), [&](const Patch& patch) {
      return i >= patch.offset && i - patch.offset < patch.data->size() &&
             (*patch.data)[i - patch.offset] == now[i];
    });
    if (!allowed) {
      wrong("byte " + std::to_string(i) + " of end " + std::to_string(end) +
            " has changed, and nothing that was under way can have done it");
    }
    at.expected[i] = now[i];
  }
}

void Link::verify() const {
  if (state_ != State::kUp) return;
  for (int index = 0; index < 2; ++index) {
    const End& end = ends_[index];
    const End& other = ends_[1 - index];
    Bytes now(memory(end), memory(end) + Layout::link_bytes());
    const auto forgive = [&](size_t offset, size_t size) {
      std::copy_n(end.expected.begin() + static_cast<ptrdiff_t>(offset), size,
                  now.begin() + static_cast<ptrdiff_t>(offset));
    };
    for (size_t i = 0; i < end.slot_busy.size(); ++i)
      if (end.slot_busy[i]) forgive(Layout::slot(i), Layout::kSlotBytes[i]);
    for (size_t i = 0; i < kCells; ++i)
      if (end.cell_busy[i]) forgive(Layout::cell(i), 8);
    if (!other.messages.empty())
      for (uint32_t i = 0; i < kReceives; ++i) forgive(Layout::receive(i), kReceiveBytes);
    const auto difference = std::mismatch(now.begin(), now.end(), end.expected.begin());
    if (difference.first != now.end()) {
      wrong("byte " + std::to_string(difference.first - now.begin()) + " of end " +
            std::to_string(index) + " has changed, and nothing was under way to it");
    }
  }
}

// ---- Requests.

void Link::act(Random& random) {
  const int end = static_cast<int>(pick(random, 2));
  if (chance(random, 2)) post_receive(1 - end);
  if (ends_[end].sends.size() >= kOutstanding) return;
  switch (pick(random, 14)) {
    case 0:
    case 1:
      return post_send(end, IBV_WR_SEND, random);
    case 2:
      return post_send(end, IBV_WR_SEND_WITH_IMM, random);
    case 3:
      return post_send(end, IBV_WR_SEND_WITH_INV, random);
    case 4:
    case 5:
    case 6:
      return post_write(end, IBV_WR_RDMA_WRITE, random);
    case 7:
      return post_write(end, IBV_WR_RDMA_WRITE_WITH_IMM, random);
    case 8:
    case 9:
      return post_read(end, random);
    case 10:
      return post_atomic(end, IBV_WR_ATOMIC_FETCH_AND_ADD, random);
    case 11:
      return post_atomic(end, IBV_WR_ATOMIC_CMP_AND_SWP, random);
    case 12:
      return post_bind(end, random);
    default:
      return post_invalidate(end, random);
  }
}

bool Link::post_receive(int index) {
  End& end = ends_[index];
  Command command{};
  command.kind = Command::kReceive;
  command.link = end.setup.index;
  command.length = kReceiveBytes;
  if (uses_shared_queue(end.setup.index)) {
    SharedBuffers& shared = *end.setup.shared;
    if (shared.free.empty()) return false;
    const uint32_t buffer = shared.free.back();
    shared.free.pop_back();
    command.id = ++ids_;
    command.offset = Layout::shared_receive(buffer);
    shared.posted[command.id] = buffer;
  } else {
    const auto free = std::find(end.receive_busy.begin(), end.receive_busy.end(), false);
    if (free == end.receive_busy.end()) return false;
    *free = true;
    const auto buffer = static_cast<uint32_t>(free - end.receive_busy.begin());
    command.id = ++ids_;
    command.offset = Layout::link(end.setup.index) + Layout::receive(buffer);
    end.receives.push_back({command.id, buffer});
  }
  end.setup.send(command);
  tally_.add("receive posted");
  return true;
}

/// A message without a receive holds its whole stream, so none is sent in that case.
bool Link::has_receive_for(int target) const {
  const End& end = ends_[target];
  if (uses_shared_queue(end.setup.index))
    return end.setup.shared->posted.size() > end.setup.shared->claimed;
  return end.receives.size() > ends_[1 - target].messages.size();
}

bool Link::choose_slots(const End& from, const End& to, Random& random, uint32_t& source,
                        uint32_t& target) const {
  const auto count = static_cast<uint32_t>(Layout::kSlotBytes.size());
  source = static_cast<uint32_t>(pick(random, count));
  target = static_cast<uint32_t>(pick(random, count));
  return !from.slot_busy[source] && !to.slot_busy[target];
}

Bytes Link::fill_source(End& end, uint32_t slot, uint32_t length, Random& random) {
  Bytes data(length);
  const uint64_t start = random();
  for (size_t i = 0; i < length; ++i)
    data[i] = static_cast<std::byte>((start + i * 0x9e3779b97f4a7c15ull) >> 56);
  std::copy(data.begin(), data.end(), slot_memory(end, slot));
  std::copy(data.begin(), data.end(),
            end.expected.begin() + static_cast<ptrdiff_t>(Layout::slot(slot)));
  return data;
}

RequestPointer Link::make(ibv_wr_opcode opcode) {
  auto request = std::make_shared<Request>();
  request->id = ++ids_;
  request->opcode = opcode;
  return request;
}

void Link::issue(int index, const RequestPointer& request, Command command, Random& random) {
  End& end = ends_[index];
  command.kind = Command::kPost;
  command.link = end.setup.index;
  command.id = request->id;
  command.opcode = request->opcode;
  command.imm = request->imm;
  // The last request that fits is signaled, because its completion says when there is room again.
  request->signaled = request->opcode != IBV_WR_RDMA_WRITE || !chance(random, 4) ||
                      end.sends.size() + 1 >= kOutstanding;
  if (request->signaled) command.flags |= IBV_SEND_SIGNALED;
  if (chance(random, 8)) command.flags |= IBV_SEND_FENCE;
  if (chance(random, 2)) command.flags |= IBV_SEND_SOLICITED;
  const bool local = request->opcode == IBV_WR_BIND_MW || request->opcode == IBV_WR_LOCAL_INV;
  if (local) command.flags &= IBV_SEND_SIGNALED | IBV_SEND_FENCE;
  if (request->signaled && !local && command.length != 0) {
    const bool inlines = command.length <= 128 && !is_atomic(request->opcode) &&
                         request->opcode != IBV_WR_RDMA_READ && chance(random, 2);
    if (inlines) command.flags |= IBV_SEND_INLINE;
    command.own_region = !inlines && chance(random, 4);
  }
  end.sends.push_back(request);
  end.setup.send(command);
  tally_.add(name(request->opcode));
  tally_.bytes += request->data.size();
}

void Link::post_send(int index, ibv_wr_opcode opcode, Random& random) {
  End& from = ends_[index];
  End& to = ends_[1 - index];
  // Only once the stream is known to connect two uwarps.
  if (opcode == IBV_WR_SEND_WITH_IMM && !from.proven) return;
  const bool invalidates = opcode == IBV_WR_SEND_WITH_INV;
  if (invalidates && to.window.state != Window::State::kBound) return;
  const auto slot = static_cast<uint32_t>(pick(random, Layout::kSlotBytes.size()));
  if (from.slot_busy[slot] || !has_receive_for(1 - index)) return;
  const auto request = make(opcode);
  const auto length =
      static_cast<uint32_t>(pick(random, std::min(Layout::kSlotBytes[slot], kReceiveBytes) + 1));
  request->source_slot = slot;
  request->data = fill_source(from, slot, length, random);
  request->imm = opcode == IBV_WR_SEND_WITH_IMM ? static_cast<uint32_t>(random()) : 0;
  from.slot_busy[slot] = true;
  Command command{};
  command.offset = Layout::link(from.setup.index) + Layout::slot(slot);
  command.length = length;
  if (invalidates) {
    command.rkey = to.window.key;
    to.window.state = Window::State::kInvalidating;
  }
  from.messages.push_back(request);
  if (uses_shared_queue(to.setup.index)) ++to.setup.shared->claimed;
  issue(index, request, command, random);
}

void Link::post_write(int index, ibv_wr_opcode opcode, Random& random) {
  End& from = ends_[index];
  End& to = ends_[1 - index];
  const bool immediate = opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  if (immediate && !has_receive_for(1 - index)) return;
  uint32_t source, target;
  if (!choose_slots(from, to, random, source, target)) return;
  const bool bound = to.window.state == Window::State::kBound;
  const bool windowed = bound && !immediate && chance(random, 2);
  if (windowed) target = to.window.slot;
  // The slot that a window covers is written only through the window.
  if (to.slot_busy[target] || (bound && !windowed && target == to.window.slot)) return;
  const auto request = make(opcode);
  const auto length = static_cast<uint32_t>(
      pick(random, std::min(Layout::kSlotBytes[source], Layout::kSlotBytes[target]) + 1));
  request->source_slot = source;
  request->target_slot = target;
  request->data = fill_source(from, source, length, random);
  request->imm = immediate ? static_cast<uint32_t>(random()) : 0;
  from.slot_busy[source] = to.slot_busy[target] = true;
  Command command{};
  command.offset = Layout::link(from.setup.index) + Layout::slot(source);
  command.length = length;
  command.rkey = windowed ? to.window.key : to.address.rkey;
  command.remote = to.address.memory + Layout::link(to.setup.index) + Layout::slot(target);
  if (immediate) {
    from.messages.push_back(request);
    if (uses_shared_queue(to.setup.index)) ++to.setup.shared->claimed;
  } else {
    from.unconfirmed.push_back(request);
  }
  if (windowed) tally_.add("write through a window");
  issue(index, request, command, random);
}

void Link::post_read(int index, Random& random) {
  End& from = ends_[index];
  End& to = ends_[1 - index];
  uint32_t source, target;
  if (!choose_slots(to, from, random, source, target)) return;
  const auto request = make(IBV_WR_RDMA_READ);
  const auto length = static_cast<uint32_t>(
      pick(random, std::min(Layout::kSlotBytes[source], Layout::kSlotBytes[target]) + 1));
  request->source_slot = source;
  request->target_slot = target;
  const std::byte* data = slot_memory(to, source);
  request->data.assign(data, data + length);
  to.slot_busy[source] = from.slot_busy[target] = true;
  Command command{};
  command.offset = Layout::link(from.setup.index) + Layout::slot(target);
  command.length = length;
  command.rkey = to.address.rkey;
  command.remote = to.address.memory + Layout::link(to.setup.index) + Layout::slot(source);
  issue(index, request, command, random);
}

void Link::post_atomic(int index, ibv_wr_opcode opcode, Random& random) {
  End& from = ends_[index];
  End& to = ends_[1 - index];
  const auto cell = static_cast<uint32_t>(pick(random, kCells));
  const auto slot = static_cast<uint32_t>(pick(random, Layout::kSlotBytes.size()));
  if (to.cell_busy[cell] || from.slot_busy[slot]) return;
  const auto request = make(opcode);
  request->source_slot = slot;  // the slot for the result
  request->target_slot = cell;
  request->before = load(memory(to) + Layout::cell(cell));
  Command command{};
  if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
    command.compare_add = random();
    request->data = bytes_of(request->before + command.compare_add);
  } else {
    const bool equal = chance(random, 2);
    command.compare_add = equal ? request->before : request->before + 1;
    command.swap = random();
    request->data = bytes_of(equal ? command.swap : request->before);
  }
  request->result = bytes_of(request->before);
  to.cell_busy[cell] = from.slot_busy[slot] = true;
  command.offset = Layout::link(from.setup.index) + Layout::slot(slot);
  command.length = 8;
  command.rkey = to.address.rkey;
  command.remote = to.address.memory + Layout::link(to.setup.index) + Layout::cell(cell);
  issue(index, request, command, random);
}

void Link::post_bind(int index, Random& random) {
  End& end = ends_[index];
  const auto slot = static_cast<uint32_t>(pick(random, Layout::kSlotBytes.size()));
  if (end.window.state != Window::State::kNone || end.slot_busy[slot]) return;
  const auto request = make(IBV_WR_BIND_MW);
  end.window = {Window::State::kBinding, 0, slot};
  Command command{};
  command.length = Layout::kSlotBytes[slot];
  command.remote = end.address.memory + Layout::link(end.setup.index) + Layout::slot(slot);
  issue(index, request, command, random);
}

void Link::post_invalidate(int index, Random& random) {
  End& end = ends_[index];
  if (end.window.state != Window::State::kBound || end.slot_busy[end.window.slot]) return;
  const auto request = make(IBV_WR_LOCAL_INV);
  end.window.state = Window::State::kInvalidating;
  issue(index, request, Command{}, random);
}

// ---- Completions.

void Link::handle(int index, const Report& report) {
  End& end = ends_[index];
  switch (report.kind) {
    case Report::kPrepared:
      if (state_ != State::kPreparing || report.id != epoch_) return;
      end.prepared = true;
      end.address = report.address;
      if (!ends_[0].prepared || !ends_[1].prepared) return;
      for (int i = 0; i < 2; ++i) {
        Command command{};
        command.kind = Command::kConnect;
        command.link = ends_[i].setup.index;
        command.peer = ends_[1 - i].address;
        ends_[i].setup.send(command);
      }
      state_ = State::kUp;
      return;
    case Report::kErrored:
      end.errored = true;
      return advance();
    case Report::kRefused:
      wrong("a post was refused: " + std::string(std::strerror(static_cast<int>(report.status))));
    default:
      break;
  }
  SharedBuffers& shared = *end.setup.shared;
  const auto taken = shared.posted.find(report.id);
  if (taken != shared.posted.end()) {
    const uint32_t buffer = taken->second;
    shared.posted.erase(taken);
    shared.free.push_back(buffer);
    handle_receive(index, report, buffer, true);
  } else if (!end.receives.empty() && end.receives.front().first == report.id) {
    const uint32_t buffer = end.receives.front().second;
    end.receives.pop_front();
    end.receive_busy[buffer] = false;
    handle_receive(index, report, buffer, false);
  } else {
    handle_send(index, report);
  }
  advance();
}

void Link::handle_send(int index, const Report& report) {
  End& end = ends_[index];
  const bool success = report.status == IBV_WC_SUCCESS;
  if (!success && !doomed())
    wrong(std::string("a request failed: ") +
          ibv_wc_status_str(static_cast<ibv_wc_status>(report.status)));
  for (;;) {
    demand(!end.sends.empty(), "a completion came twice, or for nothing");
    const RequestPointer request = std::move(end.sends.front());
    end.sends.pop_front();
    if (request->id != report.id) {
      demand(!request->signaled, "a completion is missing, or out of order");
      succeed(index, request, report);
      continue;
    }
    if (success) {
      demand(!end.failing, "a request succeeded after one that failed");
      end.proven = true;
      succeed(index, request, report);
    } else {
      end.failing = true;
      end.failed.push_back(request);
    }
    return;
  }
}

void Link::succeed(int index, const RequestPointer& request, const Report& report) {
  End& end = ends_[index];
  End& other = ends_[1 - index];
  tally_.add("completions");
  switch (request->opcode) {
    case IBV_WR_BIND_MW:
      end.window.state = Window::State::kBound;
      end.window.key = report.window_key;
      return;
    case IBV_WR_LOCAL_INV:
      end.window.state = Window::State::kNone;
      return;
    case IBV_WR_RDMA_READ:
      place(end, Layout::slot(request->target_slot), request->data, "what was read");
      end.slot_busy[request->target_slot] = other.slot_busy[request->source_slot] = false;
      return confirm(index, request->id);
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
    case IBV_WR_ATOMIC_CMP_AND_SWP:
      place(end, Layout::slot(request->source_slot), request->result, "the result of an atomic");
      if (other.alive && !doomed())
        place(other, Layout::cell(request->target_slot), request->data, "the cell of an atomic");
      end.slot_busy[request->source_slot] = false;
      // The memory of a lost peer is not checked, and that of a stopping one only once it has
      // stopped.
      if (doomed()) return end.failed.push_back(request);
      other.cell_busy[request->target_slot] = false;
      return confirm(index, request->id);
    default:
      end.slot_busy[request->source_slot] = false;
  }
}

void Link::handle_receive(int index, const Report& report, uint32_t buffer, bool shared) {
  End& end = ends_[index];
  End& from = ends_[1 - index];
  std::byte* memory_now = shared ? end.setup.memory + Layout::shared_receive(buffer)
                                 : memory(end) + Layout::receive(buffer);
  Bytes& expected = shared ? end.setup.shared->expected : end.expected;
  const size_t offset = shared ? Layout::shared_receive(buffer) : Layout::receive(buffer);
  if (report.status != IBV_WC_SUCCESS) {
    if (!doomed())
      wrong(std::string("a receive failed: ") +
            ibv_wc_status_str(static_cast<ibv_wc_status>(report.status)));
    if (shared)  // the message may have arrived only in part
      std::copy_n(memory_now, kReceiveBytes, expected.begin() + static_cast<ptrdiff_t>(offset));
    return;
  }
  demand(!from.messages.empty(), "a receive completed, and nothing was sent");
  const RequestPointer request = from.messages.front();
  from.messages.pop_front();
  if (shared) --end.setup.shared->claimed;
  tally_.add("received");
  const bool write = request->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  const bool immediate = write || request->opcode == IBV_WR_SEND_WITH_IMM;
  demand(report.opcode == (write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV), "kind of a receive");
  demand(report.length == request->data.size(), "length of a receive");
  demand(((report.flags & IBV_WC_WITH_IMM) != 0) == immediate, "flags of a receive");
  demand(!immediate || report.imm == request->imm, "immediate data");
  if (request->opcode == IBV_WR_SEND_WITH_INV) {
    demand((report.flags & IBV_WC_WITH_INV) != 0, "a receive says nothing of the invalidation");
    end.window.state = Window::State::kNone;
  }
  confirm(1 - index, request->id);
  if (write) {
    place(end, Layout::slot(request->target_slot), request->data, "a write with immediate");
    end.slot_busy[request->target_slot] = false;
    return;
  }
  std::copy(request->data.begin(), request->data.end(),
            expected.begin() + static_cast<ptrdiff_t>(offset));
  demand(std::memcmp(memory_now, &expected[offset], kReceiveBytes) == 0,
         "the contents of a receive");
}

void Link::confirm(int index, uint64_t before_id) {
  End& from = ends_[index];
  End& to = ends_[1 - index];
  while (!from.unconfirmed.empty() && from.unconfirmed.front()->id < before_id) {
    const RequestPointer request = std::move(from.unconfirmed.front());
    from.unconfirmed.pop_front();
    if (!to.alive) continue;
    place(to, Layout::slot(request->target_slot), request->data, "a write");
    to.slot_busy[request->target_slot] = false;
  }
}

void Link::place(End& at, size_t offset, const Bytes& data, const char* what) {
  const bool same = data.empty() || std::memcmp(memory(at) + offset, data.data(), data.size()) == 0;
  if (!same) wrong(std::string(what) + " has wrong bytes");
  std::copy(data.begin(), data.end(), at.expected.begin() + static_cast<ptrdiff_t>(offset));
}

}  // namespace soak
