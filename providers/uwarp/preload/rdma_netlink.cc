// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "preload/rdma_netlink.h"

#include <rdma/rdma_netlink.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

namespace uwarp_preload {
namespace {

constexpr uint16_t kSystemQuery = RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_SYS_GET);

/// RDMA_NLDEV_CMD_SYS_GET's answer; the attribute takes four bytes, as all do.
struct SystemAnswer {
  nlmsghdr head;
  nlattr attribute;
  uint8_t copies_on_fork;
  uint8_t padding[3];
};

struct Refusal {
  nlmsghdr head;
  nlmsgerr error;
};

template <class Answer>
ssize_t send_answer(int fd, const nlmsghdr& question, Answer& answer) {
  sockaddr_nl to{};
  socklen_t length = sizeof to;
  if (syscall(SYS_getsockname, fd, &to, &length) != 0) return -1;
  answer.head.nlmsg_len = sizeof answer;
  answer.head.nlmsg_seq = question.nlmsg_seq;
  answer.head.nlmsg_pid = to.nl_pid;
  const auto from = static_cast<int>(
      syscall(SYS_socket, AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, kStandsForRdmaNetlink));
  if (from < 0) return -1;
  const long sent = syscall(SYS_sendto, from, &answer, sizeof answer, MSG_DONTWAIT, &to, sizeof to);
  const int error = errno;
  syscall(SYS_close, from);
  errno = error;
  return sent < 0 ? -1 : static_cast<ssize_t>(question.nlmsg_len);
}

}  // namespace

bool is_rdma_command(int fd, const msghdr& message) {
  const auto& to = *static_cast<const sockaddr_nl*>(message.msg_name);
  if (to.nl_pid != 0 || to.nl_groups != 0 || message.msg_iovlen != 1) return false;
  if (message.msg_iov->iov_len < sizeof(nlmsghdr)) return false;
  int protocol = 0;
  socklen_t length = sizeof protocol;
  return getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &length) == 0 &&
         protocol == kStandsForRdmaNetlink;
}

ssize_t answer_rdma_netlink(int fd, const msghdr& message) {
  nlmsghdr question;
  memcpy(&question, message.msg_iov->iov_base, sizeof question);
  if (question.nlmsg_type == kSystemQuery) {
    SystemAnswer answer{};
    answer.head.nlmsg_type = kSystemQuery;
    answer.attribute = {NLA_HDRLEN + sizeof answer.copies_on_fork,
                        RDMA_NLDEV_SYS_ATTR_COPY_ON_FORK};
    answer.copies_on_fork = 1;
    return send_answer(fd, question, answer);
  }
  Refusal refusal{};
  refusal.head.nlmsg_type = NLMSG_ERROR;
  refusal.error.error = -EOPNOTSUPP;
  refusal.error.msg = question;
  return send_answer(fd, question, refusal);
}

}  // namespace uwarp_preload
