// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// Sorted listings and the interposed readdir(), telldir() and the like. While no sorted listing is
// open, a foreign one costs one load.
#include "preload/listing.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <atomic>
#include <cerrno>

#include "preload/real.h"

namespace uwarp_preload {
namespace {

constinit Real<dirent*(DIR*)> real_readdir("readdir");
constinit Real<int(DIR*, dirent*, dirent**)> real_readdir_r("readdir_r");
constinit Real<int(DIR*)> real_closedir("closedir");
constinit Real<void(DIR*)> real_rewinddir("rewinddir");
constinit Real<long(DIR*)> real_telldir("telldir");
constinit Real<void(DIR*, long)> real_seekdir("seekdir");

struct Listing {
  DIR* folder;
  dirent* entries;
  size_t count;
  size_t position;
  Listing* next;
};

constinit std::atomic<int> open_listings{0};
constinit pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;  // guards the list; a leaf
Listing* listings = nullptr;

class Guard {
 public:
  Guard() { pthread_mutex_lock(&lock); }
  ~Guard() { pthread_mutex_unlock(&lock); }
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;
};

Listing** find_locked(DIR* folder) {
  Listing** at = &listings;
  while (*at != nullptr && (*at)->folder != folder) at = &(*at)->next;
  return at;
}

/// uverbs9 before uverbs10.
int by_number(const void* a, const void* b) {
  const char* left = static_cast<const dirent*>(a)->d_name;
  const char* right = static_cast<const dirent*>(b)->d_name;
  const size_t left_length = strlen(left);
  const size_t right_length = strlen(right);
  if (left_length != right_length) return left_length < right_length ? -1 : 1;
  return strcmp(left, right);
}

void release(Listing* listing) {
  if (listing == nullptr) return;
  free(listing->entries);
  free(listing);
}

bool read_all(Listing& listing) {
  size_t capacity = 0;
  while (const dirent* entry = real_readdir(listing.folder)) {
    if (listing.count == capacity) {
      capacity = capacity == 0 ? 16 : capacity * 2;
      void* larger = realloc(listing.entries, capacity * sizeof(dirent));
      if (larger == nullptr) return false;
      listing.entries = static_cast<dirent*>(larger);
    }
    // Entries are as long as their name needs, not as long as their type.
    memset(&listing.entries[listing.count], 0, sizeof(dirent));
    dirent& copy = listing.entries[listing.count++];
    memcpy(&copy, entry, entry->d_reclen);
    // Links stand for nodes and for devices of the host: stat() says what they are.
    if (copy.d_type == DT_LNK) copy.d_type = DT_UNKNOWN;
  }
  return true;
}

/// Calls `function` with the sorted listing, under the lock; false for any other folder.
template <typename Function>
bool with_listing(DIR* folder, const Function& function) {
  if (open_listings.load(std::memory_order_relaxed) == 0) [[likely]]
    return false;
  const Guard guard;
  Listing* listing = *find_locked(folder);
  if (listing == nullptr) return false;
  function(*listing);
  return true;
}

/// The next entry of a sorted listing; false for any other folder.
bool next_entry(DIR* folder, dirent*& entry) {
  return with_listing(folder, [&](Listing& listing) {
    entry = listing.position < listing.count ? &listing.entries[listing.position++] : nullptr;
  });
}

}  // namespace

void sort_listing(DIR* folder) {
  const int saved = errno;
  auto* listing = static_cast<Listing*>(calloc(1, sizeof(Listing)));
  if (listing == nullptr) return;
  listing->folder = folder;
  if (read_all(*listing)) {
    // A folder that has been removed has no entry at all.
    if (listing->count != 0) qsort(listing->entries, listing->count, sizeof(dirent), by_number);
    const Guard guard;
    listing->next = listings;
    listings = listing;
    open_listings.fetch_add(1, std::memory_order_relaxed);
  } else {
    release(listing);
    real_rewinddir(folder);
  }
  errno = saved;
}

void forget_listings() {
  // The lock may be held by a thread that does not exist here.
  lock = PTHREAD_MUTEX_INITIALIZER;
  listings = nullptr;
  open_listings.store(0, std::memory_order_relaxed);
}

}  // namespace uwarp_preload

using namespace uwarp_preload;

extern "C" {

dirent* readdir(DIR* folder) {
  dirent* entry;
  return next_entry(folder, entry) ? entry : real_readdir(folder);
}

int readdir_r(DIR* folder, dirent* entry, dirent** result) {
  dirent* next;
  if (!next_entry(folder, next)) return real_readdir_r(folder, entry, result);
  if (next != nullptr) memcpy(entry, next, next->d_reclen);
  *result = next == nullptr ? nullptr : entry;
  return 0;
}

void rewinddir(DIR* folder) noexcept {
  with_listing(folder, [](Listing& listing) { listing.position = 0; });
  real_rewinddir(folder);
}

long telldir(DIR* folder) noexcept {
  long position;
  return with_listing(
             folder,
             [&](const Listing& listing) { position = static_cast<long>(listing.position); })
             ? position
             : real_telldir(folder);
}

void seekdir(DIR* folder, long position) noexcept {
  if (!with_listing(folder,
                    [&](Listing& listing) { listing.position = static_cast<size_t>(position); }))
    real_seekdir(folder, position);
}

int closedir(DIR* folder) {
  if (open_listings.load(std::memory_order_relaxed) != 0) {
    Listing* closed = nullptr;
    {
      const Guard guard;
      Listing** at = find_locked(folder);
      closed = *at;
      if (closed != nullptr) {
        *at = closed->next;
        open_listings.fetch_sub(1, std::memory_order_relaxed);
      }
    }
    release(closed);
  }
  return real_closedir(folder);
}

// Further names of the same calls.
static_assert(sizeof(dirent) == sizeof(dirent64));
decltype(readdir64) readdir64 __attribute__((alias("readdir")));
int readdir64_r(DIR*, dirent64*, dirent64**) __attribute__((alias("readdir_r")));

}  // extern "C"
