// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What a program under libuwarp-preload.so sees. An ordinary run skips these tests; preload_test.cc
// starts this binary again under the preload with UWARP_TEST_INSIDE set.
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <fts.h>
#include <ftw.h>
#include <glob.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_user_cm.h>
#include <signal.h>
#include <sys/inotify.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "preload/real.h"

namespace {

constexpr int kNetlinkRdma = 20;

class Inside : public ::testing::Test {
 protected:
  void SetUp() override {
    if (getenv("UWARP_TEST_INSIDE") == nullptr) GTEST_SKIP() << "only under the preload";
  }
  static std::string root() { return getenv("SYSFS_PATH"); }
  static int open_channel(int flags = O_RDWR | O_CLOEXEC) {
    return open("/dev/infiniband/rdma_cm", flags);
  }
};

struct CreateId {
  rdma_ucm_cmd_hdr header{RDMA_USER_CM_CMD_CREATE_ID, sizeof(rdma_ucm_create_id),
                          sizeof(rdma_ucm_create_id_resp)};
  rdma_ucm_create_id payload{};
};

/// The new id's number, or a negative errno.
int create_id(int fd) {
  rdma_ucm_create_id_resp response{};
  CreateId command;
  command.payload.uid = 1;
  command.payload.ps = RDMA_PS_TCP;
  command.payload.response = reinterpret_cast<uint64_t>(&response);
  return write(fd, &command, sizeof command) == sizeof command ? static_cast<int>(response.id)
                                                               : -errno;
}

int get_event(int fd) {
  rdma_ucm_event_resp response{};
  struct {
    rdma_ucm_cmd_hdr header{RDMA_USER_CM_CMD_GET_EVENT, sizeof(rdma_ucm_get_event),
                            sizeof(rdma_ucm_event_resp)};
    rdma_ucm_get_event payload{};
  } command;
  command.payload.response = reinterpret_cast<uint64_t>(&response);
  return write(fd, &command, sizeof command) < 0 ? -errno : static_cast<int>(response.event);
}

void resolve_loopback(int fd, uint32_t id) {
  struct {
    rdma_ucm_cmd_hdr header{RDMA_USER_CM_CMD_RESOLVE_IP, sizeof(rdma_ucm_resolve_ip), 0};
    rdma_ucm_resolve_ip payload{};
  } command;
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(7174);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  memcpy(&command.payload.dst_addr, &to, sizeof to);
  command.payload.id = id;
  EXPECT_EQ(write(fd, &command, sizeof command), static_cast<ssize_t>(sizeof command));
}

int first_uverbs() {
  for (int number = 192; number < 300; ++number) {
    struct stat status;
    if (stat(("/dev/infiniband/uverbs" + std::to_string(number)).c_str(), &status) == 0) {
      return number;
    }
  }
  return -1;
}

std::string uverbs_path() { return "/dev/infiniband/uverbs" + std::to_string(first_uverbs()); }

int exit_status_of(pid_t child) {
  int status = -1;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status;
}

TEST_F(Inside, NothingHappensBeforeTheFirstUse) {
  // This must be the first test: the tree does not exist yet, but its name is known.
  ASSERT_NE(getenv("SYSFS_PATH"), nullptr);
  EXPECT_NE(root().find("/uwarp-" + std::to_string(getpid()) + "-"), std::string::npos);
  EXPECT_EQ(syscall(SYS_faccessat, AT_FDCWD, root().c_str(), F_OK), -1);
  EXPECT_EQ(dlopen("libuwarp.so.0", RTLD_NOW | RTLD_NOLOAD), nullptr);
}

TEST_F(Inside, NetlinkRdmaIsRefusedAndMakesTheTree) {
  EXPECT_EQ(socket(AF_NETLINK, SOCK_RAW, kNetlinkRdma), -1);
  EXPECT_EQ(errno, EPROTONOSUPPORT);
  EXPECT_EQ(syscall(SYS_faccessat, AT_FDCWD, root().c_str(), F_OK), 0);
  const int other = socket(AF_NETLINK, SOCK_RAW, 0);
  EXPECT_GE(other, 0);
  close(other);
}

TEST_F(Inside, SysClassIsRedirected) {
  struct stat status;
  EXPECT_EQ(stat("/sys/class/infiniband/uwarp_lo", &status), 0);
  EXPECT_TRUE(S_ISDIR(status.st_mode));
  EXPECT_EQ(lstat("/sys/class/infiniband/uwarp_lo/node_guid", &status), 0);
  EXPECT_EQ(access("/sys/class/infiniband/uwarp_lo/node_guid", R_OK), 0);
  EXPECT_EQ(access("/sys/class/infiniband/nobody", F_OK), -1);
  std::set<std::string> names;
  DIR* listing = opendir("/sys/class/infiniband");
  ASSERT_NE(listing, nullptr);
  while (const dirent* entry = readdir(listing)) names.insert(entry->d_name);
  closedir(listing);
  EXPECT_TRUE(names.count("uwarp_lo"));
  FILE* file = fopen("/sys/class/infiniband/uwarp_lo/node_type", "r");
  ASSERT_NE(file, nullptr);
  char text[64] = {};
  EXPECT_NE(fgets(text, sizeof text, file), nullptr);
  EXPECT_STREQ(text, "4: RNIC\n");
  fclose(file);
  char path[PATH_MAX];
  ASSERT_NE(realpath("/sys/class/infiniband/uwarp_lo/ports/1", path), nullptr);
  EXPECT_TRUE(std::string(path).ends_with("/class/infiniband/uwarp_lo/ports/1"));
  // No place on a bus, but what lies in it can be read.
  for (const char* place :
       {"/sys/class/infiniband/uwarp_lo/device", "/sys/class/infiniband/uwarp_lo/device/"}) {
    EXPECT_EQ(realpath(place, nullptr), nullptr);
    EXPECT_EQ(errno, ENOENT);
  }
  EXPECT_NE(realpath("/sys/class/infiniband/uwarp_lo/device/numa_node", path), nullptr);
  dirent** entries = nullptr;
  const int count =
      scandir("/sys/class/infiniband/uwarp_lo/ports/1/gids", &entries, nullptr, nullptr);
  EXPECT_EQ(count, 16 + 2);
  for (int i = 0; i < count; ++i) free(entries[i]);
  free(entries);
  EXPECT_EQ(access("/sys/class/misc/rdma_cm/abi_version", R_OK), 0);
  // Names next to ours belong to the kernel.
  EXPECT_EQ(access("/sys/class/infiniband_foo", F_OK), -1);
  EXPECT_EQ(access("/sys/class/net", F_OK), 0);
}

TEST_F(Inside, ShellToolsListNodesAndFolders) {
  // These tools also change folders and ask for extended attributes.
  EXPECT_EQ(system("ls -l /sys/class/infiniband /dev/infiniband/rdma_cm > /dev/null"), 0);
  EXPECT_EQ(system("cd /sys/class/infiniband && test -e uwarp_lo/node_guid"), 0);
}

// Nodes are listed, have the kind that stat() gives, and can be opened by the listed names.
TEST_F(Inside, TheFolderOfNodesIsListed) {
  const std::string uverbs = "uverbs" + std::to_string(first_uverbs());
  for (const char* path : {"/dev/infiniband", "/dev/infiniband/"}) {
    std::set<std::string> names;
    DIR* listing = opendir(path);
    ASSERT_NE(listing, nullptr) << path;
    while (const dirent* entry = readdir(listing)) {
      names.insert(entry->d_name);
      EXPECT_NE(entry->d_type, DT_LNK) << entry->d_name;
    }
    closedir(listing);
    EXPECT_TRUE(names.contains("rdma_cm"));
    EXPECT_TRUE(names.contains(uverbs));
  }
  struct stat status;
  EXPECT_EQ(stat("/dev/infiniband", &status), 0);
  EXPECT_TRUE(S_ISDIR(status.st_mode));
  const int folder = open("/dev/infiniband", O_DIRECTORY | O_RDONLY | O_CLOEXEC);
  ASSERT_GE(folder, 0);
  ASSERT_EQ(fstatat(folder, "rdma_cm", &status, AT_SYMLINK_NOFOLLOW), 0);
  EXPECT_TRUE(S_ISCHR(status.st_mode));
  const int channel = openat(folder, "rdma_cm", O_RDWR | O_CLOEXEC);
  EXPECT_GT(create_id(channel), 0);
  close(channel);
  close(folder);
  EXPECT_EQ(system("ls -l /dev/infiniband/ | grep -q '^c.* rdma_cm$'"), 0);
  EXPECT_EQ(system("find /dev/infiniband -type c | grep -q '/rdma_cm$'"), 0);
  EXPECT_EQ(system("cd /dev/infiniband && test -c rdma_cm"), 0);
  EXPECT_EQ(system("UWARP_NETDEVS=none ls /dev/infiniband/rdma_cm 2>/dev/null"), 2 << 8);
}

dirent* readdir64_as_readdir(DIR* folder) { return reinterpret_cast<dirent*>(readdir64(folder)); }

/// All names that `next` returns, in its order.
template <typename Next>
std::vector<std::string> names_by(DIR* folder, const Next& next) {
  std::vector<std::string> names;
  while (const dirent* entry = next(folder)) names.emplace_back(entry->d_name);
  return names;
}

// Every way to read the folder gives the sorted list of readdir().
TEST_F(Inside, EachWayToListAFolderAgrees) {
  DIR* listing = opendir("/dev/infiniband");
  ASSERT_NE(listing, nullptr);
  const auto names = names_by(listing, readdir);
  EXPECT_GE(names.size(), 2u + 2u);
  seekdir(listing, 0);
  dirent room;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  const auto again = names_by(listing, [&](DIR* folder) {
    dirent* entry = nullptr;
    EXPECT_EQ(readdir_r(folder, &room, &entry), 0);
    return entry;
  });
#pragma GCC diagnostic pop
  EXPECT_EQ(again, names);
  rewinddir(listing);
  for (size_t i = 0; i + 1 < names.size(); ++i) EXPECT_EQ(readdir(listing)->d_name, names[i]);
  const long last = telldir(listing);
  EXPECT_EQ(readdir(listing)->d_name, names.back());
  EXPECT_EQ(readdir(listing), nullptr);
  seekdir(listing, last);
  EXPECT_EQ(readdir(listing)->d_name, names.back());
  closedir(listing);

  listing = fdopendir(open("/dev/infiniband", O_DIRECTORY | O_RDONLY | O_CLOEXEC));
  ASSERT_NE(listing, nullptr);
  EXPECT_EQ(names_by(listing, readdir64_as_readdir), names);
  closedir(listing);
  // Direct system calls may give any order.
  const int folder = open("/dev/infiniband", O_DIRECTORY | O_RDONLY | O_CLOEXEC);
  alignas(dirent) char bytes[4096];
  std::set<std::string> raw;
  const ssize_t size = getdents64(folder, bytes, sizeof bytes);
  for (ssize_t at = 0; at < size;) {
    const auto* entry = reinterpret_cast<const dirent*>(bytes + at);
    raw.insert(entry->d_name);
    at += entry->d_reclen;
  }
  EXPECT_EQ(raw, std::set<std::string>(names.begin(), names.end()));
  close(folder);
}

TEST_F(Inside, CallsOnTheFileSystemOfANameUseTheTree) {
  for (const std::string& path : {std::string("/sys/class/infiniband/uwarp_lo"), uverbs_path()}) {
    struct statfs system;
    EXPECT_EQ(statfs(path.c_str(), &system), 0) << path;
    struct statvfs same;
    EXPECT_EQ(statvfs(path.c_str(), &same), 0) << path;
    EXPECT_GT(pathconf(path.c_str(), _PC_NAME_MAX), 0) << path;
    char names[256];
    EXPECT_TRUE(listxattr(path.c_str(), names, sizeof names) >= 0 || errno == ENOTSUP) << path;
    EXPECT_TRUE(llistxattr(path.c_str(), names, sizeof names) >= 0 || errno == ENOTSUP) << path;
    EXPECT_EQ(getxattr(path.c_str(), "user.none", names, sizeof names), -1);
    EXPECT_NE(errno, ENOENT) << path;
    EXPECT_EQ(euidaccess(path.c_str(), R_OK), 0) << path;
    EXPECT_EQ(eaccess(path.c_str(), R_OK), 0) << path;
  }
  const int watch = inotify_init1(IN_CLOEXEC);
  EXPECT_GE(inotify_add_watch(watch, "/dev/infiniband", IN_CREATE), 0);
  close(watch);
}

TEST_F(Inside, AChannelIsTheSameNodeByNameAndByDescriptor) {
  const int fd = open_channel();
  struct statx by_name, by_fd;
  ASSERT_EQ(statx(AT_FDCWD, "/dev/infiniband/rdma_cm", 0, STATX_BASIC_STATS, &by_name), 0);
  ASSERT_EQ(statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &by_fd), 0);
  struct stat plain;
  ASSERT_EQ(fstatat(fd, "", &plain, AT_EMPTY_PATH), 0);
  for (const unsigned mode : {unsigned{by_name.stx_mode}, unsigned{by_fd.stx_mode}, plain.st_mode})
    EXPECT_TRUE(S_ISCHR(mode));
  EXPECT_EQ(by_fd.stx_rdev_minor, by_name.stx_rdev_minor);
  EXPECT_EQ(minor(plain.st_rdev), by_name.stx_rdev_minor);
  close(fd);
}

