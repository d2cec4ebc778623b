// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "net/neighbour.h"

#include <linux/neighbour.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <netlink/attr.h>
#include <netlink/msg.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <initializer_list>
#include <new>

#include "base/mutex.h"
#include "net/datagram_socket.h"
#include "net/net_device.h"
#include "os/clock.h"
#include "os/engine_fds.h"

namespace uwarp {

namespace {

using Bytes = std::span<const std::byte>;

constexpr uint16_t kValidStates =
    NUD_PERMANENT | NUD_NOARP | NUD_REACHABLE | NUD_PROBE | NUD_STALE | NUD_DELAY;

const nlmsghdr* first_message(Bytes bytes) {
  const auto* head = reinterpret_cast<const nlmsghdr*>(bytes.data());
  return nlmsg_ok(head, static_cast<int>(bytes.size())) ? head : nullptr;
}

/// Null if the message is of another type, or too short.
template <typename Body>
const Body* body_of(const nlmsghdr* message, std::initializer_list<uint16_t> types) {
  if (message == nullptr || !nlmsg_valid_hdr(message, sizeof(Body)) ||
      std::find(types.begin(), types.end(), message->nlmsg_type) == types.end())
    return nullptr;
  return static_cast<const Body*>(nlmsg_data(message));
}

template <typename Body>
const nlattr* attribute(const nlmsghdr* message, int type) {
  constexpr int kHead = sizeof(Body);
  return nla_find(nlmsg_attrdata(message, kHead), nlmsg_attrlen(message, kHead), type);
}

/// A hop by its address, which fills `bytes`. `ifindex` is the zone of a link-local address.
std::optional<NextHop> hop_of(int family, Bytes bytes, int ifindex) {
  if (ifindex == 0) return std::nullopt;
  if (family == AF_INET && bytes.size() == sizeof(in_addr)) {
    in_addr v4;
    std::memcpy(&v4, bytes.data(), sizeof v4);
    return NextHop{ifindex, IpAddress::from_v4(v4)};
  }
  if (family == AF_INET6 && bytes.size() == sizeof(in6_addr)) {
    in6_addr v6;
    std::memcpy(&v6, bytes.data(), sizeof v6);
    return NextHop{ifindex, IpAddress::from_v6(v6, static_cast<uint32_t>(ifindex))};
  }
  return std::nullopt;
}

Bytes value_of(const nlattr* attribute) {
  return {static_cast<const std::byte*>(nla_data(attribute)),
          static_cast<size_t>(nla_len(attribute))};
}

class Question {
 public:
  template <typename Body>
  Question(int type, Body body) : message_(nlmsg_alloc_simple(type, NLM_F_REQUEST)) {
    if (message_ == nullptr) throw std::bad_alloc();
    check(nlmsg_append(message_.get(), &body, sizeof body, NLMSG_ALIGNTO));
  }
  void add(int type, uint32_t value) { check(nla_put_u32(message_.get(), type, value)); }
  void add(int type, const IpAddress& address) {
    const in_addr v4 = address.v4();
    const in6_addr v6 = address.v6();
    check(address.is_v4() ? nla_put(message_.get(), type, sizeof v4, &v4)
                          : nla_put(message_.get(), type, sizeof v6, &v6));
  }
  std::vector<std::byte> bytes() const {
    const nlmsghdr* head = nlmsg_hdr(message_.get());
    const auto* first = reinterpret_cast<const std::byte*>(head);
    return {first, first + head->nlmsg_len};
  }

 private:
  struct Free {
    void operator()(nl_msg* message) const { nlmsg_free(message); }
  };
  static void check(int status) {
    if (status < 0) throw std::bad_alloc();
  }

