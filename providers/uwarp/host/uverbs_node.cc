// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// CREATE_COMP_CHANNEL, the only write() that libibverbs does on a device of ours.
#include "host/uverbs_node.h"

#include <fcntl.h>
#include <rdma/ib_user_verbs.h>

#include <cerrno>
#include <string>

#include "events/event_channel.h"
#include "events/raw_fds.h"
#include "events/user_memory.h"
#include "net/net_device.h"

namespace uwarp {

namespace {

constexpr char kStandIn[] = "/dev/full";

struct CreateCompChannel {
  ib_uverbs_cmd_hdr header;
  ib_uverbs_create_comp_channel command;
};
static_assert(sizeof(CreateCompChannel) == 16);

}  // namespace

bool is_uverbs_node(int number) {
  return net_devices()->by_uverbs_name("uverbs" + std::to_string(number)) != nullptr;
}

int open_uverbs_node(int number, int flags) {
  if (!is_uverbs_node(number)) {
    errno = ENODEV;
    return -1;
  }
  const int fd = raw_open(kStandIn, flags & (O_ACCMODE | O_CLOEXEC | O_NONBLOCK));
  if (fd >= 0) mark_for_application(fd, UWARP_FD_UVERBS);
  return fd;
}

ssize_t write_uverbs_command(const void* bytes, size_t length) {
  CreateCompChannel request;
  errno = length < sizeof request ? EINVAL : copy_from_user(&request, bytes, sizeof request);
  if (errno != 0) return -1;
  if (request.header.command != IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL) {
    // Everything else of the kernel's interface: as a kernel that does not know the command.
    errno = EOPNOTSUPP;
    return -1;
  }
  if (size_t{request.header.in_words} * 4 != length ||
      size_t{request.header.out_words} * 4 < sizeof(ib_uverbs_create_comp_channel_resp)) {
    errno = EINVAL;
    return -1;
  }
  const int fd = create_completion_channel();
  if (fd < 0) return -1;
  const ib_uverbs_create_comp_channel_resp response{static_cast<uint32_t>(fd)};
  if (const int error = copy_to_user(request.command.response, &response, sizeof response)) {
    mark_for_application(fd, UWARP_FD_FOREIGN);
    application_file_closed(fd);
    raw_close(fd);
    errno = error;
    return -1;
  }
  return static_cast<ssize_t>(length);
}

}  // namespace uwarp
