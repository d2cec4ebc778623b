// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// Folder: openat and friends through syscall().
#include "kernel/tree_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <memory>

#include "kernel/raw_fds.h"

namespace uwarp {
namespace {

constexpr int kFolderFlags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;

int open_at(int folder, const std::string& path, int flags) {
  return static_cast<int>(syscall(SYS_openat, folder, path.c_str(), flags, 0644));
}

bool write_all(int fd, std::string_view content) {
  while (!content.empty()) {
    const ssize_t written = raw_write(fd, content.data(), content.size());
    if (written < 0 && errno != EINTR) return false;
    if (written > 0) content.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

std::optional<FileIdentity> identity_at(int folder, const char* path, int flags) {
  struct stat status;
  if (syscall(SYS_newfstatat, folder, path, &status, flags) != 0) return std::nullopt;
  if (!S_ISDIR(status.st_mode) || (status.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    errno = EACCES;
    return std::nullopt;
  }
  return FileIdentity{status.st_dev, status.st_ino, status.st_uid};
}

}  // namespace

std::optional<FileIdentity> identity_if_private(const char* path) {
  return identity_at(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW);
}

Folder::Folder(const std::string& path) : fd_(open_at(AT_FDCWD, path, kFolderFlags)) {}

Folder Folder::open_itself(const std::string& path) {
  return Folder(Opened{open_at(AT_FDCWD, path, kFolderFlags | O_NOFOLLOW)});
}

Folder Folder::open(const std::string& path) const {
  return Folder(Opened{open_at(fd_, path, kFolderFlags | O_NOFOLLOW)});
}

std::optional<FileIdentity> Folder::identity_if_private() const {
  return identity_at(fd_, "", AT_EMPTY_PATH);
}

Folder::~Folder() {
  if (fd_ >= 0) raw_close(fd_);
}

Folder& Folder::operator=(Folder&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

bool Folder::has(const std::string& path) const {
  return syscall(SYS_faccessat, fd_, path.c_str(), F_OK) == 0;
}

bool Folder::make_folder(const std::string& path) const {
  return syscall(SYS_mkdirat, fd_, path.c_str(), 0755) == 0;
}

bool Folder::make_folders(const std::string& path) const {
  for (size_t slash = path.find('/'); slash != std::string::npos;
       slash = path.find('/', slash + 1)) {
    if (!make_folder(path.substr(0, slash)) && errno != EEXIST) return false;
  }
  return make_folder(path) || errno == EEXIST;
}

bool Folder::put_file(const std::string& path, std::string_view content) const {
  const std::string fresh = path + ".new";
  constexpr int kFlags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  int fd = open_at(fd_, fresh, kFlags);
  if (fd < 0 && errno == EEXIST) {
    // An earlier attempt did not get to its end.
    syscall(SYS_unlinkat, fd_, fresh.c_str(), 0);
    fd = open_at(fd_, fresh, kFlags);
  }
  if (fd < 0) return false;
  const bool written = write_all(fd, content);
  raw_close(fd);
  return written && rename(fresh, path);
}

bool Folder::link(const std::string& target, const std::string& path) const {
  return syscall(SYS_symlinkat, target.c_str(), fd_, path.c_str()) == 0;
}

bool Folder::rename(const std::string& from, const std::string& to) const {
  return syscall(SYS_renameat2, fd_, from.c_str(), fd_, to.c_str(), 0) == 0;
}

bool Folder::set_time(const std::string& path, const timespec& time) const {
  const timespec both[2] = {time, time};
  return syscall(SYS_utimensat, fd_, path.c_str(), both, AT_SYMLINK_NOFOLLOW) == 0;
}

std::vector<std::string> Folder::names(const std::string& path, size_t most) const {
  std::vector<std::string> result;
  const int fd = open_at(fd_, path, kFolderFlags | O_NOFOLLOW);
  if (fd < 0) return result;
  constexpr auto kClose = [](DIR* open) { closedir(open); };
  const std::unique_ptr<DIR, decltype(kClose)> listing(fdopendir(fd));
  if (listing == nullptr) {
    raw_close(fd);
    return result;
  }
  while (const dirent* entry = readdir(listing.get())) {
    const std::string name = entry->d_name;
    if (name == "." || name == "..") continue;
    if (result.size() == most) break;
    result.push_back(name);
  }
  return result;
}

bool Folder::may_be_own(const std::string& name) const {
  constexpr int kFlags = AT_NO_AUTOMOUNT | AT_STATX_DONT_SYNC;
  struct statx here {
  }, there{};
  if (syscall(SYS_statx, fd_, "", AT_EMPTY_PATH | kFlags, STATX_TYPE, &here) != 0 ||
      syscall(SYS_statx, fd_, name.c_str(), AT_SYMLINK_NOFOLLOW | kFlags, STATX_UID, &there) != 0)
    return errno == ENOSYS || errno == EPERM;  // old sandboxes do not know the call
  return there.stx_uid == static_cast<uid_t>(syscall(SYS_geteuid)) &&
         here.stx_dev_major == there.stx_dev_major && here.stx_dev_minor == there.stx_dev_minor;
}

void Folder::remove(const std::string& path) const {
  if (syscall(SYS_unlinkat, fd_, path.c_str(), 0) == 0 || (errno != EISDIR && errno != EPERM)) {
    return;
  }
  // By descriptor: between two steps another user may exchange a folder of theirs for a link.
  if (const Folder below = open(path); below.is_open()) {
    for (const std::string& name : below.names(".")) below.remove(name);
  }
  syscall(SYS_unlinkat, fd_, path.c_str(), AT_REMOVEDIR);
}

}  // namespace uwarp
