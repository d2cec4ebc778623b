// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "nfs/initial_content.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <system_error>
#include <vector>

#include "nfs/file_descriptor.h"

namespace uwarp::nfs {

namespace {

constexpr size_t kPieceBytes = 1 << 20;

Attributes attributes_of(const struct stat& status, FileType type) {
  Attributes attributes;
  attributes.type = type;
  attributes.mode = status.st_mode & 07777;
  attributes.uid = status.st_uid;
  attributes.gid = status.st_gid;
  attributes.accessed = nfs_time(status.st_atim);
  attributes.modified = nfs_time(status.st_mtim);
  attributes.changed = nfs_time(status.st_ctim);
  return attributes;
}

struct CloseDirectory {
  void operator()(DIR* directory) const { closedir(directory); }
};

class Loader {
 public:
  explicit Loader(MemoryTree& tree) : tree_(tree), piece_(kPieceBytes) {}

  void load_directory(FileDescriptor from, NodeId to, const std::string& shown) {
    std::unique_ptr<DIR, CloseDirectory> listing(fdopendir(from.get()));
    if (!listing) {
      throw std::system_error(errno, std::generic_category(), shown);
    }
    int directory = from.release();  // the listing closes it
    while (const dirent* entry = readdir(listing.get())) {
      std::string name = entry->d_name;
      if (name != "." && name != "..") {
        load(directory, name, to, shown + "/" + name);
      }
    }
  }

 private:
  void load(int directory, const std::string& name, NodeId to, const std::string& shown) {
    struct stat status;
    if (fstatat(directory, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) < 0) {
      throw std::system_error(errno, std::generic_category(), shown);
    }
    if (S_ISREG(status.st_mode)) {
      NodeId file = tree_.adopt(to, name, attributes_of(status, FileType::kRegular));
      load_file(open_in(directory, name, 0, shown), file, static_cast<uint64_t>(status.st_size),
                shown);
    } else if (S_ISDIR(status.st_mode)) {
      NodeId made = tree_.adopt(to, name, attributes_of(status, FileType::kDirectory));
      load_directory(open_in(directory, name, O_DIRECTORY, shown), made, shown);
    } else if (S_ISLNK(status.st_mode)) {
      load_symlink(directory, name,
                   tree_.adopt(to, name, attributes_of(status, FileType::kSymlink)), shown);
    }
  }

  static FileDescriptor open_in(int directory, const std::string& name, int flags,
                                const std::string& shown) {
    return {openat(directory, name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | flags),
            shown};
  }

  void load_file(const FileDescriptor& from, NodeId to, uint64_t size, const std::string& shown) {
    off_t offset = 0;
    // Holes stay holes, which saves memory.
    while ((offset = lseek(from.get(), offset, SEEK_DATA)) >= 0) {
      ssize_t count = pread(from.get(), piece_.data(), piece_.size(), offset);
      if (count < 0) {
        throw std::system_error(errno, std::generic_category(), shown);
      }
      if (count == 0) {
        break;
      }
      tree_.adopt_content(to, static_cast<uint64_t>(offset),
                          ConstBytes(piece_).first(static_cast<size_t>(count)));
      offset += count;
    }
    tree_.adopt_size(to, size);
  }

  void load_symlink(int directory, const std::string& name, NodeId to, const std::string& shown) {
    char target[kPathBytesMax + 1];
    ssize_t length = readlinkat(directory, name.c_str(), target, sizeof target);
    if (length < 0) {
      throw std::system_error(errno, std::generic_category(), shown);
    }
    tree_.adopt_target(to, std::string(target, static_cast<size_t>(length)));
  }

  MemoryTree& tree_;
  std::vector<std::byte> piece_;
};

}  // namespace

void load_initial_content(const std::string& directory, MemoryTree& tree) {
  FileDescriptor root(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC), directory);
  struct stat status;
  if (fstat(root.get(), &status) < 0) {
    throw std::system_error(errno, std::generic_category(), directory);
  }
  tree.adopt_root(attributes_of(status, FileType::kDirectory));
  Loader(tree).load_directory(std::move(root), MemoryTree::kRoot, directory);
}

}  // namespace uwarp::nfs
