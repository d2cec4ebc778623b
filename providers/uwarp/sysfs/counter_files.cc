// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "sysfs/counter_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "engine/engine.h"
#include "events/application_files.h"
#include "events/raw_fds.h"
#include "net/net_device.h"
#include "sysfs/sysfs_tree.h"

namespace uwarp {

namespace {

constexpr unsigned kCloseOnExec = 1;  // MFD_CLOEXEC

std::string text_of(const CounterFile& counter) {
  // Before the first queue pair there is nothing to count.
  Engine* engine = Engine::current();
  const uint64_t value =
      engine != nullptr ? counter.value(engine->stat_page().totals(counter.device)) : 0;
  return std::to_string(value) + '\n';
}

bool stat_fd(int fd, struct stat& status) {
  return syscall(SYS_newfstatat, fd, "", &status, AT_EMPTY_PATH) == 0;
}

void put_text(int fd, const std::string& text) {
  syscall(SYS_pwrite64, fd, text.data(), text.size(), 0L);
  syscall(SYS_ftruncate, fd, text.size());
}

class OpenCounter final : public ApplicationFile {
 public:
  /// `status` is that of its descriptor when it was opened. That may have been closed without our
  /// hearing of it, and be a file of the application now.
  OpenCounter(CounterFile counter, const struct stat& status)
      : counter_(std::move(counter)), status_(status) {}

  ssize_t read(int fd, std::span<std::byte> out) override {
    refresh(fd);
    return ApplicationFile::read(fd, out);
  }
  void refresh(int fd) override {
    if (syscall(SYS_lseek, fd, 0, SEEK_CUR) != 0) return;
    struct stat now;
    if (stat_fd(fd, now) && now.st_dev == status_.st_dev && now.st_ino == status_.st_ino)
      return put_text(fd, text_of(counter_));
    mark_for_application(fd, UWARP_FD_FOREIGN);
    application_file_closed(fd);
  }

 private:
  const CounterFile counter_;
  const struct stat status_;
};

}  // namespace

int open_counter_file(std::string_view path, int flags) {
  CounterFile counter = counter_file(path);
  if (counter.value == nullptr || net_devices()->by_verbs_name(counter.device) == nullptr) {
    errno = ENOENT;
    return -1;
  }
  OwnedFd fd(static_cast<int>(syscall(SYS_memfd_create, "uwarp-counter",
                                      (flags & O_CLOEXEC) != 0 ? kCloseOnExec : 0u)),
             close_quietly);
  struct stat status;
  if (fd.get() < 0 || !stat_fd(fd.get(), status)) return -1;
  put_text(fd.get(), text_of(counter));
  give_to_application(fd.get(), UWARP_FD_COUNTER,
                      std::make_shared<OpenCounter>(std::move(counter), status));
  return fd.take();
}

}  // namespace uwarp
