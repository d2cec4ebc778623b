// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The uverbs node: CREATE_COMP_CHANNEL, and other commands, which are refused.
#include "host/uverbs_node.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <rdma/ib_user_verbs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>

#include "events/event_channel.h"
#include "net/net_device.h"
#include "unit/kernel_copies.h"

namespace uwarp {
namespace {

struct Command {
  uint32_t command = IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL;
  uint16_t in_words = 4;
  uint16_t out_words = 1;
  uint64_t response = 0;
};
static_assert(sizeof(Command) == 16);

int write_result(const Command& command, size_t length = sizeof(Command)) {
  return write_uverbs_command(&command, length) < 0 ? errno : 0;
}

TEST(UverbsNode, LooksLikeADevice) {
  const int number = net_devices()->by_verbs_name("uwarp_lo")->uverbs_number;
  const int fd = open_uverbs_node(number, O_RDWR | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  struct stat status;
  ASSERT_EQ(fstat(fd, &status), 0);
  EXPECT_TRUE(S_ISCHR(status.st_mode));
  // The same number as in the sysfs file `dev`.
  EXPECT_EQ(status.st_rdev, makedev(1, 7));
  // RDMA_VERBS_IOCTL must be unknown.
  EXPECT_EQ(ioctl(fd, 0xc0181b01, nullptr), -1);
  // QEMU's user emulation, which also lacks process_vm_readv(), knows no ioctl() of RDMA.
  if (errno != ENOSYS || fault_safe_copy_works()) {
    EXPECT_EQ(errno, ENOTTY);
  }
  close(fd);
  EXPECT_EQ(open_uverbs_node(9999, O_RDWR), -1);
  EXPECT_EQ(errno, ENODEV);
}

TEST(UverbsNode, CreatesCompletionChannels) {
  uint32_t fd = 0;
  Command command;
  command.response = reinterpret_cast<uint64_t>(&fd);
  ASSERT_EQ(write_uverbs_command(&command, sizeof command), 16);
  const auto channel = event_channel_of(static_cast<int>(fd));
  ASSERT_NE(channel, nullptr);
  channel->send(CompletionEventRecord{5});
  uint64_t cq = 0;
  EXPECT_EQ(read(static_cast<int>(fd), &cq, sizeof cq), 8);
  EXPECT_EQ(cq, 5u);
  EXPECT_EQ(fcntl(static_cast<int>(fd), F_GETFD), FD_CLOEXEC);
  application_file_closed(static_cast<int>(fd));
  close(static_cast<int>(fd));
}

TEST(UverbsNode, WrongCommands) {
  UWARP_NEEDS_KERNEL_COPIES();
  uint32_t fd = 0xdead;
  Command command;
  command.response = reinterpret_cast<uint64_t>(&fd);
  EXPECT_EQ(write_result(command, 15), EINVAL);
  EXPECT_EQ(write_result(command, 0), EINVAL);
  Command other = command;
  other.command = IB_USER_VERBS_CMD_GET_CONTEXT;
  EXPECT_EQ(write_result(other), EOPNOTSUPP);
  other = command;
  other.in_words = 5;
  EXPECT_EQ(write_result(other), EINVAL);
  other = command;
  other.out_words = 0;
  EXPECT_EQ(write_result(other), EINVAL);
  other = command;
  other.response = 16;
  EXPECT_EQ(write_result(other), EFAULT);
  EXPECT_EQ(write_uverbs_command(nullptr, 16), -1);
  EXPECT_EQ(errno, EFAULT);
  EXPECT_EQ(fd, 0xdeadu);
}

}  // namespace
}  // namespace uwarp
