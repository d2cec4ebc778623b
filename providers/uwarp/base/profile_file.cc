// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "base/profile_file.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <string_view>
#include <vector>

namespace uwarp {

namespace {

constexpr char kProfileEnding[] = ".profile";
constexpr size_t kProfileBytesMax = size_t{64} << 10;

/// A build tree and a moved installation first. The library may lie one folder deeper than the
/// programs (/usr/lib/x86_64-linux-gnu).
std::vector<std::string> folders_near(const std::string& folder) {
  constexpr char kBelow[] = "/share/uwarp/profiles/";
  return {folder + "/.." + kBelow, folder + "/../.." + kBelow, UWARP_INSTALL_PROFILEDIR "/"};
}

bool is_profile_name(const std::string& wanted) {
  return !wanted.empty() && wanted.find('/') == std::string::npos;
}

std::optional<std::string> find_profile(const std::string& wanted, const std::string& folder) {
  if (!is_profile_name(wanted)) return wanted;
  for (const std::string& near : folders_near(folder)) {
    std::string path = near + wanted + kProfileEnding;
    if (syscall(SYS_faccessat, AT_FDCWD, path.c_str(), R_OK) == 0) return path;
  }
  return std::nullopt;
}

/// 0 or an errno. A FIFO without a writer, or a terminal, must not make the program wait.
int read_profile(const std::string& path, std::string& text) {
  constexpr int kFlags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
  const int fd = static_cast<int>(syscall(SYS_openat, AT_FDCWD, path.c_str(), kFlags));
  if (fd < 0) return errno;
  struct stat status;
  int error = syscall(SYS_newfstatat, fd, "", &status, AT_EMPTY_PATH) != 0 ? errno : 0;
  if (error == 0 && !S_ISREG(status.st_mode)) error = EINVAL;
  text.resize(kProfileBytesMax + 1);
  const long got = error == 0 ? syscall(SYS_read, fd, text.data(), text.size()) : 0;
  if (got < 0) error = errno;
  syscall(SYS_close, fd);
  if (error != 0) return error;
  text.resize(static_cast<size_t>(got));
  return text.size() > kProfileBytesMax ? EFBIG : 0;
}

}  // namespace

ProfileFile ProfileFile::read(const std::string& wanted, const std::string& folder) {
  ProfileFile file;
  const auto path = find_profile(wanted, folder);
  if (!path) {
    file.error = "there is no profile " + wanted +
                 "; those that come with uwarp are irdma-like, mlx5-like, rxe, siw and small, and "
                 "the name of a file has a slash in it";
    return file;
  }
  file.path = *path;
  std::string text;
  if (const int error = read_profile(*path, text)) {
    file.error = *path + ": " + (error == EINVAL ? "no regular file" : std::strerror(error));
    return file;
  }
  const std::string wrong = file.profile.parse(text);
  if (!wrong.empty()) file.error = *path + ":" + wrong;
  return file;
}

std::string own_library_folder() {
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(&own_library_folder), &info) == 0 || info.dli_fname == nullptr)
    return ".";
  const std::string_view self = info.dli_fname;
  const size_t slash = self.rfind('/');
  return slash == std::string_view::npos ? "." : std::string(self.substr(0, slash));
}

}  // namespace uwarp
