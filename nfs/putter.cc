// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "nfs/putter.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <system_error>

#include "nfs/file_descriptor.h"
#include "nfs/interrupt.h"
#include "nfs/temporary_name.h"

namespace uwarp::nfs {

namespace {

NewAttributes times_of(const struct stat& status) {
  using How = NewAttributes::NewTime::How;
  NewAttributes wanted;
  wanted.accessed = {How::kClientTime, nfs_time(status.st_atim)};
  wanted.modified = {How::kClientTime, nfs_time(status.st_mtim)};
  return wanted;
}

NewAttributes new_file(const struct stat& status) {
  NewAttributes wanted;
  wanted.mode = status.st_mode & 0777;
  return wanted;
}

struct stat status_of(const std::filesystem::path& path) {
  struct stat status;
  if (lstat(path.c_str(), &status) < 0) {
    throw std::system_error(errno, std::generic_category(), path);
  }
  return status;
}

}  // namespace

void Putter::put(const std::filesystem::path& from, const Place& to) {
  Interrupt::check();
  struct stat status = status_of(from);
  try {
    if (S_ISDIR(status.st_mode)) {
      put_directory(from, to);
    } else if (S_ISLNK(status.st_mode) && options_.recursive) {
      put_symlink(from, to);
    } else if (S_ISREG(status.st_mode) || S_ISLNK(status.st_mode)) {
      put_file(from, to);
    } else if (options_.recursive) {
      fprintf(stderr, "nfs-rdma: %s: special file left out\n", from.c_str());
    } else {
      throw RpcError(from.string() + ": not a regular file");
    }
  } catch (const NfsError& error) {
    throw error.about(to.name);
  }
}

void Putter::take_back(const FileHandle& directory, const std::string& name) {
  try {
    client_.remove(directory, name);
  } catch (const std::exception&) {
    fprintf(stderr, "nfs-rdma: the incomplete %s remains on the server\n", name.c_str());
  }
}

void Putter::put_file(const std::filesystem::path& from, const Place& to) {
  FileDescriptor file(open(from.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK), from);
  struct stat status;
  if (fstat(file.get(), &status) < 0 || !S_ISREG(status.st_mode)) {
    throw RpcError(from.string() + ": not a regular file");
  }
  std::string unfinished = temporary_name(to.name);
  OpenFile opened = client_.create(to.directory, unfinished, CreateHow::kGuarded, new_file(status));
  try {
    {
      ProgressBar progress(to.name, static_cast<uint64_t>(status.st_size));
      writer_.write(file.get(), static_cast<uint64_t>(status.st_size), opened, progress);
    }
    if (options_.preserve_times) {
      client_.setattr(opened.handle, times_of(status));
    }
    client_.close(opened);
    Interrupt::check();
    client_.rename(to.directory, unfinished, to.directory, to.name);
  } catch (const RpcUnanswered& error) {
    // Asking the server for something more would take as long again.
    throw RpcUnanswered(to.name + ": " + error.what() + "; an incomplete " + unfinished +
                        " may remain on the server");
  } catch (const std::exception& error) {
    client_.abandon(opened);
    take_back(to.directory, unfinished);
    if (dynamic_cast<const RpcError*>(&error) != nullptr) {
      throw RpcError(to.name + ": " + error.what());
    }
    throw;
  }
}

void Putter::put_symlink(const std::filesystem::path& from, const Place& to) {
  std::string target = std::filesystem::read_symlink(from);
  try {
    client_.make_symlink(to.directory, to.name, target);
  } catch (const NfsError& error) {
    if (error.status() != NfsStatus::kExist) {
      throw;
    }
    client_.remove(to.directory, to.name);
    client_.make_symlink(to.directory, to.name, target);
  }
}

void Putter::put_directory(const std::filesystem::path& from, const Place& to) {
  if (!options_.recursive) {
    throw RpcError(from.string() + ": is a directory (-r copies it)");
  }
  struct stat status = status_of(from);
  FileHandle directory;
  try {
    directory = client_.make_directory(to.directory, to.name, new_file(status));
  } catch (const NfsError& error) {
    if (error.status() != NfsStatus::kExist) {
      throw;
    }
    directory = client_.lookup(to.directory, to.name).handle;
  }
  for (const auto& entry : std::filesystem::directory_iterator(from)) {
    put(entry.path(), {directory, entry.path().filename()});
  }
  if (options_.preserve_times) {
    client_.setattr(directory, times_of(status));
  }
}

}  // namespace uwarp::nfs
