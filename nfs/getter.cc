// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "nfs/getter.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <system_error>

#include "nfs/file_descriptor.h"
#include "nfs/interrupt.h"
#include "nfs/printable.h"
#include "nfs/temporary_name.h"

namespace uwarp::nfs {

namespace {

constexpr mode_t kPermissions = 0777;

void check_local(int result, const std::string& subject) {
  if (result < 0) {
    throw std::system_error(errno, std::generic_category(), subject);
  }
}

void set_times(int file, const Attributes& attributes) {
  timespec times[2] = {{attributes.accessed.seconds, attributes.accessed.nanoseconds},
                       {attributes.modified.seconds, attributes.modified.nanoseconds}};
  futimens(file, times);
}

/// Devices, sockets and the like are not replaced by files.
void check_replaceable(const Getter::LocalRange& place) {
  struct stat status;
  if (fstatat(place.directory, place.name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 &&
      !S_ISREG(status.st_mode) && !S_ISLNK(status.st_mode)) {
    throw RpcError(place.shown + ": exists, and is not a regular file");
  }
}

/// A temporary name beside a place, taken away again unless it becomes that of the place.
class UnfinishedFile {
 public:
  explicit UnfinishedFile(const Getter::LocalRange& place)
      : place_(place), name_(temporary_name(place.name)) {}
  ~UnfinishedFile() {
    if (!name_.empty()) {
      unlinkat(place_.directory, name_.c_str(), 0);
    }
  }
  const char* name() const { return name_.c_str(); }
  void finish() {
    check_local(renameat(place_.directory, name_.c_str(), place_.directory, place_.name.c_str()),
                place_.shown);
    name_.clear();
  }

 private:
  const Getter::LocalRange& place_;
  std::string name_;
};

}  // namespace

void Getter::get(const Found& from, const LocalRange& to, const std::string& shown) {
  get_node(from, to, shown, 0);
}

void Getter::get_node(const Found& from, const LocalRange& to, const std::string& shown,
                      unsigned depth) {
  Interrupt::check();
  try {
    switch (from.attributes.type) {
      case FileType::kRegular:
        get_file(from, to, shown);
        return;
      case FileType::kDirectory:
        get_directory(from, to, shown, depth);
        return;
      case FileType::kSymlink:
        get_symlink(from, to);
        return;
      default:
        fprintf(stderr, "nfs-rdma: %s: special file left out\n", printable(shown).c_str());
        return;
    }
  } catch (const NfsError& error) {
    throw error.about(shown);
  }
}

void Getter::get_file(const Found& from, const LocalRange& to, const std::string& shown) {
  check_replaceable(to);
  UnfinishedFile unfinished(to);
  mode_t mode = from.attributes.mode & kPermissions;
  FileDescriptor file(openat(to.directory, unfinished.name(),
                             O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode | S_IWUSR),
                      to.shown);
  OpenFile opened = client_.open(from);
  try {
    ProgressBar progress(printable(to.name), from.attributes.size);
    reader_.read(opened, from.attributes.size, file.get(), progress);
  } catch (const std::system_error& error) {
    client_.abandon(opened);
    throw std::system_error(error.code(), to.shown);
  } catch (const RpcError& error) {
    client_.abandon(opened);
    throw RpcError(shown + ": " + error.what());
  } catch (...) {
    client_.abandon(opened);
    throw;
  }
  client_.close(opened);
  if (!(mode & S_IWUSR)) {
    struct stat status;
    check_local(fstat(file.get(), &status), to.shown);
    fchmod(file.get(), status.st_mode & kPermissions & ~S_IWUSR);
  }
  if (options_.preserve_times) {
    set_times(file.get(), from.attributes);
  }
  check_local(close(file.release()), to.shown);  // where the file system says what went wrong
  unfinished.finish();
}

void Getter::get_symlink(const Found& from, const LocalRange& to) {
  std::string target = client_.read_link(from.handle);
  if (!options_.recursive) {
    throw RpcError(to.name + ": is a symbolic link to " + target);
  }
  check_replaceable(to);
  UnfinishedFile unfinished(to);
  check_local(symlinkat(target.c_str(), to.directory, unfinished.name()), to.shown);
  unfinished.finish();
}

void Getter::get_directory(const Found& from, const LocalRange& to, const std::string& shown,
                           unsigned depth) {
  if (!options_.recursive) {
    throw RpcError(shown + ": is a directory (-r copies it)");
  }
  if (depth == kDepthMax) {
    throw RpcError(shown + ": directories nested too deep");
  }
  if (mkdirat(to.directory, to.name.c_str(), kPermissions) < 0 && errno != EEXIST) {
    throw std::system_error(errno, std::generic_category(), to.shown);
  }
  // Without following a link: the server may list one name twice.
  FileDescriptor directory(
      openat(to.directory, to.name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC),
      to.shown);
  for (const DirectoryEntry& entry : client_.list(from.handle)) {
    Found child;
    if (entry.handle && entry.attributes) {
      child = {*entry.handle, *entry.attributes, {from.handle, entry.name}};
    } else {
      child = client_.lookup(from.handle, entry.name);
    }
    get_node(child, {directory.get(), entry.name, to.shown + "/" + entry.name},
             shown + "/" + entry.name, depth + 1);
  }
  if (options_.preserve_times) {
    set_times(directory.get(), from.attributes);
  }
}

}  // namespace uwarp::nfs
