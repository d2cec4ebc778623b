// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Handing three descriptors from one process to another: the memory, and a bell for each.
#include "connect/local_door.h"

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>
#include <optional>
#include <utility>

#include "os/engine_fds.h"
#include "os/raw_call.h"
#include "protocol/wire/carrier_mark.h"

namespace uwarp {
namespace {

constexpr int kHanded = 3;  // memory, the bell of who brings it, the bell of who takes it
constexpr int kUnixFlags = SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC;

uint64_t draw_48_bits() {
  uint64_t value = 0;
  while (raw_call(SYS_getrandom, &value, sizeof value, 0) != sizeof value) {
  }
  return value & CarrierMark::kValueMask;
}

/// What a raw system call has made.
Result<EngineFd> made(ssize_t fd) {
  if (fd < 0) return Error{static_cast<int>(-fd)};
  return EngineFd(static_cast<int>(fd));
}

Result<EngineFd> open_socket() { return made(raw_call(SYS_socket, AF_UNIX, kUnixFlags, 0)); }

Result<EngineFd> open_bell() { return made(raw_call(SYS_eventfd2, 0, EFD_NONBLOCK | EFD_CLOEXEC)); }

struct HandedFds {
  EngineFd memory, bringer_bell, taker_bell;
};

socklen_t door_address(uint64_t name, sockaddr_un& address) {
  address = {};
  address.sun_family = AF_UNIX;
  const int size = std::snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "uwarp-%012llx",
                                 static_cast<unsigned long long>(name));
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + size);
}

/// The process at the other end, if it is of our user. Its number is 0 in another pid namespace.
std::optional<pid_t> peer_of(int fd) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (raw_status(SYS_getsockopt, fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0)
    return std::nullopt;
  return peer.uid == geteuid() ? std::optional(peer.pid) : std::nullopt;
}

union ControlRoom {
  cmsghdr header;
  char bytes[CMSG_SPACE(kHanded * sizeof(int))];
};

/// What goes through the door: a number, and descriptors beside it.
msghdr message_of(iovec& body, ControlRoom& control) {
  msghdr message{};
  message.msg_iov = &body;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof control.bytes;
  return message;
}

/// 0 or an errno.
int send_fds(int to, uint64_t number, const int (&fds)[kHanded]) {
  ControlRoom control{};
  iovec body = {&number, sizeof number};
  const msghdr message = message_of(body, control);
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof fds);
  std::memcpy(CMSG_DATA(header), fds, sizeof fds);
  return raw_status(SYS_sendmsg, to, &message, MSG_NOSIGNAL);  // whole, or not at all
}

/// A negative errno; 0: nothing of use; 1.
int receive_fds(int from, uint64_t& number, HandedFds& handed) {
  ControlRoom control{};
  iovec body = {&number, sizeof number};
  msghdr message = message_of(body, control);
  const ssize_t got = raw_call(SYS_recvmsg, from, &message, MSG_CMSG_CLOEXEC);
  if (got < 0) return static_cast<int>(got);
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS) return 0;
  const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
  int fds[kHanded] = {-1, -1, -1};
  std::memcpy(fds, CMSG_DATA(header), std::min<size_t>(count, kHanded) * sizeof(int));
  handed = {EngineFd(fds[0]), EngineFd(fds[1]), EngineFd(fds[2])};
  return got == sizeof number && count == kHanded && (message.msg_flags & MSG_CTRUNC) == 0 ? 1 : 0;
}

}  // namespace

LocalDoor::~LocalDoor() {
  const std::lock_guard guard(mutex_);
  for (const Visitor& visitor : visitors_) progress_.remove(visitor.ticket);
  progress_.remove(ticket_);
}

int LocalDoor::open_locked() {
  if (socket_) return 0;
  visitors_.reserve(kMostVisitors);
  auto socket = open_socket();
  if (!socket) return socket.error();
  sockaddr_un address;
  const uint64_t name = draw_48_bits();
  const socklen_t size = door_address(name, address);
  int error = raw_status(SYS_bind, socket->get(), &address, size);
  if (error == 0) error = raw_status(SYS_listen, socket->get(), SOMAXCONN);
  if (error != 0) return error;
  const auto ticket = progress_.add(*this, socket->get());
  if (!ticket) return ticket.error();
  socket_ = std::move(*socket);
  name_ = name;
  ticket_ = *ticket;
  return 0;
}

Result<LocalDoor::Ticket> LocalDoor::expect(std::weak_ptr<CarrierOwner> owner) {
  const std::lock_guard guard(mutex_);
  if (int error = open_locked()) return Error{error};
  const Ticket ticket{name_, draw_48_bits()};
  try {
    expected_[ticket.number] = std::move(owner);
  } catch (const std::bad_alloc&) {
    close_unless_needed_locked();
    return Error{ENOMEM};
  }
  return ticket;
}