std::string first_line(FILE* file) {
  char text[64] = {};
  return file != nullptr && fgets(text, sizeof text, file) != nullptr ? text : "";
}

TEST_F(Inside, RelativePathsLeadToTheTree) {
  const int sys = open("/sys/class", O_DIRECTORY | O_RDONLY | O_CLOEXEC);
  ASSERT_GE(sys, 0);
  for (const char* name : {"infiniband/uwarp_lo/node_type", "./infiniband/uwarp_lo/node_type"}) {
    struct stat status;
    EXPECT_EQ(faccessat(sys, name, R_OK, 0), 0) << name;
    EXPECT_EQ(fstatat(sys, name, &status, 0), 0) << name;
    FILE* file = fdopen(openat(sys, name, O_RDONLY | O_CLOEXEC), "r");
    EXPECT_EQ(first_line(file), "4: RNIC\n") << name;
    if (file != nullptr) fclose(file);
  }
  EXPECT_EQ(openat(sys, "infiniband/nobody", O_RDONLY), -1);
  EXPECT_GE(faccessat(sys, "net", F_OK, 0), 0);
  EXPECT_EQ(faccessat(-1, "infiniband/uwarp_lo", F_OK, 0), -1);
  EXPECT_EQ(errno, EBADF);
  close(sys);
  EXPECT_EQ(system("cd /sys/class && cat infiniband/uwarp_lo/node_type >/dev/null"), 0);
  // A counter is the same file under each of its names.
  const int port = open("/sys/class/infiniband/uwarp_lo/ports/1", O_DIRECTORY | O_RDONLY);
  const int counter = openat(port, "counters/port_xmit_data", O_RDONLY | O_CLOEXEC);
  struct stat by_name, by_fd;
  EXPECT_EQ(fstat(counter, &by_fd), 0);
  EXPECT_EQ(stat("/sys/class/infiniband/uwarp_lo/ports/1/counters/port_xmit_data", &by_name), 0);
  EXPECT_NE(by_fd.st_ino, by_name.st_ino)
      << "this is the file of the tree, which always contains 0";
  close(counter);
  close(port);
}

