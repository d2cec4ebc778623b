// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// What a program sees that runs under libuwarp-preload.so. These tests are skipped in an ordinary
// run; preload_test.cc starts this binary again under the preload with UWARP_TEST_INSIDE set.
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_user_cm.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <set>
#include <string>

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
  // First in the file: the tree does not exist yet, its name does.
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
  dirent** entries = nullptr;
  const int count =
      scandir("/sys/class/infiniband/uwarp_lo/ports/1/gids", &entries, nullptr, nullptr);
  EXPECT_EQ(count, 16 + 2);
  for (int i = 0; i < count; ++i) free(entries[i]);
  free(entries);
  // Neighbours are the kernel's.
  EXPECT_EQ(access("/sys/class/infiniband_foo", F_OK), -1);
  EXPECT_EQ(access("/sys/class/net", F_OK), 0);
}

TEST_F(Inside, ShellToolsListNodesAndFolders) {
  // They also change folders and ask for extended attributes.
  EXPECT_EQ(system("ls -l /sys/class/infiniband /dev/infiniband/rdma_cm > /dev/null"), 0);
  EXPECT_EQ(system("cd /sys/class/infiniband && test -e uwarp_lo/node_guid"), 0);
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
  // Not a command.
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

/// A file of the application's that gets the number `fd`, and that a read does no harm.
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

// By a call of libc's own, as fclose() does it.
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
  // The channel lives as long as one of them.
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
  // One that fails changes nothing.
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

TEST_F(Inside, AChildThatLibcKnowsNothingOfHasNoEngine) {
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

/// An fd of the engine's: the one that holds the lock of the tree's owner file. -1 if it is closed.
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

// Neither runs fork handlers, so the engine's locks are as other threads have left them. Such a
// child finds no RDMA, does not wait, and executes programs that do find it.
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
      syscall(SYS_alarm, 30);
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

// A call that no later library has, as an older libc would be asked for a newer one.
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
    // As a daemon does after daemon().
    int failures = 0;
    if (create_id(fd) <= 0) failures |= 1;
    if (socket(AF_NETLINK, SOCK_RAW, kNetlinkRdma) != -1) failures |= 2;
    if (access("/sys/class/infiniband/uwarp_lo", F_OK) != 0) failures |= 4;
    if (access((root() + "/class/infiniband_verbs").c_str(), F_OK) != 0) failures |= 8;
    const int fresh = open_channel();
    if (create_id(fresh) <= 0) failures |= 16;
    close(fresh);
    _exit(failures);
  }
  EXPECT_EQ(exit_status_of(child), 0);
  // The parent's tree and channel are untouched.
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

TEST_F(Inside, ClosingEveryFdDoesNotHurtTheEngine) {
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

#if !defined(__SANITIZE_ADDRESS__)  // It takes the stack of a cancelled thread for poisoned.
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

/// Disturbs a thread in GET_EVENT by a signal, then gives it an event.
struct Disturbance {
  pthread_t thread;
  int fd;
  uint32_t id;
};

void* disturb(void* argument) {
  const auto* disturbance = static_cast<Disturbance*>(argument);
  usleep(30'000);
  pthread_kill(disturbance->thread, SIGUSR1);
  usleep(30'000);
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
    Disturbance disturbance{pthread_self(), fd, static_cast<uint32_t>(create_id(fd))};
    pthread_t other;
    pthread_create(&other, nullptr, disturb, &disturbance);
    constexpr int kAddressResolved = 0;
    if (!restart) {
      EXPECT_EQ(get_event(fd), -EINTR);
    }
    EXPECT_EQ(get_event(fd), kAddressResolved);
    pthread_join(other, nullptr);
  }
  close(fd);
}

TEST_F(Inside, WrongPathsAreLibcsBusiness) {
  EXPECT_EQ(open("/dev/infiniband/", O_RDONLY) >= 0, false);
  EXPECT_EQ(access("", F_OK), -1);
  EXPECT_EQ(errno, ENOENT);
  // By a plain pointer, because the declaration of access() forbids null.
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
  // The same devices again: the tree has kept its identity.
  void** again = list(&count);
  EXPECT_EQ(again[count - 1], devices[count - 1]);
  auto release = reinterpret_cast<void (*)(void**)>(dlsym(library, "ibv_free_device_list"));
  release(devices);
  release(again);
}

}  // namespace