void LocalDoor::forget(uint64_t number) {
  const std::lock_guard guard(mutex_);
  expected_.erase(number);
  close_unless_needed_locked();
}

void LocalDoor::close_unless_needed_locked() {
  if (!expected_.empty() || !visitors_.empty() || !socket_) return;
  progress_.remove(std::exchange(ticket_, 0));
  socket_ = EngineFd();
}

Result<LocalDoor::Delivery> LocalDoor::bring(const Ticket& ticket) {
  auto socket = open_socket();
  if (!socket) return Error{socket.error()};
  sockaddr_un address;
  const socklen_t size = door_address(ticket.door, address);
  if (int error = raw_status(SYS_connect, socket->get(), &address, size)) return Error{error};
  const auto pid = peer_of(socket->get());
  if (!pid) return Error{EPERM};
  auto memory = SharedMemory::create(RingCarrier::kSharedBytes);
  if (!memory) return Error{memory.error()};
  auto own_bell = open_bell();
  if (!own_bell) return Error{own_bell.error()};
  auto bell = open_bell();
  if (!bell) return Error{bell.error()};
  auto carrier = std::make_unique<RingCarrier>(
      std::move(*memory), true,
      RingCarrier::Peer{.own_bell = std::move(*own_bell), .bell = std::move(*bell), .pid = *pid});
  return Delivery{std::move(*socket), ticket.number, std::move(carrier)};
}

int LocalDoor::hand_over(const Delivery& delivery, RingCarrier& joined) {
  const int fds[kHanded] = {joined.memory_fd(), joined.own_bell(), joined.bell()};
  const int error = send_fds(delivery.door.get(), delivery.number, fds);
  joined.close_memory_fd();
  return error;
}

// --- Visitors

// False: there is none.
bool LocalDoor::accept_one() {
  EngineFd fd(static_cast<int>(
      raw_call(SYS_accept4, socket_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)));
  if (!fd) return false;
  const auto ticket = progress_.add(*this, fd.get());
  if (!ticket) return true;
  visitors_.push_back({std::move(fd), *ticket});  // room was reserved
  return true;
}

// True: nothing more is to be expected of it. Throws std::bad_alloc; what it brought is lost then.
bool LocalDoor::serve(const Visitor& visitor) {
  HandedFds handed;
  uint64_t number = 0;
  const int got = receive_fds(visitor.fd.get(), number, handed);
  if (got < 0) return got != -EAGAIN;
  std::shared_ptr<CarrierOwner> owner;
  if (const auto found = expected_.find(number); got == 1 && found != expected_.end()) {
    owner = found->second.lock();
    expected_.erase(found);
  }
  const auto pid = peer_of(visitor.fd.get());
  if (owner == nullptr || !pid) return true;
  auto memory = SharedMemory::adopt(std::move(handed.memory), RingCarrier::kSharedBytes);
  if (!memory) return true;
  auto carrier =
      std::make_unique<RingCarrier>(std::move(*memory), false,
                                    RingCarrier::Peer{.own_bell = std::move(handed.taker_bell),
                                                      .bell = std::move(handed.bringer_bell),
                                                      .pid = *pid});
  carrier->close_memory_fd();
  arrived_.emplace_back(std::move(owner), std::move(carrier));
  return true;
}

void LocalDoor::dismiss_locked(size_t index) {
  progress_.remove(visitors_[index].ticket);
  visitors_.erase(visitors_.begin() + static_cast<ptrdiff_t>(index));
}

void LocalDoor::serve_visitors_locked() {
  for (size_t i = 0; i < visitors_.size();) {
    bool done = true;
    try {
      done = serve(visitors_[i]);
    } catch (const std::bad_alloc&) {  // TCP goes on
    }
    done ? dismiss_locked(i) : static_cast<void>(++i);
  }
}

bool LocalDoor::ready(uint32_t) {
  std::vector<std::pair<std::shared_ptr<CarrierOwner>, std::unique_ptr<RingCarrier>>> arrived;
  {
    const std::lock_guard guard(mutex_);
    bool more;
    do {
      more = static_cast<bool>(socket_);
      while (more && visitors_.size() != kMostVisitors) more = accept_one();
      serve_visitors_locked();
      // A visitor that sends nothing gives its place to the next one.
      if (visitors_.size() == kMostVisitors) dismiss_locked(0);
    } while (more);
    close_unless_needed_locked();
    arrived.swap(arrived_);
  }
  for (auto& [owner, carrier] : arrived) owner->carrier_arrived(std::move(carrier));
  return false;
}

}  // namespace uwarp
