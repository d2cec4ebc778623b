// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "connect/mailbox.h"

#include <linux/filter.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cassert>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>
#include <utility>

#include "base/mutex.h"
#include "base/random.h"
#include "os/raw_call.h"
#include "protocol/wire/control_writes.h"

namespace uwarp {
namespace {

/// A letter has two. One more shows that there are too many; what has no room is closed inside
/// recvmsg(), which may wait as any close() may, and is never in the application's table.
constexpr size_t kMostFds = 4;

struct Address {
  explicit Address(uint64_t name) {
    body.sun_family = AF_UNIX;
    const int length = std::snprintf(body.sun_path + 1, sizeof body.sun_path - 1, "uwarp-%012llx",
                                     static_cast<unsigned long long>(name));
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  }
  sockaddr_un body{};
  socklen_t size;
};

/// 0 or an errno. The kernel runs it in the sender's system call, and drops what it refuses there.
int let_in_only(int fd, uint64_t number) {
  uint32_t words[2];
  std::memcpy(words, &number, sizeof words);
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_LEN, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, sizeof(Letter), 0, 5),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),  // as network order
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ntohl(words[0]), 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 4),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ntohl(words[1]), 0, 1),
      BPF_STMT(BPF_RET | BPF_K, ~0u),
      BPF_STMT(BPF_RET | BPF_K, 0),
  };
  const sock_fprog filter = {sizeof code / sizeof code[0], code};
  return raw_status(SYS_setsockopt, fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter);
}

/// Copies what `header` holds, whose size the kernel has set.
void take_control(const cmsghdr& header, Mail& mail) {
  const size_t bytes = header.cmsg_len - CMSG_LEN(0);
  if (header.cmsg_level != SOL_SOCKET) return;
  if (header.cmsg_type == SCM_CREDENTIALS && bytes == sizeof(ucred)) {
    ucred sender;
    std::memcpy(&sender, CMSG_DATA(&header), sizeof sender);
    mail.pid = sender.pid;
    mail.uid = sender.uid;
  }
  if (header.cmsg_type != SCM_RIGHTS) return;
  for (size_t i = 0; i != bytes / sizeof(int); ++i) {
    int fd;
    std::memcpy(&fd, CMSG_DATA(&header) + i * sizeof fd, sizeof fd);
    mail.fds.emplace_back(fd);  // room was reserved
  }
}

}  // namespace

Result<std::shared_ptr<Mailbox>> Mailbox::open(const Shared& shared, uint64_t number,
                                               std::weak_ptr<Owner> owner) {
  std::shared_ptr<Mailbox> mailbox;
  try {
    mailbox = std::make_shared<Mailbox>(shared, number, std::move(owner));
    if (int error = mailbox->bind()) return Error{error};
  } catch (const std::bad_alloc&) {
    return Error{ENOMEM};
  }
  return mailbox;
}

Mailbox::~Mailbox() { shared_.progress.remove(registration_); }

// The filter and the wish for credentials before the name: nothing comes before that.
int Mailbox::bind() {
  const Lock guard(mutex_);
  constexpr int kType = SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC;
  const ssize_t made = raw_call(SYS_socket, AF_UNIX, kType, 0);
  if (made < 0) return static_cast<int>(-made);
  fd_ = EngineFd(static_cast<int>(made));
  const int on = 1;
  name_ = random_word() & CarrierWrite::kValueMask;
  const Address address(name_);
  int error = raw_status(SYS_setsockopt, fd_.get(), SOL_SOCKET, SO_PASSCRED, &on, sizeof on);
  if (error == 0) error = let_in_only(fd_.get(), number_);
  if (error == 0) error = raw_status(SYS_bind, fd_.get(), &address.body, address.size);
  if (error != 0) return error;
  const auto registration = shared_.progress.add(*this, fd_.get(), EPOLLIN | EPOLLET);
  if (!registration) return registration.error();
  registration_ = *registration;
  return 0;
}

int Mailbox::send(uint64_t name, const PeerMemory::Place& secret, std::span<const int> fds) {
  union {
    cmsghdr header;
    char bytes[CMSG_SPACE(kMostFds * sizeof(int))];
  } control{};
  assert(fds.size() <= kMostFds);
  Letter letter{.number = number_, .reply_to = name_, .secret = secret};
  Address address(name);
  iovec body = {&letter, sizeof letter};
  msghdr message{};
  message.msg_name = &address.body;
  message.msg_namelen = address.size;
  message.msg_iov = &body;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    control.header.cmsg_level = SOL_SOCKET;
    control.header.cmsg_type = SCM_RIGHTS;
    control.header.cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(&control.header), fds.data(), fds.size_bytes());
    message.msg_control = control.bytes;
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
  }
  const Lock guard(mutex_);
  return raw_status(SYS_sendmsg, fd_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

bool Mailbox::receive(int fd, Mail& mail) {
  union {
    cmsghdr header;
    char bytes[CMSG_SPACE(sizeof(ucred)) + CMSG_SPACE(kMostFds * sizeof(int))];
  } control;
  iovec body = {&mail.letter, sizeof mail.letter};
  msghdr message{};
  message.msg_iov = &body;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof control.bytes;
  mail.fds.reserve(kMostFds);
  if (raw_call(SYS_recvmsg, fd, &message, MSG_CMSG_CLOEXEC) != sizeof mail.letter) return false;
  for (cmsghdr* at = CMSG_FIRSTHDR(&message); at != nullptr; at = CMSG_NXTHDR(&message, at))
    take_control(*at, mail);
  return true;
}

bool Mailbox::ready(uint32_t) {
  begin_errand();
  return false;
}

void Mailbox::close() {
  closed_.store(true);
  begin_errand();
}

// What lies in the mailbox may be the peer's, and to close it may wait: an errand, too.
void Mailbox::begin_errand() {
  if (!errand_begun_.exchange(true))
    shared_.errands.add(std::static_pointer_cast<Mailbox>(shared_from_this()));
}

void Mailbox::run() noexcept {
  int fd;
  {
    const Lock guard(mutex_);
    shared_.progress.remove(std::exchange(registration_, 0));
    fd = fd_.get();
  }
  try {
    Mail mail;
    const std::shared_ptr<Owner> owner = owner_.lock();
    if (owner != nullptr && !closed_.load() && receive(fd, mail)) owner->mail_arrived(*this, mail);
  } catch (const std::bad_alloc&) {  // TCP goes on
  }
  EngineFd closed;  // without the lock
  const Lock guard(mutex_);
  closed = std::move(fd_);
}

}  // namespace uwarp