TEST_F(Inside, AFileIsReopenedOnTheTree) {
  FILE* file = fopen("/dev/null", "r");
  ASSERT_NE(file, nullptr);
  file = freopen("/sys/class/infiniband/uwarp_lo/node_type", "r", file);
  EXPECT_EQ(first_line(file), "4: RNIC\n");
  file = freopen("/sys/class/infiniband/uwarp_lo/ports/1/counters/link_downed", "r", file);
  EXPECT_EQ(first_line(file), "0\n");
  file = freopen("/dev/infiniband/rdma_cm", "r+", file);
  ASSERT_NE(file, nullptr);
  EXPECT_GT(create_id(fileno(file)), 0);
  const int fd = fileno(file);
  file = freopen("/dev/null", "r", file);
  ASSERT_NE(file, nullptr);
  EXPECT_EQ(fileno(file), fd);
  EXPECT_LT(create_id(fd), 0) << "the channel still exists";
  fclose(file);
}

TEST_F(Inside, PatternsMatchTheTree) {
  for (const auto& [pattern, name] :
       {std::pair{"/sys/class/infiniband/*/ports/*/state",
                  std::string("/sys/class/infiniband/uwarp_lo/ports/1/state")},
        std::pair{"/dev/infiniband/uverbs*", uverbs_path()}}) {
    glob_t found{};
    ASSERT_EQ(glob(pattern, 0, nullptr, &found), 0) << pattern;
    const std::set<std::string> names(found.gl_pathv, found.gl_pathv + found.gl_pathc);
    EXPECT_TRUE(names.contains(name)) << name;
    globfree(&found);
  }
  glob_t found{};
  EXPECT_EQ(glob("/sys/class/infiniband/no*", 0, nullptr, &found), GLOB_NOMATCH);
  globfree(&found);
}

