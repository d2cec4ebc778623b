// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "processes.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#include <charconv>
#include <cstring>
#include <memory>
#include <string_view>

#include "page_reader.h"
#include "user_shares.h"

namespace stat_view {
namespace {

/// Twice what this release makes: a later one may append to slots.
constexpr size_t kLargestPage = 2 * uwarp::page_bytes();

/// What is looked at for each user and, of all users but our own, together. A full page of each
/// kind of object has 32,832 slots, which are 17 MB of JSON.
constexpr size_t kFilesOfUser = 1u << 18, kFilesOfOthers = 1u << 20;
constexpr size_t kPagesOfUser = 1024, kPagesOfOthers = 4096;
constexpr size_t kSlotsOfUser = 1u << 17, kSlotsOfOthers = 1u << 19;
/// How many entries of /proc/PID/fd the opening of one file counts for.
constexpr size_t kOpenCost = 16;
/// Pages that cannot be read are named up to this number for a user, and counted from then on.
constexpr size_t kNamedOfUser = 8, kNamedOfOthers = 64;

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
  OpenFile(const std::string& path, int flags) : fd_(open(path.c_str(), flags | O_CLOEXEC)) {}
  ~OpenFile() {
    if (fd_ >= 0) close(fd_);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  int fd() const { return fd_; }

 private:
  const int fd_;
};

struct FileStatus {
  bool regular = false;
  dev_t device = 0;
  ino_t file = 0;
  uid_t owner = 0;
};

/// Of a file that may be any file of a stranger: what the kernel knows by itself, without asking
/// the process behind a file system of FUSE or the server of a network file system, which could let
/// us wait.
std::optional<FileStatus> status_of(int folder, const char* path, int flags) {
  struct statx found {};
  if (statx(folder, path, flags | AT_STATX_DONT_SYNC, STATX_TYPE | STATX_INO | STATX_UID, &found) !=
      0)
    return std::nullopt;
  return FileStatus{S_ISREG(found.stx_mode), makedev(found.stx_dev_major, found.stx_dev_minor),
                    found.stx_ino, found.stx_uid};
}

/// The file system of all memory files (memfd_create(2)): the kernel has one, which no user can
/// mount.
dev_t device_of_memory_files() {
  const int fd = memfd_create("uwarp-stat-probe", MFD_CLOEXEC);
  const auto status = fd < 0 ? std::nullopt : status_of(fd, "", AT_EMPTY_PATH);
  if (fd >= 0) close(fd);
  return status ? status->device : 0;
}

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
  } else if (file.st_size <= 0) {
    why = "empty";
  } else if (static_cast<uint64_t>(file.st_size) > kLargestPage) {
    why = "larger than a page of counters can be";
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

/// What may still be looked at, for one look.
struct Processes::Budget {
  UserShares files{kFilesOfUser, kFilesOfOthers, geteuid()};
  UserShares pages{kPagesOfUser, kPagesOfOthers, geteuid()};
  UserShares slots{kSlotsOfUser, kSlotsOfOthers, geteuid()};
  UserShares named{kNamedOfUser, kNamedOfOthers, geteuid()};
  std::map<uid_t, size_t> left_out;
};

Processes::Processes(bool all_users, int only, std::string proc)
    : all_users_(all_users),
      only_(only),
      proc_(std::move(proc)),
      memory_device_(device_of_memory_files()) {}

Snapshot Processes::look() {
  Budget budget;
  forget_the_gone();
  for (const auto& [pid, known] : known_) (void)budget.pages.take(known.uid, 1);
  find_new(budget);
  Snapshot snapshot;
  snapshot.time_ns = clock_ns(CLOCK_REALTIME);
  snapshot.monotonic_ns = clock_ns(CLOCK_MONOTONIC);
  read(snapshot, budget);
  for (const auto& [uid, processes] : budget.left_out)
    snapshot.left_out.push_back({uid, processes});
  return snapshot;
}

void Processes::read(Snapshot& snapshot, Budget& budget) const {
  for (const auto& [pid, known] : known_) {
    Process process;
    process.pid = pid;
    process.uid = known.uid;
    std::string why = known.why;
    if (why.empty()) {
      const size_t before = budget.slots.left(known.uid);
      size_t left = before;
      why = read_page(known.page.bytes(), process, left);
      (void)budget.slots.take(known.uid, before - left);
    }
    if (why.empty())
      snapshot.processes.push_back(std::move(process));
    else if (budget.named.take(known.uid, 1))
      snapshot.unreadable.push_back({pid, std::move(why)});
    else
      ++budget.left_out[known.uid];
  }
}

// Processes that have ended, that execute another program now, or that have closed their page.
void Processes::forget_the_gone() {
  std::erase_if(known_, [](const auto& entry) {
    const Known& known = entry.second;
    const auto now = status_of(AT_FDCWD, known.link.c_str(), 0);
    return !now || now->device != known.device || now->file != known.file;
  });
}

void Processes::find_new(Budget& budget) {
  if (only_ != 0) {
    if (!known_.contains(only_)) look_into(only_, budget);
    return;
  }
  for_each_entry(proc_, [&](const char* name) {
    const int pid = number_of(name);
    if (pid != 0 && !known_.contains(pid)) look_into(pid, budget);
    return true;
  });
}

void Processes::look_into(int pid, Budget& budget) {
  const std::string folder = proc_ + '/' + std::to_string(pid);
  const auto owner = Credentials::read(folder);
  if (!owner) return;
  const uid_t user = owner->effective();
  // A process that the user names by its pid may belong to any user.
  if (!all_users_ && only_ == 0 && user != geteuid()) return;
  std::optional<Known> found;
  const bool whole = search(folder + "/fd/", *owner, budget, found);
  if (found && budget.pages.take(user, 1))
    known_.emplace(pid, std::move(*found));
  else if (found || !whole)
    ++budget.left_out[user];
}

/// Looks for the page among the open files of a process. One that cannot be read is taken if there
/// is no other: a process may have been handed the file of another one. False: not all files were
/// looked at.
bool Processes::search(const std::string& files, const Credentials& owner, Budget& budget,
                       std::optional<Known>& found) const {
  bool whole = budget.files.take(owner.effective(), kOpenCost);
  if (!whole) return false;
  for_each_entry(files, [&](const char* name) {
    const std::string link = files + name;
    whole = budget.files.take(owner.effective(), 1);
    if (!whole || !leads_to_page(link)) return whole;
    whole = budget.files.take(owner.effective(), kOpenCost);
    if (!whole) return false;
    auto page = page_at(link, owner);
    // A child that was forked a moment ago still has its parent's page.
    if (!page || shown_already(page->device, page->file)) return true;
    if (!found || page->why.empty()) found = std::move(page);
    return !found->why.empty();
  });
  return whole;
}

/// The file may be another one by now than it was when its name was looked at: so it is known by a
/// descriptor that has opened nothing (O_PATH) before it is opened.
std::optional<Processes::Known> Processes::page_at(const std::string& link,
                                                   const Credentials& owner) const {
  const OpenFile place(link, O_PATH);
  const auto status = place.fd() < 0 ? std::nullopt : status_of(place.fd(), "", AT_EMPTY_PATH);
  if (!status) return std::nullopt;
  Known known;
  known.link = link;
  known.device = status->device;
  known.file = status->file;
  known.uid = owner.effective();
  if (!status->regular || status->device != memory_device_) {
    known.why = "not memory of the kind that uwarp makes";
  } else if (!owner.may_have_made(status->owner)) {
    known.why = "made by another user, " + std::to_string(status->owner);
  } else {
    // O_NONBLOCK: a file with a lease is refused, not waited for.
    const OpenFile file("/proc/self/fd/" + std::to_string(place.fd()), O_RDONLY | O_NONBLOCK);
    if (auto page = MappedPage::map(file.fd(), known.why)) known.page = std::move(*page);
  }
  return known;
}

bool Processes::shown_already(dev_t device, ino_t file) const {
  for (const auto& [pid, known] : known_)
    if (known.device == device && known.file == file) return true;
  return false;
}

}  // namespace stat_view
