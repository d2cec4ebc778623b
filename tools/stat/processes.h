// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Finds the processes that have a page of counters, by their open files in /proc, and keeps the
// pages mapped between two readings.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "credentials.h"
#include "snapshot.h"

namespace stat_view {

class MappedPage {
 public:
  MappedPage() = default;
  MappedPage(MappedPage&& other) noexcept
      : address_(std::exchange(other.address_, nullptr)), size_(other.size_) {}
  MappedPage& operator=(MappedPage&& other) noexcept {
    std::swap(address_, other.address_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~MappedPage();

  /// Maps the file of `fd`, if it is sealed against becoming shorter and no larger than a page can
  /// be. Otherwise says `why` not.
  static std::optional<MappedPage> map(int fd, std::string& why);
  std::span<const std::byte> bytes() const {
    return {static_cast<const std::byte*>(address_), size_};
  }

 private:
  void* address_ = nullptr;
  size_t size_ = 0;
};

class Processes {
 public:
  /// `all_users`: also processes of other users that the kernel lets us read. `only`: this pid
  /// alone, of any user; 0: all.
  Processes(bool all_users, int only, std::string proc = "/proc");

  /// Reads all pages. What one user's processes can cost is bounded; what is beyond is counted in
  /// Snapshot::left_out. No call waits for another process.
  Snapshot look();

 private:
  struct Known {
    std::string link;  // of /proc that leads to the page
    dev_t device = 0;
    ino_t file = 0;
    uint32_t uid = 0;
    MappedPage page;
    std::string why;  // not empty: cannot be read
  };
  struct Budget;

  void forget_the_gone();
  void find_new(Budget& budget);
  void look_into(int pid, Budget& budget);
  bool search(const std::string& files, const Credentials& owner, Budget& budget,
              std::optional<Known>& found) const;
  std::optional<Known> page_at(const std::string& link, const Credentials& owner) const;
  void read(Snapshot& snapshot, Budget& budget) const;
  bool shown_already(dev_t device, ino_t file) const;

  const bool all_users_;
  const int only_;
  const std::string proc_;
  const dev_t memory_device_;
  std::map<int, Known> known_;
};

}  // namespace stat_view
