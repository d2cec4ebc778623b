// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A file that a process fills by itself (captures, traces), under a name that the user has given
// and that several processes may have been given.
#pragma once

#include <sys/uio.h>

#include <memory>
#include <span>
#include <string>

namespace uwarp {

class OutputFile {
 public:
  /// %p in `name` becomes the pid. The file is emptied; one that another process is filling is left
  /// to it, and ".PID" is put behind the name. Null and a complaint if it cannot be made.
  static std::unique_ptr<OutputFile> create(const std::string& name, std::string& complaint);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  /// Appends all pieces. False and errno: the file is full, or cannot be written any more, or is
  /// the parent's in a forked child. Not thread-safe; changes `pieces`.
  bool append(std::span<iovec> pieces);
  const std::string& path() const { return path_; }

 private:
  OutputFile(int fd, std::string path);

  const int fd_;
  const long process_;
  const std::string path_;
};

}  // namespace uwarp
