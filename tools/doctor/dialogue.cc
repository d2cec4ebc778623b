// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "dialogue.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <future>
#include <memory>
#include <thread>
#include <utility>

#include "base/limits.h"
#include "carrier/tcp_socket.h"
#include "net/ip_address.h"
#include "orderly_end.h"
#include "persona.h"

namespace doctor {
namespace {

struct FreeAddresses {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
struct Addresses {
  int error = EAI_AGAIN;
  std::unique_ptr<addrinfo, FreeAddresses> list;
};

/// The resolver has time limits of its own: it is left behind in its thread when ours is over.
Addresses resolve(const std::string& host, uint16_t port, Clock::time_point end) {
  std::packaged_task<Addresses()> task([host, service = std::to_string(port)] {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* list = nullptr;
    const int error = getaddrinfo(host.c_str(), service.c_str(), &hints, &list);
    return Addresses{error, decltype(Addresses::list)(list)};
  });
  auto result = task.get_future();
  std::thread(std::move(task)).detach();
  if (result.wait_until(end) != std::future_status::ready) return {};
  return result.get();
}

class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int fd() const { return fd_; }

 private:
  const int fd_;
};

/// Waits for an event; 0 or an errno.
int wait_for(int fd, short events, Clock::time_point end) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now());
    if (left.count() <= 0) return ETIMEDOUT;
    pollfd entry{.fd = fd, .events = events, .revents = 0};
    const int count = poll(&entry, 1, static_cast<int>(left.count()));
    if (count > 0) return 0;
    if (count < 0 && errno != EINTR) return errno;
  }
}

int connect_until(int fd, const addrinfo& address, Clock::time_point end) {
  if (connect(fd, address.ai_addr, address.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  if (int error = wait_for(fd, POLLOUT, end)) return error;
  int error = 0;
  socklen_t length = sizeof error;
  return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0 ? error : errno;
}

uint32_t segment_bytes_of(int fd) {
  int value = 0;
  socklen_t length = sizeof value;
  const bool known = getsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &value, &length) == 0;
  return known && value > 0 ? static_cast<uint32_t>(value) : 0;
}

void note_end(Dialogue& dialogue, uwarp::MpaInitiator& initiator, int error) {
  dialogue.ended = true;
  dialogue.error = error;
  dialogue.verdict = initiator.on_end_of_stream();
}

void exchange(int fd, uwarp::MpaInitiator& initiator, Dialogue& dialogue, const Introduction& own,
              Clock::time_point end) {
  dialogue.stage = Dialogue::Stage::kReplying;
  const auto request = initiator.request();
  // It fits into any send buffer.
  if (send(fd, request.data(), request.size(), MSG_NOSIGNAL) < 0)
    return note_end(dialogue, initiator, errno);
  while (dialogue.verdict.state == uwarp::MpaInitiator::State::kNeedMore) {
    if (int error = wait_for(fd, POLLIN, end)) {
      dialogue.error = error;
      return;
    }
    std::array<std::byte, 1024> buffer;
    const ssize_t count = recv(fd, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (count <= 0) return note_end(dialogue, initiator, count < 0 ? errno : 0);
    const auto bytes = std::span<const std::byte>(buffer).first(static_cast<size_t>(count));
    dialogue.received.insert(dialogue.received.end(), bytes.begin(), bytes.end());
    dialogue.verdict = initiator.on_bytes(bytes);
  }
  dialogue.stage = Dialogue::Stage::kReplied;
  dialogue.reply = initiator.reply();
  if (dialogue.verdict.state != uwarp::MpaInitiator::State::kAccepted) return;
  dialogue.negotiated = initiator.negotiated();
  dialogue.persona = persona_in(leave_in_order(fd, dialogue.negotiated, own.persona, end));
}

std::string name_of_address(const addrinfo& address, uint16_t port) {
  const auto ip = uwarp::IpAddress::from_sockaddr(address.ai_addr, address.ai_addrlen);
  if (!ip) return "?";
  const std::string text = ip->to_string();
  return (ip->is_v4() ? text : '[' + text + ']') + ':' + std::to_string(port);
}

bool is_of_this_host(const addrinfo& address) {
  sockaddr_storage where{};
  std::memcpy(&where, address.ai_addr, std::min<size_t>(address.ai_addrlen, sizeof where));
  return uwarp::is_local_address(where);
}

uwarp::MpaInitiator::Config request_config(const Introduction& own) {
  uwarp::MpaInitiator::Config config;
  config.revision = static_cast<uint8_t>(own.revision);
  config.crc = own.crc;
  config.ird = config.ord = uwarp::kMaxRdAtom;
  config.ird_limit = uwarp::kMaxReadDepth;
  return config;
}

}  // namespace

Dialogue talk(const std::string& host, uint16_t port, const Introduction& own,
              Clock::time_point end) {
  Dialogue dialogue;
  dialogue.revision = own.revision;
  const Addresses addresses = resolve(host, port, end);
  if (addresses.error != 0) {
    dialogue.reason = gai_strerror(addresses.error);
    return dialogue;
  }
  for (const addrinfo* address = addresses.list.get(); address != nullptr;
       address = address->ai_next) {
    dialogue.address = name_of_address(*address, port);
    const Socket socket(
        ::socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    dialogue.stage = socket.fd() < 0 ? Dialogue::Stage::kNoSocket : Dialogue::Stage::kConnecting;
    dialogue.error = socket.fd() < 0 ? errno : connect_until(socket.fd(), *address, end);
    if (dialogue.error != 0) continue;
    dialogue.segment_bytes = segment_bytes_of(socket.fd());
    dialogue.local = is_of_this_host(*address);
    uwarp::MpaInitiator initiator(request_config(own));
    exchange(socket.fd(), initiator, dialogue, own, end);
    return dialogue;
  }
  return dialogue;
}

}  // namespace doctor