  std::unique_ptr<nl_msg, Free> message_;
};

uint8_t family_of(const IpAddress& address) { return address.is_v4() ? AF_INET : AF_INET6; }

}  // namespace

std::vector<std::byte> route_question(const IpAddress& destination, const IpAddress& source) {
  rtmsg body{};
  body.rtm_family = family_of(destination);
  body.rtm_dst_len = body.rtm_src_len = destination.is_v4() ? 32 : 128;
  Question question(RTM_GETROUTE, body);
  question.add(RTA_DST, destination);
  question.add(RTA_SRC, source);
  if (const uint32_t zone = destination.scope_id(); zone != 0) question.add(RTA_OIF, zone);
  return question.bytes();
}

std::optional<NextHop> next_hop_of(Bytes answer, const IpAddress& destination) {
  const nlmsghdr* message = first_message(answer);
  const auto* route = body_of<rtmsg>(message, {RTM_NEWROUTE});
  if (route == nullptr || route->rtm_type != RTN_UNICAST) return std::nullopt;
  const nlattr* out = attribute<rtmsg>(message, RTA_OIF);
  if (out == nullptr || nla_len(out) < static_cast<int>(sizeof(uint32_t))) return std::nullopt;
  const int ifindex = static_cast<int>(nla_get_u32(out));
  if (const nlattr* gateway = attribute<rtmsg>(message, RTA_GATEWAY))
    return hop_of(route->rtm_family, value_of(gateway), ifindex);
  // A gateway of the other family: which one, and its address.
  if (const nlattr* via = attribute<rtmsg>(message, RTA_VIA)) {
    const Bytes value = value_of(via);
    uint16_t family;
    if (value.size() < sizeof family) return std::nullopt;
    std::memcpy(&family, value.data(), sizeof family);
    return hop_of(family, value.subspan(sizeof family), ifindex);
  }
  const Bytes own = std::as_bytes(std::span(destination.bytes()));
  return hop_of(route->rtm_family, destination.is_v4() ? own.last(sizeof(in_addr)) : own, ifindex);
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
  const nlmsghdr* message = first_message(answer);
  if (const auto* error = body_of<nlmsgerr>(message, {NLMSG_ERROR}))
    return error->error == -ENOENT ? NeighbourState::kAbsent : NeighbourState::kUnknown;
  const auto* entry = body_of<ndmsg>(message, {RTM_NEWNEIGH});
  if (entry == nullptr) return NeighbourState::kUnknown;
  if (entry->ndm_state & kValidStates) return NeighbourState::kPresent;
  return entry->ndm_state & NUD_FAILED ? NeighbourState::kFailed : NeighbourState::kResolving;
}

std::vector<NextHop> changed_neighbours(Bytes notifications) {
  std::vector<NextHop> changed;
  auto left = static_cast<int>(notifications.size());
  // NOLINTNEXTLINE: libnl steps over a message by a pointer to what may be changed.
  for (auto* message = const_cast<nlmsghdr*>(first_message(notifications));
       message != nullptr && nlmsg_ok(message, left); message = nlmsg_next(message, &left)) {
    const auto* entry = body_of<ndmsg>(message, {RTM_NEWNEIGH, RTM_DELNEIGH});
    const nlattr* to = entry != nullptr ? attribute<ndmsg>(message, NDA_DST) : nullptr;
    if (to == nullptr) continue;
    if (const auto hop = hop_of(entry->ndm_family, value_of(to), entry->ndm_ifindex))
      changed.push_back(*hop);
  }
  return changed;
}

std::optional<int> outcome_of_waiting(NeighbourState state, bool time_is_over) {
  if (state == NeighbourState::kPresent || state == NeighbourState::kUnknown) return 0;
  if (state == NeighbourState::kFailed) return -EHOSTUNREACH;
  return time_is_over ? std::optional(-ETIMEDOUT) : std::nullopt;
}

namespace {

/// After a call that found no memory.
constexpr uint64_t kAgainNs = 10 * kNsPerMs;

/// Reads all that has come. Nullopt if some notifications were lost.
std::optional<std::vector<NextHop>> read_changes(int fd) {
  alignas(nlmsghdr) std::array<std::byte, 8192> buffer;
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
  if (before == NeighbourState::kPresent || before == NeighbourState::kUnknown) return false;
  uint64_t number;
  {
    const Lock guard(mutex_);
    number = ++last_number_;
    if (!add_locked({number, *hop, deadline_ns, std::move(listener)})) return false;
  }
  const bool asked = ask_for_neighbour(destination, route);
  const NeighbourState now = asked ? neighbour_state(*hop) : NeighbourState::kUnknown;
  // Asked for and not in the table: this kind of device has no neighbours.
  if (now == NeighbourState::kResolving || now == NeighbourState::kFailed) {
    (void)progress_.start_helper();  // without one, threads that poll serve it
    return true;
  }
  const Lock guard(mutex_);
  const size_t taken =
      std::erase_if(waiting_, [&](const Waiting& waiting) { return waiting.number == number; });
  if (taken != 0) waiting_changed_locked();
  return taken == 0;  // its listener has been told, or is about to be
}

bool NeighbourWatch::add_locked(Waiting waiting) {
  if (fd_ < 0) {
    const int fd = open_neighbour_changes();
    if (fd < 0) return false;
    const auto registration = progress_.add(*this, fd, EPOLLIN | EPOLLET);
    if (!registration) {
      close_engine_fd(fd);
      return false;
    }
    fd_ = fd;
    registration_ = *registration;
  }
  waiting_.push_back(std::move(waiting));
  waiting_changed_locked();
  return true;
}

void NeighbourWatch::waiting_changed_locked() {
  uint64_t first_ns = 0;
  for (const Waiting& waiting : waiting_)
    first_ns = first_ns == 0 ? waiting.deadline_ns : std::min(first_ns, waiting.deadline_ns);
  progress_.set_deadline(*this, first_ns);
  if (!waiting_.empty() || fd_ < 0) return;
  progress_.remove(std::exchange(registration_, 0));
  close_engine_fd(std::exchange(fd_, -1));
}

bool NeighbourWatch::ready(uint32_t) {
  std::vector<Notice> notices;
  {
    const Lock guard(mutex_);
    if (fd_ < 0) return false;
    const auto changed = read_changes(fd_);
    notices = settle_locked(changed ? &*changed : nullptr);
  }
  for (const auto& [listener, status] : notices) listener->neighbour_known(status);
  return false;
}

void NeighbourWatch::deadline_passed() {
  std::vector<Notice> notices;
  {
    const Lock guard(mutex_);
    notices = settle_locked(nullptr);
  }
  for (const auto& [listener, status] : notices) listener->neighbour_known(status);
}

/// What was notified is not notified again: all are looked at.
void NeighbourWatch::out_of_memory() { progress_.set_deadline(*this, now_ns() + kAgainNs); }

std::vector<NeighbourWatch::Notice> NeighbourWatch::settle_locked(
    const std::vector<NextHop>* changed) {
  std::vector<Notice> notices;
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
    if (auto listener = waiting.listener.lock()) notices.push_back({std::move(listener), *status});
  }
  // From here on nothing fails.
  std::erase_if(waiting_, [&](const Waiting& waiting) {
    return std::binary_search(settled.begin(), settled.end(), waiting.number);
  });
  waiting_changed_locked();
  return notices;
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
  return adopt_engine_fd(open_netlink_socket(1u << (RTNLGRP_NEIGH - 1)));
}

}  // namespace uwarp
