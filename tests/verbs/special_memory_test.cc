// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Regions without memory of the application: null, device memory, files of other drivers.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "verbs/verbs_fixture.h"

namespace {

using Dm = std::unique_ptr<ibv_dm, Destroyer<ibv_free_dm>>;

constexpr int kZeroBased = kAllAccess | IBV_ACCESS_ZERO_BASED;

class Special : public VerbsTest {
 protected:
  void SetUp() override {
    VerbsTest::SetUp();
    pair_ = std::make_unique<Pair>(context(), 1 << 16);
  }
  void TearDown() override { pair_.reset(); }
  End& a() { return pair_->a; }
  End& b() { return pair_->b; }
  Dm device_memory(size_t length, uint32_t log_alignment = 0) {
    ibv_alloc_dm_attr attr = {length, log_alignment, 0};
    return Dm(ibv_alloc_dm(context(), &attr));
  }
  ibv_wc_status access(ibv_wr_opcode opcode, const Mr& mr, uint64_t offset, uint32_t length) {
    Address place = {};
    place.memory = offset;
    place.rkey = mr->rkey;
    EXPECT_EQ(a().post_rdma(opcode, 5, place, 0, length), 0);
    const auto done = next_completion(a().cq.get());
    return done ? done->status : IBV_WC_GENERAL_ERR;
  }
  std::unique_ptr<Pair> pair_;
};

TEST_F(Special, NullRegionDropsAndGivesZeros) {
  Mr null(ibv_alloc_null_mr(b().pd.get()));
  ASSERT_NE(null, nullptr);
  EXPECT_NE(null->lkey, 0u);
  EXPECT_EQ(null->rkey, null->lkey);
  // The middle of the message is dropped, and the middle of the answer is zeros.
  ibv_sge sges[3] = {b().sge(0, 1000), {12345, 4000, null->lkey}, b().sge(1000, 1000)};
  ibv_recv_wr receive = {1, nullptr, sges, 3};
  ibv_recv_wr* bad_receive = nullptr;
  ASSERT_EQ(ibv_post_recv(b().qp.get(), &receive, &bad_receive), 0);
  for (size_t i = 0; i < 6000; ++i) a().memory[i] = static_cast<uint8_t>(1 + i / 1000);
  ASSERT_EQ(a().post_send(2, 0, 6000), 0);
  EXPECT_COMPLETION(b().cq.get(), 1, IBV_WC_SUCCESS);
  EXPECT_COMPLETION(a().cq.get(), 2, IBV_WC_SUCCESS);
  EXPECT_EQ(b().memory[999], 1);
  EXPECT_EQ(b().memory[1000], 6);
  ASSERT_EQ(a().post_receive(3, 0, 6000), 0);
  ibv_send_wr send = {};
  send.wr_id = 4;
  send.sg_list = sges;
  send.num_sge = 3;
  send.opcode = IBV_WR_SEND;
  send.send_flags = IBV_SEND_SIGNALED;
  ibv_send_wr* bad_send = nullptr;
  ASSERT_EQ(ibv_post_send(b().qp.get(), &send, &bad_send), 0);
  EXPECT_COMPLETION(a().cq.get(), 3, IBV_WC_SUCCESS);
  EXPECT_EQ(a().memory[999], 1);
  for (size_t i = 1000; i < 5000; ++i) ASSERT_EQ(a().memory[i], 0) << i;
  EXPECT_EQ(a().memory[5000], 6);
}

TEST_F(Special, OffsetsOfTheApplicationsChoice) {
  uint8_t* memory = b().memory.data() + 100;
  memory[0] = 0x70;
  const uint64_t in_page = reinterpret_cast<uint64_t>(memory) % 4096;
  for (const uint64_t page : {uint64_t{0}, uint64_t{5} << 12, uint64_t{1} << 63}) {
    const uint64_t first = page + in_page;
    Mr mr(ibv_reg_mr_iova(b().pd.get(), memory, 1000, first, kAllAccess));
    ASSERT_NE(mr, nullptr);
    EXPECT_EQ(access(IBV_WR_RDMA_READ, mr, first, 1000), IBV_WC_SUCCESS);
    EXPECT_EQ(a().memory[0], 0x70);
  }
  Mr mr(ibv_reg_mr(b().pd.get(), memory, 1000, kZeroBased));
  EXPECT_EQ(access(IBV_WR_RDMA_READ, mr, 0, 1000), IBV_WC_SUCCESS);
  EXPECT_EQ(access(IBV_WR_RDMA_READ, mr, 1, 1000), IBV_WC_REM_ACCESS_ERR);
}

TEST_F(Special, DeviceMemoryIsCopiedAndRegistered) {
  Dm dm = device_memory(8192, 12);
  ASSERT_NE(dm, nullptr);
  std::vector<uint8_t> bytes(4096, 0x71);
  EXPECT_EQ(ibv_memcpy_to_dm(dm.get(), 4096, bytes.data(), bytes.size()), 0);
  Mr mr(ibv_reg_dm_mr(b().pd.get(), dm.get(), 4096, 4096, kZeroBased));
  ASSERT_NE(mr, nullptr);
  EXPECT_EQ(mr->addr, nullptr);
  EXPECT_EQ(mr->length, 4096u);
  EXPECT_EQ(access(IBV_WR_RDMA_READ, mr, 0, 4096), IBV_WC_SUCCESS);
  EXPECT_EQ(a().memory[4095], 0x71);
  std::memset(a().memory.data(), 0x72, 64);
  EXPECT_EQ(access(IBV_WR_RDMA_WRITE, mr, 64, 64), IBV_WC_SUCCESS);
  EXPECT_EQ(access(IBV_WR_RDMA_READ, mr, 0, 64), IBV_WC_SUCCESS);
  EXPECT_EQ(ibv_memcpy_from_dm(bytes.data(), dm.get(), 4096 + 64, 64), 0);
  EXPECT_EQ(bytes[0], 0x72);
  EXPECT_EQ(ibv_free_dm(dm.get()), EBUSY);
  EXPECT_EQ(access(IBV_WR_RDMA_READ, mr, 4090, 64), IBV_WC_REM_ACCESS_ERR);
  mr.reset();
}

TEST_F(Special, DeviceMemoryLimits) {
  ibv_device_attr_ex attr = {};
  ASSERT_EQ(ibv_query_device_ex(context(), nullptr, &attr), 0);
  Dm all = device_memory(attr.max_dm_size);
  EXPECT_NE(all, nullptr) << "all memory that the device reports can be allocated";
  errno = 0;
  EXPECT_EQ(device_memory(4), nullptr);
  EXPECT_EQ(errno, ENOMEM);
  all.reset();
  EXPECT_EQ(device_memory(attr.max_dm_size + 1), nullptr);
  EXPECT_EQ(errno, ENOMEM);
  EXPECT_EQ(device_memory(0), nullptr);
  EXPECT_EQ(errno, EINVAL);
  ibv_alloc_dm_attr unknown = {64, 0, 1};
  EXPECT_EQ(ibv_alloc_dm(context(), &unknown), nullptr);
  EXPECT_EQ(errno, EINVAL);
}

TEST_F(Special, DeviceMemoryInAForkedChild) {
  const pid_t child = fork();
  if (child == 0) {
    ibv_alloc_dm_attr attr = {64, 0, 0};
    ibv_dm* dm = ibv_alloc_dm(context(), &attr);
    const uint32_t value = 5;
    _exit(dm != nullptr && ibv_memcpy_to_dm(dm, 0, &value, 4) == 0 && ibv_free_dm(dm) == 0 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(Special, DeviceMemoryMisuse) {
  Dm dm = device_memory(100);
  uint8_t bytes[128] = {};
  EXPECT_EQ(ibv_memcpy_to_dm(dm.get(), 0, bytes, 104), EFAULT);
  EXPECT_EQ(ibv_memcpy_to_dm(dm.get(), 104, bytes, 4), EFAULT);
  EXPECT_EQ(ibv_memcpy_to_dm(dm.get(), ~uint64_t{3}, bytes, 8), EFAULT);
  EXPECT_EQ(ibv_memcpy_to_dm(dm.get(), 3, bytes, 4), EFAULT);
  EXPECT_EQ(ibv_memcpy_from_dm(bytes, dm.get(), 4, 3), EFAULT);
  const auto refused = [&](uint64_t offset, size_t length, unsigned access) {
    errno = 0;
    Mr mr(ibv_reg_dm_mr(b().pd.get(), dm.get(), offset, length, access));
    return mr == nullptr ? errno : 0;
  };
  EXPECT_EQ(refused(0, 100, kZeroBased), 0);
  EXPECT_EQ(refused(0, 104, kZeroBased), EINVAL);
  EXPECT_EQ(refused(96, 8, kZeroBased), EINVAL);
  EXPECT_EQ(refused(0, 100, kAllAccess), EINVAL) << "must be zero-based";
  EXPECT_EQ(refused(0, 100, IBV_ACCESS_ZERO_BASED | IBV_ACCESS_REMOTE_WRITE), EINVAL);
  EXPECT_EQ(refused(0, 100, kZeroBased | IBV_ACCESS_ON_DEMAND), EINVAL);
}

TEST_F(Special, FileOfMemory) {
  // There is no driver here that exports buffers; a memfd is mapped in the same way.
  const int fd = memfd_create("uwarp-test", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(fd, 65536), 0);
  errno = 0;
  Mr mr(ibv_reg_dmabuf_mr(b().pd.get(), 4096 + 100, 5000, 0x7000 + 100, fd, kAllAccess));
  ASSERT_NE(mr, nullptr) << std::strerror(errno);
  std::memset(a().memory.data(), 0x73, 5000);
  EXPECT_EQ(access(IBV_WR_RDMA_WRITE, mr, 0x7000 + 100, 5000), IBV_WC_SUCCESS);
  EXPECT_EQ(access(IBV_WR_RDMA_READ, mr, 0x7000 + 100, 64), IBV_WC_SUCCESS);
  uint8_t bytes[2] = {};
  EXPECT_EQ(pread(fd, bytes, 2, 4096 + 99), 2);
  EXPECT_EQ(bytes[0], 0);
  EXPECT_EQ(bytes[1], 0x73);
  close(fd);
  EXPECT_EQ(access(IBV_WR_RDMA_READ, mr, 0x7000 + 99, 64), IBV_WC_REM_ACCESS_ERR);
}

TEST_F(Special, FilesThatCannotBeMapped) {
  const auto refused = [&](int fd, uint64_t offset, size_t length, uint64_t iova, int access) {
    errno = 0;
    Mr mr(ibv_reg_dmabuf_mr(b().pd.get(), offset, length, iova, fd, access));
    return mr == nullptr ? errno : 0;
  };
  const int fd = memfd_create("uwarp-test", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(fd, 8192), 0);
  EXPECT_EQ(refused(fd, 0, 8192, 0, kAllAccess), 0);
  EXPECT_EQ(refused(-1, 0, 0, 0, kAllAccess), EOPNOTSUPP) << "what NCCL and UCX ask";
  EXPECT_EQ(refused(1 << 20, 0, 8192, 0, kAllAccess), EBADF);
  EXPECT_EQ(refused(fd, 0, 8193, 0, kAllAccess), EINVAL) << "too long";
  EXPECT_EQ(refused(fd, 0, 0, 0, kAllAccess), EINVAL) << "nothing";
  EXPECT_EQ(refused(fd, 0, 100, 50, kAllAccess), EINVAL) << "other offset in the page";
  EXPECT_EQ(refused(fd, 0, 100, 0, IBV_ACCESS_REMOTE_WRITE), EINVAL);
  EXPECT_EQ(refused(fd, 0, 100, 0, kAllAccess | IBV_ACCESS_ON_DEMAND), EINVAL);
  int pipes[2];
  ASSERT_EQ(pipe2(pipes, O_CLOEXEC), 0);
  EXPECT_EQ(refused(pipes[0], 0, 100, 0, 0), EOPNOTSUPP);
  const int read_only = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  EXPECT_EQ(refused(read_only, 0, 100, 0, 0), 0);
  EXPECT_EQ(refused(read_only, 0, 100, 0, IBV_ACCESS_LOCAL_WRITE), EOPNOTSUPP);
  for (int each : {fd, pipes[0], pipes[1], read_only}) close(each);
}

}  // namespace
