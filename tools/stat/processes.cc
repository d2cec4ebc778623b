// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "processes.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <charconv>
#include <cstring>
#include <memory>
#include <string_view>

#include "page_reader.h"

namespace stat_view {
namespace {

constexpr size_t kLargestPage = size_t{256} << 20;

uint64_t clock_ns(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

/// 0 if the text is no positive number.
int number_of(std::string_view text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc{} && end == text.data() + text.size() && number > 0 ? number : 0;
}

template <typename Visit>
void for_each_entry(const std::string& folder, Visit visit) {
  constexpr auto kClose = [](DIR* open) { closedir(open); };
  const std::unique_ptr<DIR, decltype(kClose)> listing(opendir(folder.c_str()));
  if (listing == nullptr) return;
  while (const dirent* entry = readdir(listing.get())) {
    if (!visit(entry->d_name)) return;
  }
}

bool leads_to_page(const std::string& link) {
  const std::string wanted = std::string("/memfd:") + uwarp::kPageName;
  char target[64];
  const ssize_t length = readlink(link.c_str(), target, sizeof target);
  if (length < static_cast<ssize_t>(wanted.size())) return false;
  const std::string_view found(target, static_cast<size_t>(length));
  return found == wanted || found == wanted + " (deleted)";
}

class OpenFile {
 public:
  explicit OpenFile(const std::string& path)
      : fd_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)) {}
  ~OpenFile() {
    if (fd_ >= 0) close(fd_);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  int fd() const { return fd_; }

 private:
  const int fd_;
};

}  // namespace

MappedPage::~MappedPage() {
  if (address_ != nullptr) munmap(address_, size_);
}

std::optional<MappedPage> MappedPage::map(int fd, std::string& why) {
  struct stat file {};
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || fstat(fd, &file) != 0 || !S_ISREG(file.st_mode)) {
    why = "not memory of the kind that uwarp makes";
  } else if ((seals & F_SEAL_SHRINK) == 0) {
    why = "not sealed";  // if it became shorter, reading it would end us by SIGBUS
  } else if (file.st_size <= 0 || static_cast<uint64_t>(file.st_size) > kLargestPage) {
    why = "of a size that cannot be";
  } else {
    MappedPage page;
    page.size_ = static_cast<size_t>(file.st_size);
    void* mapped = mmap(nullptr, page.size_, PROT_READ, MAP_SHARED, fd, 0);
    if (mapped != MAP_FAILED) {
      page.address_ = mapped;
      return page;
    }
    why = std::strerror(errno);
  }
  return std::nullopt;
}

Snapshot Processes::look() {
  forget_the_gone();
  find_new();
  Snapshot snapshot;
  snapshot.time_ns = clock_ns(CLOCK_REALTIME);
  snapshot.monotonic_ns = clock_ns(CLOCK_MONOTONIC);
  for (const auto& [pid, known] : known_) {
    Process process;
    process.pid = pid;
    process.uid = known.uid;
    const std::string why = known.why.empty() ? read_page(known.page.bytes(), process) : known.why;
    if (why.empty())
      snapshot.processes.push_back(std::move(process));
    else
      snapshot.unreadable.push_back({pid, why});
  }
  return snapshot;
}

// Processes that have ended, that execute another program now, or that have closed their page.
void Processes::forget_the_gone() {
  std::erase_if(known_, [](const auto& entry) {
    const Known& known = entry.second;
    struct stat file {};
    return stat(known.link.c_str(), &file) != 0 || file.st_dev != known.device ||
           file.st_ino != known.file;
  });
}

void Processes::find_new() {
  if (only_ != 0) {
    if (!known_.contains(only_)) look_into(only_);
    return;
  }
  for_each_entry(proc_, [&](const char* name) {
    const int pid = number_of(name);
    if (pid != 0 && !known_.contains(pid)) look_into(pid);
    return true;
  });
}

void Processes::look_into(int pid) {
  const std::string folder = proc_ + '/' + std::to_string(pid);
  struct stat owner {};
  if (stat(folder.c_str(), &owner) != 0) return;
  // A process that the user names by its pid may belong to any user.
  if (!all_users_ && only_ == 0 && owner.st_uid != geteuid()) return;
  const std::string files = folder + "/fd";
  for_each_entry(files, [&](const char* name) {
    const std::string link = files + '/' + name;
    if (!leads_to_page(link)) return true;
    const OpenFile file(link);
    struct stat status {};
    if (file.fd() < 0 || fstat(file.fd(), &status) != 0) return true;
    // A child that was forked a moment ago still has its parent's page.
    if (shown_already(status.st_dev, status.st_ino)) return false;
    Known known;
    known.link = link;
    known.device = status.st_dev;
    known.file = status.st_ino;
    known.uid = owner.st_uid;
    if (auto page = MappedPage::map(file.fd(), known.why)) known.page = std::move(*page);
    known_.emplace(pid, std::move(known));
    return false;
  });
}

bool Processes::shown_already(dev_t device, ino_t file) const {
  for (const auto& [pid, known] : known_)
    if (known.device == device && known.file == file) return true;
  return false;
}

}  // namespace stat_view
