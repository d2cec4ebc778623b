// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "net/neighbour.h"

#include <linux/neighbour.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "net/datagram_socket.h"
#include "net/net_device.h"
#include "os/clock.h"
#include "os/engine_fds.h"

namespace uwarp {

namespace {

using Bytes = std::span<const std::byte>;

constexpr uint16_t kValidStates =
    NUD_PERMANENT | NUD_NOARP | NUD_REACHABLE | NUD_PROBE | NUD_STALE | NUD_DELAY;

size_t aligned(size_t length) { return NLMSG_ALIGN(length); }

/// Takes a struct and its padding; false when there are not enough bytes.
template <typename T>
bool take(Bytes& bytes, T& out) {
  if (bytes.size() < sizeof out) return false;
  std::memcpy(&out, bytes.data(), sizeof out);
  bytes = bytes.subspan(std::min(aligned(sizeof out), bytes.size()));
  return true;
}

/// What is `length` bytes long, its head of `head` bytes included, as the rest of it.
std::optional<Bytes> take_body(Bytes& bytes, size_t head, size_t length) {
  if (length < head || length > bytes.size()) return std::nullopt;
  const Bytes body = bytes.first(length).subspan(std::min(aligned(head), length));
  bytes = bytes.subspan(std::min(aligned(length), bytes.size()));
  return body;
}

/// A record that says in its head how long it is, the head included: fills in the head and returns
/// the rest.
template <typename Head, typename Length>
std::optional<Bytes> take_record(Bytes& bytes, Head& head, Length Head::*length) {
  if (bytes.size() < sizeof head) return std::nullopt;
  std::memcpy(&head, bytes.data(), sizeof head);
  return take_body(bytes, sizeof head, head.*length);
}

struct Message {
  uint16_t type;
  Bytes body;
};

std::optional<Message> take_message(Bytes& bytes) {
  nlmsghdr head;
  const auto body = take_record(bytes, head, &nlmsghdr::nlmsg_len);
  if (!body) return std::nullopt;
  return Message{head.nlmsg_type, *body};
}

struct Attribute {
  uint16_t type;
  Bytes value;
};

std::optional<Attribute> take_attribute(Bytes& bytes) {
  rtattr head;
  const auto value = take_record(bytes, head, &rtattr::rta_len);
  if (!value) return std::nullopt;
  return Attribute{static_cast<uint16_t>(head.rta_type & NLA_TYPE_MASK), *value};
}

struct RawAddress {
  int family;
  Bytes bytes;
};

/// `ifindex` is the zone of a link-local address.
std::optional<IpAddress> address_of(const RawAddress& raw, int ifindex) {
  if (raw.family == AF_INET && raw.bytes.size() == sizeof(in_addr)) {
    in_addr v4;
    std::memcpy(&v4, raw.bytes.data(), sizeof v4);
    return IpAddress::from_v4(v4);
  }
  if (raw.family == AF_INET6 && raw.bytes.size() == sizeof(in6_addr)) {
    in6_addr v6;
    std::memcpy(&v6, raw.bytes.data(), sizeof v6);
    return IpAddress::from_v6(v6, static_cast<uint32_t>(ifindex));
  }
  return std::nullopt;
}

std::optional<NextHop> hop_of(const RawAddress& raw, int ifindex) {
  const auto address = address_of(raw, ifindex);
  if (!address || ifindex == 0) return std::nullopt;
  return NextHop{ifindex, *address};
}

class Question {
 public:
  template <typename Body>
  Question(uint16_t type, const Body& body) : bytes_(aligned(sizeof(nlmsghdr))) {
    head_.nlmsg_type = type;
    head_.nlmsg_flags = NLM_F_REQUEST;
    append(&body, sizeof body);
  }
  void add(uint16_t type, const void* value, size_t length) {
    const rtattr head{static_cast<uint16_t>(sizeof(rtattr) + length), type};
    append(&head, sizeof head);
    append(value, length);
  }
  void add(uint16_t type, const IpAddress& address) {
    if (address.is_v4()) {
      const in_addr v4 = address.v4();
      add(type, &v4, sizeof v4);
    } else {
      const in6_addr v6 = address.v6();
      add(type, &v6, sizeof v6);
    }
  }
  std::vector<std::byte> bytes() {
    head_.nlmsg_len = static_cast<uint32_t>(bytes_.size());
    std::memcpy(bytes_.data(), &head_, sizeof head_);
    return std::move(bytes_);
  }

