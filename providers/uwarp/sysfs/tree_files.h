// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A folder of files as the sysfs tree needs it, by raw system calls relative to an open folder: the
// preload redirects paths below the tree to this code, which must not come back to itself.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <ctime>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace uwarp {

/// Which file it is, independent of its name, and its owner.
struct FileIdentity {
  dev_t device = 0;
  ino_t inode = 0;
  uid_t owner = 0;
  bool operator==(const FileIdentity&) const = default;
};

/// Of a folder that only its owner can write to. Anything else, a symbolic link to one too, gives
/// nothing and errno: EACCES, or why it cannot be looked at.
std::optional<FileIdentity> identity_if_private(const char* path);

/// An open folder. Move-only. Functions return false and errno on failure; paths are relative. The
/// last part of a path is never followed if it is a symbolic link.
class Folder {
 public:
  Folder() = default;
  /// Opens an existing one, also by way of a symbolic link; check is_open().
  explicit Folder(const std::string& path);
  /// The same, unless the path ends in a symbolic link.
  static Folder open_itself(const std::string& path);
  /// One below this.
  Folder open(const std::string& path) const;
  ~Folder();
  Folder(Folder&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  Folder& operator=(Folder&& other) noexcept;

  bool is_open() const { return fd_ >= 0; }
  int fd() const { return fd_; }
  std::optional<FileIdentity> identity_if_private() const;
  /// The caller closes it from now on.
  int take_fd() { return std::exchange(fd_, -1); }

  /// A symbolic link counts if it leads somewhere.
  bool has(const std::string& path) const;
  bool make_folder(const std::string& path) const;
  /// All missing folders of the path too.
  bool make_folders(const std::string& path) const;
  /// Creates the file, or replaces it in one step; its folder must exist.
  bool put_file(const std::string& path, std::string_view content) const;
  bool link(const std::string& target, const std::string& path) const;
  bool rename(const std::string& from, const std::string& to) const;
  /// The modification time of a file or folder.
  bool set_time(const std::string& path, const timespec& time) const;
  /// `most`: of a folder in which other users can make any number.
  std::vector<std::string> names(const std::string& path, size_t most = SIZE_MAX) const;
  /// Whether a file of this folder may be one of our user's: by what the kernel knows without
  /// asking a file system that another user may have mounted there, whose process could let us
  /// wait.
  bool may_be_own(const std::string& name) const;
  /// With all below it; what is not there counts as removed.
  void remove(const std::string& path) const;

 private:
  struct Opened {
    int fd;
  };
  explicit Folder(Opened opened) : fd_(opened.fd) {}

  int fd_ = -1;
};

}  // namespace uwarp
