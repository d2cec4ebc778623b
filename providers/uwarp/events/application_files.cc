// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "events/application_files.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "base/mutex.h"
#include "base/process_own.h"
#include "events/raw_fds.h"

namespace uwarp {

namespace {

struct Files {
  Mutex lock;  ///< a leaf
  std::unordered_map<int, std::shared_ptr<ApplicationFile>> by_fd GUARDED_BY(lock);
};

ProcessOwn<Files> files;

}  // namespace

void give_to_application(int fd, uwarp_fd_kind kind, std::shared_ptr<ApplicationFile> file) {
  // An old file of this number was closed behind the preload's back.
  application_file_closed(fd);
  Files& all = files.get();
  {
    const Lock guard(all.lock);
    all.by_fd[fd] = std::move(file);
  }
  mark_for_application(fd, kind);
}

std::shared_ptr<ApplicationFile> application_file(int fd) {
  Files& all = files.get();
  const Lock guard(all.lock);
  const auto it = all.by_fd.find(fd);
  return it == all.by_fd.end() ? nullptr : it->second;
}

void application_file_closed(int fd) {
  Files& all = files.get();
  std::shared_ptr<ApplicationFile> file;
  {
    const Lock guard(all.lock);
    auto closed = all.by_fd.extract(fd);
    if (closed.empty()) return;
    file = std::move(closed.mapped());
    if (std::any_of(all.by_fd.begin(), all.by_fd.end(),
                    [&](const auto& other) { return other.second == file; }))
      return;
  }
  file->last_closed();
}

void application_file_duplicated(int fd, int copy) {
  auto file = application_file(fd);
  if (file == nullptr) return;
  Files& all = files.get();
  const Lock guard(all.lock);
  all.by_fd[copy] = std::move(file);
}

}  // namespace uwarp
