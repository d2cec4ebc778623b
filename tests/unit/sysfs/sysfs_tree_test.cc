// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The sysfs tree: its content, updates and places, leftovers of dead processes, real devices.
#include "sysfs/sysfs_tree.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "unit/no_open_files.h"

namespace uwarp {
namespace {

namespace fs = std::filesystem;

std::shared_ptr<NetDevice> device(const std::string& name, int number) {
  auto made = std::make_shared<NetDevice>();
  made->name = name;
  made->verbs_name = "uwarp_" + name;
  made->running = true;
  made->guid_be = __builtin_bswap64(0x0011223344556677u + static_cast<unsigned>(number));
  made->gids = {*IpAddress::from_string("10.0.0.1"), *IpAddress::from_string("fe80::1%2")};
  made->uverbs_number = number;
  made->uverbs_name = "uverbs" + std::to_string(number);
  return made;
}

NetDeviceTable table(std::vector<std::shared_ptr<const NetDevice>> devices) {
  return NetDeviceTable(std::move(devices));
}

std::string content(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

timespec time_of(const fs::path& path) {
  struct stat status {};
  stat(path.c_str(), &status);
  return status.st_mtim;
}

bool same(const timespec& a, const timespec& b) {
  return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

class SysfsTreeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/uwtest-XXXXXX";
    folder_ = mkdtemp(name);
    host_ = folder_ / "host";
    fs::create_directories(host_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string wanted() const {
    return folder_ / ("uwarp-" + std::to_string(getpid()) + "-0123456789abcdef");
  }

  fs::path folder_;
  fs::path host_;
};

TEST_F(SysfsTreeTest, FilesThatTheLibrariesRead) {
  SysfsTree tree(host_);
  const char* root = tree.root(wanted(), table({device("eth0", 192)}));
  ASSERT_NE(root, nullptr);
  EXPECT_EQ(root, wanted());
  const fs::path verbs = fs::path(root) / "class/infiniband_verbs";
  EXPECT_EQ(content(verbs / "abi_version"), "6\n");
  EXPECT_EQ(content(verbs / "uverbs192/ibdev"), "uwarp_eth0\n");
  EXPECT_EQ(content(verbs / "uverbs192/dev"), "1:7\n");
  EXPECT_EQ(content(verbs / "uverbs192/abi_version"), "1\n");
  EXPECT_EQ(content(fs::path(root) / "class/misc/rdma_cm/abi_version"), "4\n");
  const fs::path own = fs::path(root) / "class/infiniband/uwarp_eth0";
  EXPECT_EQ(content(own / "node_type"), "4: RNIC\n");
  EXPECT_EQ(content(own / "node_guid"), "0011:2233:4455:6737\n");
  EXPECT_EQ(content(own / "ports/1/gids/0"), "0000:0000:0000:0000:0000:ffff:0a00:0001\n");
  EXPECT_EQ(content(own / "ports/1/gids/1"), "fe80:0000:0000:0000:0000:0000:0000:0001\n");
  // The whole table must exist, or a query for all of it fails.
  EXPECT_EQ(content(own / "ports/1/gids/15"), "0000:0000:0000:0000:0000:0000:0000:0000\n");
  EXPECT_EQ(content(own / "ports/1/gid_attrs/types/15"), "RoCE v2\n");
  EXPECT_EQ(content(own / "ports/1/pkeys/0"), "0xffff\n");
  EXPECT_EQ(content(own / "ports/1/state"), "4: ACTIVE\n");
  EXPECT_FALSE(fs::exists(own / "device/modalias")) << "would be matched with PCI drivers";
  EXPECT_TRUE(fs::exists(own / "device/net/eth0/ifindex"));
}

TEST_F(SysfsTreeTest, RoceFilesDifferInTheNodeType) {
  EXPECT_EQ(device_files(*device("eth0", 192), true).at("node_type"), "1: CA\n");
}

TEST_F(SysfsTreeTest, NoDeviceIsAnEmptyTree) {
  SysfsTree tree(host_);
  const char* root = tree.root(wanted(), table({}));
  ASSERT_NE(root, nullptr);
  EXPECT_TRUE(fs::is_empty(fs::path(root) / "class/infiniband"));
}

TEST_F(SysfsTreeTest, IsRemovedAtTheEnd) {
  {
    SysfsTree tree(host_);
    ASSERT_NE(tree.root(wanted(), table({device("eth0", 192)})), nullptr);
  }
  EXPECT_FALSE(fs::exists(wanted()));
  EXPECT_TRUE(fs::is_empty(host_));
}

TEST_F(SysfsTreeTest, DevicesComeAndGo) {
  SysfsTree tree(host_);
  const fs::path root = tree.root(wanted(), table({device("eth0", 192)}));
  const fs::path first = root / "class/infiniband/uwarp_eth0";
  const timespec before = time_of(first);
  tree.root(wanted(), table({device("eth0", 192), device("eth1", 193)}));
  EXPECT_TRUE(fs::exists(root / "class/infiniband/uwarp_eth1/node_guid"));
  EXPECT_TRUE(fs::exists(root / "class/infiniband_verbs/uverbs193/ibdev"));
  tree.root(wanted(), table({device("eth0", 192)}));
  EXPECT_FALSE(fs::exists(root / "class/infiniband/uwarp_eth1"));
  EXPECT_FALSE(fs::exists(root / "class/infiniband_verbs/uverbs193"));
  EXPECT_TRUE(same(time_of(first), before));
}

TEST_F(SysfsTreeTest, NewAddressesLeaveTheIdentityAlone) {
  SysfsTree tree(host_);
  const auto eth0 = device("eth0", 192);
  const fs::path root = tree.root(wanted(), table({eth0}));
  const fs::path own = root / "class/infiniband/uwarp_eth0";
  const timespec before = time_of(own);
  auto changed = std::make_shared<NetDevice>(*eth0);
  changed->gids.push_back(*IpAddress::from_string("10.0.0.9"));
  changed->running = false;
  tree.root(wanted(), table({changed}));
  EXPECT_EQ(content(own / "ports/1/gids/2"), "0000:0000:0000:0000:0000:ffff:0a00:0009\n");
  EXPECT_EQ(content(own / "ports/1/gid_attrs/ndevs/2"), "eth0\n");
  EXPECT_EQ(content(own / "ports/1/state"), "1: DOWN\n");
  changed = std::make_shared<NetDevice>(*eth0);
  changed->gids.clear();
  tree.root(wanted(), table({changed}));
  EXPECT_TRUE(fs::is_empty(own / "ports/1/gid_attrs/ndevs")) << "no device has an empty GID";
  tree.root(wanted(), table({eth0}));
  EXPECT_EQ(content(own / "ports/1/gid_attrs/ndevs/0"), "eth0\n");
  EXPECT_TRUE(same(time_of(own), before));
}

TEST_F(SysfsTreeTest, NodesAreListedWhileTheirDeviceIsThere) {
  SysfsTree tree(host_);
  const fs::path nodes =
      fs::path(tree.root(wanted(), table({device("eth0", 192)}))) / "dev/infiniband";
  EXPECT_TRUE(fs::is_character_file(nodes / "rdma_cm"));
  EXPECT_TRUE(fs::is_character_file(nodes / "uverbs192"));
  tree.root(wanted(), table({device("eth1", 193)}));
  EXPECT_FALSE(fs::exists(fs::symlink_status(nodes / "uverbs192")));
  EXPECT_TRUE(fs::is_character_file(nodes / "uverbs193"));
}

TEST_F(SysfsTreeTest, AnotherGuidIsAnotherDevice) {
  SysfsTree tree(host_);
  const auto eth0 = device("eth0", 192);
  const fs::path root = tree.root(wanted(), table({eth0}));
  const fs::path own = root / "class/infiniband/uwarp_eth0";
  const timespec before = time_of(own);
  auto changed = std::make_shared<NetDevice>(*eth0);
  changed->guid_be ^= 1;
  usleep(20'000);
  tree.root(wanted(), table({changed}));
  EXPECT_FALSE(same(time_of(own), before));
}

// The netdev is deleted and made again between two scans, with the same address.
TEST_F(SysfsTreeTest, ANetdevOfTheSameNameIsAnotherDevice) {
  SysfsTree tree(host_);
  const auto eth0 = device("eth0", 192);
  const fs::path root = tree.root(wanted(), table({eth0}));
  const fs::path own = root / "class/infiniband/uwarp_eth0";
  const timespec before = time_of(own);
  auto changed = std::make_shared<NetDevice>(*eth0);
  ++changed->ifindex;
  usleep(20'000);
  tree.root(wanted(), table({changed}));
  EXPECT_FALSE(same(time_of(own), before));
}

TEST_F(SysfsTreeTest, IsMadeAgainAfterItWasRemoved) {
  SysfsTree tree(host_);
  const auto devices = table({device("eth0", 192)});
  const fs::path root = tree.root(wanted(), devices);
  const timespec before = time_of(root / "class/infiniband/uwarp_eth0");
  fs::remove_all(root);
  const char* again = tree.root(wanted(), devices);
  ASSERT_NE(again, nullptr);
  EXPECT_TRUE(fs::exists(fs::path(again) / "class/infiniband/uwarp_eth0/node_guid"));
  EXPECT_TRUE(same(time_of(fs::path(again) / "class/infiniband/uwarp_eth0"), before));
}

// Another user has waited until a cleaner removed the tree, and has made one with the same name. It
// has links to files that only this process can write to.
class SquattedTree : public SysfsTreeTest {
 protected:
  void SetUp() override {
    SysfsTreeTest::SetUp();
    victim_ = folder_ / "victim";
    std::ofstream(victim_) << "precious";
    root_ = tree_.root(wanted(), table({eth0_}));
    fs::remove_all(root_);
  }
  void squat(const fs::path& root) const {
    const fs::path own = root / "class/infiniband/uwarp_eth0";
    fs::create_directories(root / "class/infiniband_verbs");
    fs::create_directories(own / "ports/1/gids");
    for (const char* name : {"ports/1/state", "ports/1/state.new", "ports/1/gids/2.new"})
      fs::create_symlink(victim_, own / name);
  }
  static void give_away(const fs::path& path) {
    if (geteuid() != 0) return;  // then only the folder's inode number differs
    for (const auto& entry : fs::recursive_directory_iterator(path))
      ASSERT_EQ(lchown(entry.path().c_str(), kOther, kOther), 0);
    ASSERT_EQ(lchown(path.c_str(), kOther, kOther), 0);
  }
  /// After a change of the device, which would be written to those files.
  void expect_built_elsewhere() {
    auto changed = std::make_shared<NetDevice>(*eth0_);
    changed->gids.push_back(*IpAddress::from_string("10.0.0.9"));
    changed->running = false;
    EXPECT_EQ(tree_.existing_root(), nullptr);
    const char* again = tree_.root(wanted(), table({changed}));
    ASSERT_NE(again, nullptr);
    EXPECT_NE(again, root_);
    const fs::path own = fs::path(again) / "class/infiniband/uwarp_eth0";
    EXPECT_EQ(content(own / "ports/1/state"), "1: DOWN\n");
    EXPECT_EQ(content(victim_), "precious");
    EXPECT_EQ(tree_.existing_root(), again);
  }

  static constexpr uid_t kOther = 65534;
  SysfsTree tree_{folder_};
  const std::shared_ptr<NetDevice> eth0_ = device("eth0", 192);
  fs::path victim_;
  std::string root_;
};

TEST_F(SquattedTree, LinksInAFolderOfAnotherUserAreNotFollowed) {
  squat(root_);
  give_away(root_);
  expect_built_elsewhere();
  // The other user's files are not changed, even at the end.
  EXPECT_TRUE(fs::is_symlink(fs::path(root_) / "class/infiniband/uwarp_eth0/ports/1/state"));
}

TEST_F(SquattedTree, ALinkInTheTreesPlaceIsNotFollowed) {
  const fs::path theirs = folder_ / "theirs";
  squat(theirs);
  fs::create_directory_symlink(theirs, root_);
  give_away(folder_ / "theirs");
  expect_built_elsewhere();
  EXPECT_TRUE(fs::is_symlink(root_));
}

TEST_F(SquattedTree, RemovalStaysOutsideOfWhatIsNotOurs) {
  {
    SysfsTree tree(host_);
    const std::string root = tree.root(wanted(), table({eth0_}));
    fs::remove_all(root);
    squat(root);
    give_away(root);
  }
  EXPECT_TRUE(fs::exists(fs::path(wanted()) / "class/infiniband_verbs"));
}

TEST_F(SquattedTree, ALeftoverOfPutFileLeadsToNoOtherFile) {
  const Folder folder(folder_);
  fs::create_symlink(victim_, folder_ / "state.new");
  EXPECT_TRUE(folder.put_file("state", "4: ACTIVE\n"));
  EXPECT_EQ(content(victim_), "precious");
  EXPECT_EQ(content(folder_ / "state"), "4: ACTIVE\n");
}

TEST_F(SquattedTree, FoldersBehindLinksAreNotEmptied) {
  fs::create_directories(folder_ / "theirs/below");
  fs::create_directories(folder_ / "tree");
  fs::create_directory_symlink(folder_ / "theirs", folder_ / "tree/link");
  const Folder folder(folder_);
  EXPECT_FALSE(folder.open("tree/link").is_open());
  EXPECT_TRUE(folder.names("tree/link").empty());
  folder.remove("tree");
  EXPECT_FALSE(fs::exists(folder_ / "tree"));
  EXPECT_TRUE(fs::exists(folder_ / "theirs/below"));
}

// Such a folder has mode 0700. A folder that others can write to is no better than /tmp.
TEST_F(SysfsTreeTest, OnlyAPrivateRuntimeFolderIsUsed) {
  const char* before = getenv("XDG_RUNTIME_DIR");
  const std::string saved = before != nullptr ? before : "";
  setenv("XDG_RUNTIME_DIR", folder_.c_str(), 1);
  EXPECT_EQ(tree_folders().front(), folder_);
  fs::permissions(folder_, fs::perms{0777});
  EXPECT_EQ(tree_folders().front(), "/tmp");
  fs::permissions(folder_, fs::perms{0700});
  if (geteuid() == 0) {
    ASSERT_EQ(chown(folder_.c_str(), 65534, 65534), 0);
    EXPECT_EQ(tree_folders().front(), "/tmp");
  }
  before != nullptr ? setenv("XDG_RUNTIME_DIR", saved.c_str(), 1) : unsetenv("XDG_RUNTIME_DIR");
}

TEST_F(SysfsTreeTest, WithoutAWishTheCurrentFolderIsLeftAlone) {
  SysfsTree tree(host_);
  const auto devices = table({device("eth0", 192)});
  fs::remove_all(tree.root(wanted(), devices));
  const fs::path before = fs::current_path();
  fs::current_path(host_);
  const timespec changed = time_of(host_);
  usleep(20'000);
  const char* again = tree.root({}, devices);
  EXPECT_TRUE(same(time_of(host_), changed));
  fs::current_path(before);
  ASSERT_NE(again, nullptr);
  EXPECT_TRUE(fs::path(again).is_absolute()) << again;
}

// A daemon that starts as root.
TEST_F(SysfsTreeTest, AProcessThatGivesUpItsRightsCanStillRead) {
  if (geteuid() != 0) GTEST_SKIP() << "not root";
  constexpr uid_t kNobody = 65534;
  fs::permissions(folder_, fs::perms{0711});
  const mode_t mask = umask(022);
  SysfsTree tree(host_);
  const auto devices = table({device("eth0", 192)});
  const std::string root = tree.root(wanted(), devices);
  umask(mask);
  struct stat status;
  ASSERT_EQ(stat(root.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0755u);
  const pid_t child = fork();
  if (child == 0) {
    const bool gave_up = setgid(kNobody) == 0 && setuid(kNobody) == 0;
    const bool reads =
        content(fs::path(root) / "class/infiniband_verbs/uverbs192/ibdev") == "uwarp_eth0\n";
    _exit(gave_up && reads && tree.root(wanted(), devices) == root ? 0 : 1);
  }
  int exited = -1;
  waitpid(child, &exited, 0);
  EXPECT_EQ(exited, 0);
}

TEST_F(SysfsTreeTest, StaysWhenNoFileCanBeOpened) {
  SysfsTree tree(host_);
  const auto devices = table({device("eth0", 192)});
  const char* root = tree.root(wanted(), devices);
  ASSERT_NE(root, nullptr);
  {
    const NoOpenFiles limit;
    EXPECT_EQ(tree.root(wanted(), devices), root);
  }
  EXPECT_EQ(tree.root(wanted(), table({device("eth0", 192), device("eth1", 193)})), root);
  EXPECT_TRUE(fs::exists(fs::path(root) / "class/infiniband/uwarp_eth1"));
}

TEST_F(SysfsTreeTest, TakenOrUnwritablePlaces) {
  // Another program was there first.
  fs::create_directories(fs::path(wanted()) / "class");
  {
    SysfsTree tree(host_);
    const char* root = tree.root(wanted(), table({device("eth0", 192)}));
    ASSERT_NE(root, nullptr);
    EXPECT_NE(root, wanted());
    EXPECT_TRUE(fs::exists(fs::path(root) / "class/infiniband/uwarp_eth0/node_guid"));
  }
  SysfsTree tree(host_);
  EXPECT_NE(tree.root("/proc/uwarp-1-0123456789abcdef", table({})), nullptr);
}

TEST_F(SysfsTreeTest, TheNameOfAnotherProcessIsNotUsed) {
  SysfsTree tree(host_);
  const std::string parents = folder_ / "uwarp-1-0123456789abcdef";
  const char* root = tree.root(parents, table({}));
  ASSERT_NE(root, nullptr);
  EXPECT_NE(root, parents);
  EXPECT_EQ(fs::path(root).parent_path(), folder_);
}

TEST_F(SysfsTreeTest, LeftoversOfKilledProcessesGo) {
  const std::string wanted_by_child = folder_ / "uwarp-tree";
  const pid_t child = fork();
  if (child == 0) {
    SysfsTree tree(host_);
    const std::string name = "uwarp-" + std::to_string(getpid()) + "-0123456789abcdef";
    tree.root(folder_ / name, table({device("eth0", 192)}));
    kill(getpid(), SIGKILL);
  }
  waitpid(child, nullptr, 0);
  const fs::path left = folder_ / ("uwarp-" + std::to_string(child) + "-0123456789abcdef");
  ASSERT_TRUE(fs::exists(left));
  // Kept: this process's own tree, and folders with similar names.
  fs::create_directories(folder_ / ("uwarp-" + std::to_string(getpid()) + "-fedcba9876543210"));
  fs::create_directories(folder_ / "uwarp-notes");
  remove_dead_trees(folder_);
  EXPECT_FALSE(fs::exists(left));
  EXPECT_TRUE(fs::exists(folder_ / ("uwarp-" + std::to_string(getpid()) + "-fedcba9876543210")));
  EXPECT_TRUE(fs::exists(folder_ / "uwarp-notes"));
}

TEST_F(SysfsTreeTest, OnlyOwnFoldersOfTheSameFileSystemAreLookedInto) {
  fs::create_directories(folder_ / "ours");
  fs::create_symlink("/proc/self", folder_ / "link");
  const Folder folder(folder_);
  EXPECT_TRUE(folder.may_be_own("ours"));
  EXPECT_FALSE(folder.may_be_own("nothing"));
  // What is mounted in a folder is another file system, whatever it says of its owner.
  const Folder root("/");
  EXPECT_FALSE(root.may_be_own("proc"));
  if (geteuid() != 0) GTEST_SKIP() << "needs root";
  ASSERT_EQ(chown((folder_ / "ours").c_str(), 65534, 65534), 0);
  EXPECT_FALSE(folder.may_be_own("ours"));
}

TEST_F(SysfsTreeTest, NamesThatAreReadAreBounded) {
  for (int i = 0; i < 20; ++i) fs::create_directories(folder_ / ("uwarp-" + std::to_string(i)));
  EXPECT_EQ(Folder(folder_).names(".", 7).size(), 7u);
  EXPECT_GE(Folder(folder_).names(".").size(), 20u);
}

TEST_F(SysfsTreeTest, RealDevicesOfTheHostStayVisible) {
  fs::create_directories(host_ / "class/infiniband/mlx5_0");
  fs::create_directories(host_ / "class/infiniband_verbs/uverbs0");
  std::ofstream(host_ / "class/infiniband_verbs/uverbs0/ibdev") << "mlx5_0\n";
  std::ofstream(host_ / "class/infiniband_verbs/abi_version") << "6\n";
  SysfsTree tree(host_);
  const auto devices = table({device("eth0", 192)});
  const fs::path root = tree.root(wanted(), devices);
  EXPECT_TRUE(fs::is_directory(root / "class/infiniband/mlx5_0"));
  EXPECT_EQ(content(root / "class/infiniband_verbs/uverbs0/ibdev"), "mlx5_0\n");
  EXPECT_EQ(content(root / "class/infiniband_verbs/uverbs192/ibdev"), "uwarp_eth0\n");
  // The host's device is unplugged.
  fs::remove_all(host_ / "class/infiniband/mlx5_0");
  fs::remove_all(host_ / "class/infiniband_verbs/uverbs0");
  tree.root(wanted(), devices);
  EXPECT_FALSE(fs::is_symlink(root / "class/infiniband/mlx5_0"));
  EXPECT_FALSE(fs::is_symlink(root / "class/infiniband_verbs/uverbs0"));
}

TEST(CounterFile, Names) {
  const auto found = counter_file("class/infiniband/uwarp_lo/ports/1/counters/port_xmit_data");
  EXPECT_EQ(found.device, "uwarp_lo");
  ASSERT_NE(found.value, nullptr);
  DeviceTotals totals;
  totals.transmit.bytes.add(4007);
  EXPECT_EQ(found.value(totals), 1001u);  // words
  totals.receive.rnr_timeouts.add(3);
  const auto timeouts = counter_file("class/infiniband/uwarp_lo/ports/1/hw_counters/rnr_timeouts");
  ASSERT_NE(timeouts.value, nullptr);
  EXPECT_EQ(timeouts.value(totals), 3u);
  for (const char* path :
       {"class/infiniband/uwarp_lo/ports/1/counters/",
        "class/infiniband/uwarp_lo/ports/1/counters/x",
        "class/infiniband/uwarp_lo/ports/1/counters/rnr_timeouts",
        "class/infiniband/uwarp_lo/node_guid", "class/infiniband_verbs/uverbs192/dev", "",
        "class/infiniband/a/b/ports/1/counters/port_xmit_data"}) {
    EXPECT_EQ(counter_file(path).value, nullptr) << path;
  }
}

}  // namespace
}  // namespace uwarp
