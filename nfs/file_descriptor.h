// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Owns a file descriptor: closes it in its destructor.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

namespace uwarp::nfs {

class FileDescriptor {
 public:
  /// The number, or -1 with errno: throws std::system_error that names `subject`.
  FileDescriptor(int number, const std::string& subject) : number_(number) {
    if (number < 0) {
      throw std::system_error(errno, std::generic_category(), subject);
    }
  }
  FileDescriptor(FileDescriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  ~FileDescriptor() {
    if (number_ >= 0) {
      close(number_);
    }
  }

  int get() const { return number_; }
  /// Gives the descriptor up: the caller closes it.
  int release() { return std::exchange(number_, -1); }

 private:
  int number_;
};

}  // namespace uwarp::nfs