 private:
  void append(const void* from, size_t length) {
    const auto* first = static_cast<const std::byte*>(from);
    bytes_.insert(bytes_.end(), first, first + length);
    bytes_.resize(aligned(bytes_.size()));
  }

  nlmsghdr head_{};
  std::vector<std::byte> bytes_;
};

uint8_t family_of(const IpAddress& address) { return address.is_v4() ? AF_INET : AF_INET6; }

/// Of an NLMSG_ERROR, as a positive errno.
int error_of(Bytes body) {
  int32_t error = 0;
  return take(body, error) ? -error : EBADMSG;
}

/// Of RTM_NEWNEIGH and RTM_DELNEIGH.
std::optional<NextHop> hop_of_entry(Bytes body) {
  ndmsg entry;
  if (!take(body, entry)) return std::nullopt;
  while (const auto attribute = take_attribute(body)) {
    if (attribute->type == NDA_DST)
      return hop_of({entry.ndm_family, attribute->value}, entry.ndm_ifindex);
  }
  return std::nullopt;
}

}  // namespace

std::vector<std::byte> route_question(const IpAddress& destination, const IpAddress& source) {
  rtmsg body{};
  body.rtm_family = family_of(destination);
  body.rtm_dst_len = body.rtm_src_len = destination.is_v4() ? 32 : 128;
  Question question(RTM_GETROUTE, body);
  question.add(RTA_DST, destination);
  question.add(RTA_SRC, source);
  if (const uint32_t zone = destination.scope_id(); zone != 0)
    question.add(RTA_OIF, &zone, sizeof zone);
  return question.bytes();
}

std::optional<NextHop> next_hop_of(Bytes answer, const IpAddress& destination) {
  const auto message = take_message(answer);
  rtmsg route;
  if (!message || message->type != RTM_NEWROUTE) return std::nullopt;
  Bytes rest = message->body;
  if (!take(rest, route) || route.rtm_type != RTN_UNICAST) return std::nullopt;
  const auto& own = destination.bytes();
  const Bytes all = std::as_bytes(std::span(own));
  RawAddress hop{route.rtm_family, destination.is_v4() ? all.last(sizeof(in_addr)) : all};
  uint32_t ifindex = 0;
  while (const auto attribute = take_attribute(rest)) {
    Bytes value = attribute->value;
    if (attribute->type == RTA_OIF && !take(value, ifindex)) return std::nullopt;
    if (attribute->type == RTA_GATEWAY) hop.bytes = value;
    // A gateway of the other family.
    if (attribute->type == RTA_VIA) {
      uint16_t family;
      if (value.size() < sizeof family) return std::nullopt;
      std::memcpy(&family, value.data(), sizeof family);
      hop = {family, value.subspan(sizeof family)};
    }
  }
  return hop_of(hop, static_cast<int>(ifindex));
}

std::vector<std::byte> neighbour_question(const NextHop& hop) {
  ndmsg body{};
  body.ndm_family = family_of(hop.address);
  body.ndm_ifindex = hop.ifindex;
  Question question(RTM_GETNEIGH, body);
  question.add(NDA_DST, hop.address);
  return question.bytes();
}

NeighbourState neighbour_state_of(Bytes answer) {
  const auto message = take_message(answer);
  if (!message) return NeighbourState::kUntold;
  if (message->type == NLMSG_ERROR)
    return error_of(message->body) == ENOENT ? NeighbourState::kAbsent : NeighbourState::kUntold;
  ndmsg entry;
  Bytes body = message->body;
  if (message->type != RTM_NEWNEIGH || !take(body, entry)) return NeighbourState::kUntold;
  if (entry.ndm_state & kValidStates) return NeighbourState::kPresent;
  return entry.ndm_state & NUD_FAILED ? NeighbourState::kFailed : NeighbourState::kResolving;
}

std::vector<NextHop> changed_neighbours(Bytes notifications) {
  std::vector<NextHop> changed;
  while (const auto message = take_message(notifications)) {
    if (message->type != RTM_NEWNEIGH && message->type != RTM_DELNEIGH) continue;
    if (const auto hop = hop_of_entry(message->body)) changed.push_back(*hop);
  }
  return changed;
}

std::optional<int> outcome_of_waiting(NeighbourState state, bool time_is_over) {
  switch (state) {
    case NeighbourState::kPresent:
    case NeighbourState::kUntold:
      return 0;
    case NeighbourState::kFailed:
      return -EHOSTUNREACH;
    default:
      return time_is_over ? std::optional(-ETIMEDOUT) : std::nullopt;
  }
}

namespace {

/// After a call that found no memory.
constexpr uint64_t kAgainNs = 10 * kNsPerMs;

/// Reads all that has come. Nullopt if some notifications were lost.
std::optional<std::vector<NextHop>> read_changes(int fd) {
  std::array<std::byte, 8192> buffer;
  std::vector<NextHop> changed;
  bool lost = false;
  for (;;) {
    const long got =
        syscall(SYS_recvfrom, fd, buffer.data(), buffer.size(), MSG_DONTWAIT, nullptr, nullptr);
    if (got > 0) {
      const auto more = changed_neighbours(std::span(buffer).first(static_cast<size_t>(got)));
      changed.insert(changed.end(), more.begin(), more.end());
    } else if (got < 0 && errno == ENOBUFS) {
      lost = true;
    } else if (got == 0 || errno != EINTR) {
      break;
    }
  }
  if (lost) return std::nullopt;
  return changed;
}

}  // namespace

bool NeighbourWatch::wait(const IpAddress& destination, const Route& route, uint64_t deadline_ns,
                          std::weak_ptr<NeighbourListener> listener) {
  const auto hop = neighbour_towards(destination, route);
  if (!hop) return false;
  const NeighbourState before = neighbour_state(*hop);
  if (before == NeighbourState::kPresent || before == NeighbourState::kUntold) return false;
  uint64_t number;
  {
    const std::lock_guard guard(mutex_);
    number = ++last_number_;
    if (!add_locked({number, *hop, deadline_ns, std::move(listener)})) return false;
  }
  const bool asked = ask_for_neighbour(destination, route);
  const NeighbourState now = asked ? neighbour_state(*hop) : NeighbourState::kUntold;
  // Asked for and not in the table: this kind of device has no neighbours.
  const bool waits = now == NeighbourState::kResolving || now == NeighbourState::kFailed;
  if (waits) (void)progress_.start_helper();  // without one, threads that poll serve it
  return waits || !take_back(number);
}

bool NeighbourWatch::add_locked(Waiting waiting) {
  if (fd_ < 0) {
    const int fd = open_neighbour_changes();
    if (fd < 0) return false;
    const auto ticket = progress_.add(*this, fd, EPOLLIN | EPOLLET);
    if (!ticket) {
      close_engine_fd(fd);
      return false;
    }
    fd_ = fd;
    ticket_ = *ticket;
  }
  waiting_.push_back(std::move(waiting));
  waiting_changed_locked();
  return true;
}

bool NeighbourWatch::take_back(uint64_t number) {
  const std::lock_guard guard(mutex_);
  const size_t taken =
      std::erase_if(waiting_, [&](const Waiting& waiting) { return waiting.number == number; });
  if (taken != 0) waiting_changed_locked();
  return taken != 0;
}

void NeighbourWatch::waiting_changed_locked() {
  uint64_t first_ns = 0;
  for (const Waiting& waiting : waiting_)
    first_ns = first_ns == 0 ? waiting.deadline_ns : std::min(first_ns, waiting.deadline_ns);
  progress_.set_deadline(*this, first_ns);
  if (!waiting_.empty() || fd_ < 0) return;
  progress_.remove(std::exchange(ticket_, 0));
  close_engine_fd(std::exchange(fd_, -1));
}

bool NeighbourWatch::ready(uint32_t) {
  std::vector<Told> told;
  {
    const std::lock_guard guard(mutex_);
    if (fd_ < 0) return false;
    const auto changed = read_changes(fd_);
    told = settle_locked(changed ? &*changed : nullptr);
  }
  for (const auto& [listener, status] : told) listener->neighbour_known(status);
  return false;
}

void NeighbourWatch::deadline_passed() {
  std::vector<Told> told;
  {
    const std::lock_guard guard(mutex_);
    told = settle_locked(nullptr);
  }
  for (const auto& [listener, status] : told) listener->neighbour_known(status);
}

/// What was notified is not notified again: all are looked at.
void NeighbourWatch::out_of_memory() { progress_.set_deadline(*this, now_ns() + kAgainNs); }

std::vector<NeighbourWatch::Told> NeighbourWatch::settle_locked(
    const std::vector<NextHop>* changed) {
  std::vector<Told> told;
  std::vector<uint64_t> settled;  // in order, as waiting_ is
  const uint64_t now = now_ns();
  for (const Waiting& waiting : waiting_) {
    const bool time_is_over = now >= waiting.deadline_ns;
    const bool concerned =
        changed == nullptr || time_is_over ||
        std::find(changed->begin(), changed->end(), waiting.hop) != changed->end();
    if (!concerned) continue;
    // A notification may be older than the question: what counts is the table.
    const auto status = outcome_of_waiting(neighbour_state(waiting.hop), time_is_over);
    if (!status) continue;
    settled.push_back(waiting.number);
    if (auto listener = waiting.listener.lock()) told.push_back({std::move(listener), *status});
  }
  // From here on nothing fails.
  std::erase_if(waiting_, [&](const Waiting& waiting) {
    return std::binary_search(settled.begin(), settled.end(), waiting.number);
  });
  waiting_changed_locked();
  return told;
}

namespace {

/// The kernel answers within the call that asks. Empty when it does not.
std::vector<std::byte> answer_to(const std::vector<std::byte>& question) {
  constexpr size_t kMostBytes = 4096;  // a route or an entry has a few hundred
  const int fd = open_netlink_socket(0);
  if (fd < 0) return {};
  std::vector<std::byte> answer(kMostBytes);
  long got = syscall(SYS_sendto, fd, question.data(), question.size(), 0, nullptr, 0);
  if (got >= 0)
    got = syscall(SYS_recvfrom, fd, answer.data(), answer.size(), MSG_DONTWAIT, nullptr, nullptr);
  syscall(SYS_close, fd);
  answer.resize(got > 0 ? static_cast<size_t>(got) : 0);
  return answer;
}

}  // namespace

std::optional<NextHop> neighbour_towards(const IpAddress& destination, const Route& route) {
  const auto devices = net_devices();
  if (route.device->loopback || devices->by_address(destination) != nullptr) return std::nullopt;
  const auto hop = next_hop_of(answer_to(route_question(destination, route.source)), destination);
  if (!hop) return std::nullopt;
  const auto device = devices->by_ifindex(hop->ifindex);
  return device != nullptr && !device->has_neighbours ? std::nullopt : hop;
}

NeighbourState neighbour_state(const NextHop& hop) {
  return neighbour_state_of(answer_to(neighbour_question(hop)));
}

bool ask_for_neighbour(const IpAddress& destination, const Route& route) {
  const DatagramSocket socket(destination.is_v4() ? AF_INET : AF_INET6);
  return socket.is_open() && socket.bind(route.source) && socket.connect(destination) &&
         socket.send_to_neighbour(destination.is_v4());
}

int open_neighbour_changes() {
  const int fd = open_netlink_socket(1u << (RTNLGRP_NEIGH - 1));
  return fd < 0 ? fd : adopt_engine_fd(fd);
}

}  // namespace uwarp
