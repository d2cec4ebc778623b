// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// A folder of files as the sysfs tree needs it, by raw system calls relative to an open folder: the
// preload redirects paths below the tree to this code, which must not come back to itself.
#pragma once

#include <ctime>
#include <string>
#include <string_view>
#include <vector>

namespace uwarp {

/// An open folder. Move-only. Functions return false and errno on failure; paths are relative.
class Folder {
 public:
  Folder() = default;
  /// Opens an existing one; check is_open().
  explicit Folder(const std::string& path);
  ~Folder();
  Folder(Folder&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  Folder& operator=(Folder&& other) noexcept;

  bool is_open() const { return fd_ >= 0; }
  int fd() const { return fd_; }

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
  std::vector<std::string> names(const std::string& path) const;
  /// With all below it; what is not there counts as removed.
  void remove(const std::string& path) const;

 private:
  int fd_ = -1;
};

}  // namespace uwarp
