// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Commands that are wrong, old or random.
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <set>

#include "unit/kernel_copies.h"
#include "unit/rdma_cm/cm_channel.h"

namespace uwarp {
namespace {

TEST_F(RdmaCmNodeTest, FormatErrors) {
  UWARP_NEEDS_KERNEL_COPIES();
  const auto write = [&](const void* bytes, size_t length) {
    errno = 0;
    return channel_.node()->write(bytes, length, nullptr) < 0 ? errno : 0;
  };
  const uint32_t id = channel_.create();
  Written<rdma_ucm_disconnect> command{{RDMA_USER_CM_CMD_DISCONNECT, 4, 0}, {id}};
  EXPECT_EQ(write(&command, 0), EINVAL);
  EXPECT_EQ(write(&command, 7), EINVAL);
  // The header announces more bytes than were written.
  EXPECT_EQ(write(&command, 11), EINVAL);
  EXPECT_EQ(write(nullptr, 12), EFAULT);
  EXPECT_EQ(write(reinterpret_cast<void*>(8), 12), EFAULT);
  for (const uint32_t unknown : {13u, 23u, 25u, 0xffffffffu}) {
    command.header.cmd = unknown;
    EXPECT_EQ(write(&command, sizeof command), ENOSYS);
  }
  // No room for the answer, or no address for it.
  const uint32_t before = channel_.create();
  const rdma_ucm_create_id create{0, 0, RDMA_PS_TCP, 0, {}};
  EXPECT_EQ(channel_.command(RDMA_USER_CM_CMD_CREATE_ID, create, 3), ENOSPC);
  EXPECT_EQ(channel_.command(RDMA_USER_CM_CMD_CREATE_ID, create, 4), EFAULT);
  EXPECT_EQ(channel_.create(), before + 2);
}

TEST_F(RdmaCmNodeTest, AnEventThatCannotBeDeliveredStays) {
  UWARP_NEEDS_KERNEL_COPIES();
  const uint32_t id = channel_.create();
  channel_.resolve(id);
  EXPECT_EQ(channel_.command(RDMA_USER_CM_CMD_GET_EVENT, rdma_ucm_get_event{8},
                             sizeof(rdma_ucm_event_resp)),
            EFAULT);
  EXPECT_TRUE(channel_.readable());
  EXPECT_EQ(channel_.next_event(), kAddressResolved);
  EXPECT_EQ(channel_.destroy(id), 1);
}

TEST_F(RdmaCmNodeTest, OlderApplicationsHaveShorterStructures) {
  const uint32_t id = channel_.create();
  channel_.resolve(id);
  // Before ECE existed, an event ended with its union.
  struct {
    rdma_ucm_event_resp event;
    uint64_t guard = 0x1122334455667788;
  } room{};
  constexpr size_t kOldSize = offsetof(rdma_ucm_event_resp, reserved);
  memset(reinterpret_cast<char*>(&room) + kOldSize, 0x77, sizeof room.event - kOldSize);
  EXPECT_EQ(channel_.event(room.event, kOldSize - 1), ENOSPC);
  EXPECT_EQ(channel_.event(room.event, kOldSize), 0);
  EXPECT_EQ(room.event.reserved, 0x77777777u);
  channel_.resolve_route(id);
  // CONNECT without its ECE fields.
  EXPECT_EQ(channel_.next_event(), kRouteResolved);
  struct OldConnect {
    rdma_ucm_conn_param param;
    uint32_t id, reserved;
  } old{};
  old.id = id;
  old.param.valid = 1;
  EXPECT_EQ(channel_.command(RDMA_USER_CM_CMD_CONNECT, old), 0);
}

// Each command is done, or refused by an errno of the kernel's; the ids that are left can be
// destroyed, and then there are none.
TEST_F(RdmaCmNodeTest, RandomCommandsAreDoneOrRefused) {
  UWARP_NEEDS_KERNEL_COPIES();
  const std::set<int> refusals = {
      EINVAL, ENOSYS,       EFAULT,          ENOSPC, ENOENT, EBUSY,   EADDRINUSE, EADDRNOTAVAIL,
      ENODEV, EAFNOSUPPORT, EPROTONOSUPPORT, EACCES, EAGAIN, EISCONN, ENOTCONN,   EPERM};
  std::mt19937 random(20240501);
  int done = 0;
  std::vector<char> bytes(600);
  std::vector<char> answer(1024);
  uint32_t newest = 0;
  for (int round = 0; round < 20000; ++round) {
    if (round % 20 == 0) newest = channel_.create();
    for (char& byte : bytes) byte = static_cast<char>(random());
    // Of every second command the lengths are long enough for each kind.
    const bool whole = round % 2 == 0;
    const rdma_ucm_cmd_hdr header{static_cast<uint32_t>(random() % 24),
                                  static_cast<uint16_t>(whole ? 592 : random() % 320),
                                  static_cast<uint16_t>(whole ? 512 : random() % 512)};
    memcpy(bytes.data(), &header, sizeof header);
    // Ids that exist, as a rule; responses go to valid memory.
    for (const size_t offset : {8u, 16u, 44u, 64u, 280u, 288u}) {
      const auto id = static_cast<uint32_t>(newest - random() % 4);
      if (random() % 2) memcpy(&bytes[offset], &id, sizeof id);
    }
    const uint64_t where = address_of(answer[0]);
    for (const size_t offset : {8u, 16u}) {
      if (random() % 2) memcpy(&bytes[offset], &where, sizeof where);
    }
    // SET_OPTION reads from an address in the command.
    if (header.cmd == RDMA_USER_CM_CMD_SET_OPTION) memcpy(&bytes[8], &where, sizeof where);
    const size_t length = whole ? bytes.size() : random() % bytes.size();
    errno = 0;
    const ssize_t result = channel_.node()->write(
        bytes.data(), length, [](int) { return std::shared_ptr<RdmaCmNode>(); });
    if (result < 0)
      EXPECT_TRUE(refusals.contains(errno)) << header.cmd << ": " << strerror(errno);
    else
      EXPECT_EQ(result, static_cast<ssize_t>(length));
    done += result >= 0;
  }
  EXPECT_GT(done, 100);
  const uint32_t last = channel_.create();
  for (uint32_t id = 0; id <= last; ++id) {
    const int events = channel_.destroy(id);
    EXPECT_TRUE(events >= 0 || events == -ENOENT || events == -EINVAL) << id << ": " << events;
    EXPECT_EQ(channel_.destroy(id), -ENOENT);
  }
}

}  // namespace
}  // namespace uwarp