std::set<std::string> visited;

TEST_F(Inside, WalksGoThroughTheTree) {
  const std::string gids = "/sys/class/infiniband/uwarp_lo/ports/1/gids";
  visited.clear();
  EXPECT_EQ(ftw(
                "/sys/class/infiniband/uwarp_lo",
                [](const char* path, const struct stat*, int) {
                  visited.insert(path);
                  return 0;
                },
                8),
            0);
  EXPECT_TRUE(visited.contains(gids + "/0"));
  EXPECT_TRUE(visited.contains("/sys/class/infiniband/uwarp_lo"));
  visited.clear();
  const auto visit = [](const char* path, const struct stat* status, int type, FTW* place) {
    EXPECT_EQ(type == FTW_F, !S_ISDIR(status->st_mode)) << path;
    visited.insert(path + place->base);
    return place->level == 1 && strcmp(path + place->base, "rdma_cm") == 0 ? 7 : 0;
  };
  EXPECT_EQ(nftw(gids.c_str(), visit, 8, FTW_PHYS), 0);
  EXPECT_TRUE(visited.contains("gids") && visited.contains("15"));
  visited.clear();
  EXPECT_EQ(nftw((gids + "//").c_str(), visit, 8, 0), 0);
  EXPECT_TRUE(visited.contains("gids") && visited.contains("15"));
  EXPECT_EQ(nftw("/dev/infiniband", visit, 8, FTW_PHYS), 7);
  std::string path = "/sys/class/infiniband";
  char* paths[] = {path.data(), nullptr};
  FTS* walk = fts_open(paths, FTS_PHYSICAL | FTS_NOCHDIR, nullptr);
  ASSERT_NE(walk, nullptr);
  visited.clear();
  while (FTSENT* entry = fts_read(walk)) {
    visited.insert(entry->fts_name);
    EXPECT_EQ(access(entry->fts_path, F_OK), 0) << entry->fts_path;
  }
  fts_close(walk);
  EXPECT_TRUE(visited.contains("uwarp_lo") && visited.contains("node_guid"));
}

// Fortified programs call these functions, which headers do not declare.
extern "C" ssize_t __readlinkat_chk(int, const char*, char*, size_t, size_t);
extern "C" ssize_t __readlink_chk(const char*, char*, size_t, size_t);

TEST_F(Inside, ANodeIsNoLinkAndHasARealName) {
  const std::string node = uverbs_path();
  char name[PATH_MAX];
  EXPECT_EQ(__readlinkat_chk(AT_FDCWD, node.c_str(), name, sizeof name, sizeof name), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(__readlink_chk(node.c_str(), name, sizeof name, sizeof name), -1);
  EXPECT_EQ(errno, EINVAL);
  ASSERT_NE(realpath(node.c_str(), name), nullptr);
  EXPECT_EQ(name, node);
  dirent** entries = nullptr;
  const int sys = open("/sys/class", O_DIRECTORY | O_RDONLY);
  const int count = scandirat(sys, "infiniband/uwarp_lo/ports", &entries, nullptr, nullptr);
  EXPECT_EQ(count, 1 + 2);
  for (int i = 0; i < count; ++i) free(entries[i]);
  free(entries);
  close(sys);
}

TEST_F(Inside, CountersAreMadeWhenOpened) {
  std::ifstream file("/sys/class/infiniband/uwarp_lo/ports/1/counters/port_xmit_data");
  uint64_t value = 1;
  file >> value;
  EXPECT_TRUE(file.good() || file.eof());
}

TEST_F(Inside, UverbsNode) {
  ASSERT_GE(first_uverbs(), 192);
  const int fd = open(uverbs_path().c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  struct stat by_path, by_fd;
  ASSERT_EQ(stat(uverbs_path().c_str(), &by_path), 0);
  ASSERT_EQ(fstat(fd, &by_fd), 0);
  EXPECT_TRUE(S_ISCHR(by_fd.st_mode));
  EXPECT_EQ(by_fd.st_rdev, by_path.st_rdev);
  EXPECT_EQ(access(uverbs_path().c_str(), R_OK | W_OK), 0);
  EXPECT_EQ(access("/dev/infiniband/uverbs191", F_OK), -1);
  EXPECT_EQ(access("/dev/infiniband/uverbs9999999", F_OK), -1);
  // This is not a command.
  EXPECT_EQ(write(fd, "x", 1), -1);
  EXPECT_EQ(close(fd), 0);
}

TEST_F(Inside, RdmaCmNode) {
  const int fd = open_channel();
  ASSERT_GE(fd, 0);
  struct stat status;
  ASSERT_EQ(fstat(fd, &status), 0);
  EXPECT_TRUE(S_ISCHR(status.st_mode));
  EXPECT_EQ(fcntl(fd, F_GETFD), FD_CLOEXEC);
  EXPECT_GT(create_id(fd), 0);
  EXPECT_EQ(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
  EXPECT_EQ(get_event(fd), -EAGAIN);
  EXPECT_EQ(close(fd), 0);
  EXPECT_EQ(create_id(fd), -EBADF);
}

TEST_F(Inside, AFreedNumberIsForeignAgain) {
  const int fd = open_channel();
  ASSERT_EQ(close(fd), 0);
  const int file = open("/dev/null", O_WRONLY);
  ASSERT_EQ(file, fd);
  EXPECT_EQ(write(file, "xyz", 3), 3);
  close(file);
}

constexpr char kCounter[] = "/sys/class/infiniband/uwarp_lo/ports/1/counters/port_xmit_data";

/// Opens an ordinary file, which must get the number `fd` and be read like one.
void expect_ordinary_file_at(int fd) {
  char path[] = "/tmp/uwtest-XXXXXX";
  const int file = mkstemp(path);
  unlink(path);
  ASSERT_EQ(file, fd);
  EXPECT_EQ(write(file, "of the application", 18), 18);
  EXPECT_EQ(lseek(file, 0, SEEK_SET), 0);
  char text[32] = {};
  EXPECT_EQ(read(file, text, sizeof text), 18);
  EXPECT_STREQ(text, "of the application");
  struct stat status;
  EXPECT_EQ(fstat(file, &status), 0);
  EXPECT_EQ(status.st_size, 18);
  close(file);
}

// fclose() closes the descriptor inside libc.
TEST_F(Inside, ANumberFreedByStdioIsForeignAgain) {
  for (const char* path : {kCounter, "/dev/infiniband/rdma_cm"}) {
    FILE* file = fopen(path, "r+");
    ASSERT_NE(file, nullptr) << path;
    const int fd = fileno(file);
    ASSERT_EQ(fclose(file), 0);
    expect_ordinary_file_at(fd);
  }
  const int fd = open(uverbs_path().c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(fclose(fdopen(fd, "r+")), 0);
  expect_ordinary_file_at(fd);
}

TEST_F(Inside, ACounterClosedUnnoticedIsNoCounterAnyMore) {
  const int fd = open(kCounter, O_RDONLY);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(syscall(SYS_close, fd), 0);
  expect_ordinary_file_at(fd);
}

TEST_F(Inside, CopiesAreTheSameChannel) {
  const int fd = open_channel();
  const int copies[] = {dup(fd), fcntl(fd, F_DUPFD, 100), fcntl(fd, F_DUPFD_CLOEXEC, 200),
                        dup2(fd, 300), dup3(fd, 301, O_CLOEXEC)};
  // The channel lives as long as one of its descriptors.
  close(fd);
  for (const int copy : copies) {
    ASSERT_GE(copy, 0);
    EXPECT_GT(create_id(copy), 0) << copy;
    close(copy);
  }
}

TEST_F(Inside, DupOverAChannelEndsIt) {
  const int fd = open_channel();
  const int file = open("/dev/null", O_WRONLY);
  ASSERT_EQ(dup2(file, fd), fd);
  EXPECT_EQ(write(fd, "xyz", 3), 3);
  // A failed dup changes nothing.
  const int other = open_channel();
  EXPECT_EQ(dup2(9999, other), -1);
  EXPECT_GT(create_id(other), 0);
  close(fd);
  close(file);
  close(other);
}

TEST_F(Inside, AVforkChildLeavesTheTableAlone) {
  const int fd = open_channel();
  const pid_t child = vfork();
  if (child == 0) {
    for (int i = 3; i < 64; ++i) close(i);
    _exit(0);
  }
  EXPECT_EQ(exit_status_of(child), 0);
  EXPECT_GT(create_id(fd), 0);
  close(fd);
}

TEST_F(Inside, AChildMadeBehindLibcHasNoEngine) {
  const int fd = open_channel();
  const long child = syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr);
  if (child == 0) {
    errno = 0;
    const char command[8] = {};
    const ssize_t written = write(fd, command, sizeof command);
    _exit(written < 0 && errno == EIO ? 0 : 1);
  }
  EXPECT_EQ(exit_status_of(static_cast<pid_t>(child)), 0);
  EXPECT_GT(create_id(fd), 0);
  close(fd);
}

/// The engine's fd that holds the lock of the tree's owner file; -1 if it is closed.
int engine_fd(const struct stat& owner) {
  for (int fd = 0; fd < 4096; ++fd) {
    struct stat status;
    if (syscall(SYS_newfstatat, fd, "", &status, AT_EMPTY_PATH) == 0 &&
        status.st_dev == owner.st_dev && status.st_ino == owner.st_ino) {
      return fd;
    }
  }
  return -1;
}

std::atomic<bool> enough{false};
void* use_the_tree(void*) {
  while (!enough) access("/sys/class/infiniband/uwarp_lo/node_guid", F_OK);
  return nullptr;
}

// Neither call runs fork handlers, so other threads may have held the engine's locks. Such a child
// finds no RDMA and does not wait for a lock. Programs that it executes do find RDMA.
TEST_F(Inside, AChildWithoutForkHandlersHasNoRdma) {
  ASSERT_EQ(access("/sys/class/infiniband/uwarp_lo", F_OK), 0);
  struct stat owner;
  ASSERT_EQ(stat((root() + "/owner").c_str(), &owner), 0);
  ASSERT_GE(engine_fd(owner), 0);
  const int channel = open_channel();
  const std::string uverbs = uverbs_path();
  pthread_t other;
  ASSERT_EQ(pthread_create(&other, nullptr, use_the_tree, nullptr), 0);
  pid_t (*const forks[])() = {
      [] { return _Fork(); },
      [] {
        return static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr));
      },
  };
  for (int i = 0; i < 200; ++i) {
    const pid_t child = forks[i % 2]();
    if (child == 0) {
      const itimerval in_30_s{{0, 0}, {30, 0}};  // arm64 has no alarm(2)
      syscall(SYS_setitimer, ITIMER_REAL, &in_30_s, nullptr);
      struct stat status;
      char byte;
      const bool refused = open("/dev/infiniband/rdma_cm", O_RDWR) == -1 &&
                           stat(uverbs.c_str(), &status) == -1 &&
                           access("/sys/class/infiniband/uwarp_lo", F_OK) == -1 &&
                           write(channel, "12345678", 8) == -1 && read(-1, &byte, 1) == -1;
      const bool closed = i % 2 == 1 || engine_fd(owner) == -1;
      if (i >= 2) _exit(refused && closed && close(channel) == 0 ? 0 : 1);
      execl("/bin/sh", "sh", "-c", "test -e /sys/class/infiniband/uwarp_lo", nullptr);
      _exit(2);
    }
    EXPECT_EQ(exit_status_of(child), 0) << i;
  }
  enough = true;
  pthread_join(other, nullptr);
  EXPECT_GT(create_id(channel), 0);
  close(channel);
}

// A function that no library has, like a newer one when libc is older.
TEST(Real, AFunctionThatIsNotThereFails) {
  using namespace uwarp_preload;
  static constinit Real<int(int)> number("uwarp_no_such_function");
  static constinit Real<ssize_t(int)> size("uwarp_no_such_function");
  static constinit Real<char*(int)> pointer("uwarp_no_such_function");
  for (int i = 0; i < 2; ++i) {
    errno = 0;
    EXPECT_EQ(number(1), -1);
    EXPECT_EQ(errno, ENOSYS);
    errno = 0;
    EXPECT_EQ(pointer(1), nullptr);
    EXPECT_EQ(errno, ENOSYS);
    EXPECT_EQ(size(1), -1);
  }
}

TEST_F(Inside, AForkedChildMayGoOnWithAnEmptyChannel) {
  const int fd = open_channel();
  const int id = create_id(fd);
  ASSERT_GT(id, 0);
  const pid_t child = fork();
  if (child == 0) {
    // A daemon does this after daemon().
    int failures = 0;
    if (create_id(fd) <= 0) failures |= 1;
    if (socket(AF_NETLINK, SOCK_RAW, kNetlinkRdma) != -1) failures |= 2;
    if (access("/sys/class/infiniband/uwarp_lo", F_OK) != 0) failures |= 4;
    if (access((root() + "/class/infiniband_verbs").c_str(), F_OK) != 0) failures |= 8;
    const int fresh = open_channel();
    if (create_id(fresh) <= 0) failures |= 16;
    close(fresh);
    const int folder = open("/dev/infiniband", O_DIRECTORY | O_RDONLY);
    const int relative = openat(folder, "rdma_cm", O_RDWR);
    if (create_id(relative) <= 0) failures |= 32;
    _exit(failures);
  }
  EXPECT_EQ(exit_status_of(child), 0);
  // The parent's tree and channel are unchanged.
  EXPECT_EQ(access((root() + "/class/infiniband_verbs").c_str(), F_OK), 0);
  EXPECT_EQ(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
  EXPECT_EQ(get_event(fd), -EAGAIN);
  EXPECT_GT(create_id(fd), id);
  pollfd wait{fd, POLLIN, 0};
  EXPECT_EQ(poll(&wait, 1, 0), 0);
  close(fd);
}

TEST_F(Inside, AnExecutedChildHasATreeOfItsOwn) {
  const std::string command =
      "test \"$SYSFS_PATH\" != '" + root() + "' && ls /sys/class/infiniband | grep -q uwarp_lo";
  EXPECT_EQ(system(command.c_str()), 0);
  EXPECT_EQ(access((root() + "/class/infiniband_verbs").c_str(), F_OK), 0);
}

TEST_F(Inside, ClosingEveryFdLeavesTheEngineWorking) {
  const pid_t child = fork();
  if (child == 0) {
    const int fd = open_channel();
    if (create_id(fd) <= 0) _exit(1);
    for (int i = 3; i < 2000; ++i) close(i);
    closefrom(3);
    close_range(3, UINT_MAX, 0);
    const int again = open_channel();
    _exit(create_id(again) > 0 && again == 3 ? 0 : 2);
  }
  EXPECT_EQ(exit_status_of(child), 0);
}

TEST_F(Inside, CloseRangeEndsChannelsInIt) {
  const int fd = open_channel();
  const int high = fcntl(fd, F_DUPFD, 500);
  EXPECT_EQ(close_range(500, 600, 0), 0);
  EXPECT_EQ(create_id(high), -EBADF);
  EXPECT_GT(create_id(fd), 0);
  close(fd);
}

#if !defined(__SANITIZE_ADDRESS__)  // it treats the stack of a cancelled thread as poisoned
void* block_in_get_event(void* fd) {
  get_event(*static_cast<int*>(fd));
  return nullptr;
}

TEST_F(Inside, CancellationInsideTheInterposedWrite) {
  int fd = open_channel();
  pthread_t thread;
  ASSERT_EQ(pthread_create(&thread, nullptr, block_in_get_event, &fd), 0);
  usleep(20'000);
  ASSERT_EQ(pthread_cancel(thread), 0);
  void* result;
  ASSERT_EQ(pthread_join(thread, &result), 0);
  EXPECT_EQ(result, PTHREAD_CANCELED);
  EXPECT_GT(create_id(fd), 0);
  close(fd);
}

#endif

void ignore_signal(int) {}

/// Interrupts a thread in GET_EVENT with signals, then gives it an event.
struct Disturbance {
  pthread_t thread;
  int fd;
  uint32_t id;
  bool restart;
  std::atomic<bool> interrupted = false;
};

void* disturb(void* argument) {
  auto* const disturbance = static_cast<Disturbance*>(argument);
  // The thread may not be in GET_EVENT yet. A call that goes on says nothing, so some have to do.
  for (int i = 0; disturbance->restart ? i != 30 : !disturbance->interrupted; ++i) {
    pthread_kill(disturbance->thread, SIGUSR1);
    usleep(1000);
  }
  resolve_loopback(disturbance->fd, disturbance->id);
  return nullptr;
}

TEST_F(Inside, ASignalInterruptsOrRestartsGetEventAsItsHandlerSays) {
  const int fd = open_channel();
  for (const bool restart : {false, true}) {
    struct sigaction action {};
    action.sa_handler = ignore_signal;
    action.sa_flags = restart ? SA_RESTART : 0;
    sigaction(SIGUSR1, &action, nullptr);
    Disturbance disturbance{pthread_self(), fd, static_cast<uint32_t>(create_id(fd)), restart};
    pthread_t other;
    pthread_create(&other, nullptr, disturb, &disturbance);
    constexpr int kAddressResolved = 0;
    if (!restart) {
      EXPECT_EQ(get_event(fd), -EINTR);
      disturbance.interrupted = true;
    }
    int event;
    do event = get_event(fd);  // a signal may be on its way
    while (!restart && event == -EINTR);
    EXPECT_EQ(event, kAddressResolved);
    pthread_join(other, nullptr);
  }
  close(fd);
}

TEST_F(Inside, WrongPathsAreLibcsBusiness) {
  EXPECT_EQ(open("/dev/infiniband/nothing", O_RDONLY), -1);
  EXPECT_EQ(access("", F_OK), -1);
  EXPECT_EQ(errno, ENOENT);
  // Through a plain function pointer, because the declaration of access() forbids null.
  const auto plain_access =
      reinterpret_cast<int (*)(const char*, int)>(dlsym(RTLD_DEFAULT, "access"));
  EXPECT_EQ(plain_access(nullptr, F_OK), -1);
  EXPECT_EQ(errno, EFAULT);
  std::string longest = root() + "/" + std::string(PATH_MAX, 'x');
  EXPECT_EQ(access(longest.c_str(), F_OK), -1);
  EXPECT_EQ(errno, ENAMETOOLONG);
}

TEST_F(Inside, OnlyOneEngineThatLibibverbsSharesWithUs) {
  void* library = dlopen("libibverbs.so.1", RTLD_NOW);
  ASSERT_NE(library, nullptr);
  auto list = reinterpret_cast<void** (*)(int*)>(dlsym(library, "ibv_get_device_list"));
  auto name = reinterpret_cast<const char* (*)(void*)>(dlsym(library, "ibv_get_device_name"));
  int count = 0;
  void** devices = list(&count);
  ASSERT_NE(devices, nullptr);
  ASSERT_GT(count, 0);
  EXPECT_STREQ(name(devices[count - 1]), "uwarp_lo");
  // The same devices again: the tree is still the same one.
  void** again = list(&count);
  EXPECT_EQ(again[count - 1], devices[count - 1]);
  auto release = reinterpret_cast<void (*)(void**)>(dlsym(library, "ibv_free_device_list"));
  release(devices);
  release(again);
}

}  // namespace
