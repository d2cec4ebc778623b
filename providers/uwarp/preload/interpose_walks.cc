// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// glob(), ftw(), nftw() and fts_open(): libc's own calls inside them are not seen by the preload.
#include <dirent.h>
#include <fcntl.h>
#include <fts.h>
#include <ftw.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cerrno>

#include "preload/paths.h"
#include "preload/real.h"

using namespace uwarp_preload;

namespace {

using GlobError = int(const char*, int);
using FtwVisit = int(const char*, const struct stat*, int);
using NftwVisit = int(const char*, const struct stat*, int, FTW*);
using FtsOrder = int(const FTSENT**, const FTSENT**);
constinit Real<int(const char*, int, GlobError*, glob_t*)> real_glob("glob");
constinit Real<int(const char*, FtwVisit*, int)> real_ftw("ftw");
constinit Real<int(const char*, NftwVisit*, int, int)> real_nftw("nftw");
constinit Real<FTS*(char* const*, int, FtsOrder*)> real_fts_open("fts_open");

// The functions for 64 bits are the same ones where we run.
static_assert(sizeof(glob_t) == sizeof(glob64_t) && sizeof(struct stat) == sizeof(struct stat64));

/// By the calls of this library instead of libc's own.
[[gnu::noinline]] int glob_ours(const char* pattern, int flags, GlobError* failed, glob_t* found) {
  const glob_t saved = *found;
  found->gl_opendir = [](const char* path) -> void* { return opendir(path); };
  found->gl_readdir = [](void* folder) { return readdir(static_cast<DIR*>(folder)); };
  found->gl_closedir = [](void* folder) { closedir(static_cast<DIR*>(folder)); };
  found->gl_stat = [](const char* path, struct stat* out) { return stat(path, out); };
  found->gl_lstat = [](const char* path, struct stat* out) { return lstat(path, out); };
  const int result = real_glob(pattern, flags | GLOB_ALTDIRFUNC, failed, found);
  found->gl_flags &= ~GLOB_ALTDIRFUNC;
  found->gl_opendir = saved.gl_opendir;
  found->gl_readdir = saved.gl_readdir;
  found->gl_closedir = saved.gl_closedir;
  found->gl_stat = saved.gl_stat;
  found->gl_lstat = saved.gl_lstat;
  return result;
}

/// A walk through the tree of this thread, whose visits have no argument. The application sees the
/// names below the folder that it has asked for.
struct Walk {
  const char* asked;
  FtwVisit* visit;
  NftwVisit* visit_with_place;
  // Both without slashes at the end, as libc makes names.
  size_t asked_length = 0;
  size_t real_length = 0;  ///< of the folder that is walked through in its place
};
constinit thread_local Walk* current_walk __attribute__((tls_model("initial-exec"))) = nullptr;

class Walking {
 public:
  explicit Walking(Walk& walk) : outer_(current_walk) { current_walk = &walk; }
  ~Walking() { current_walk = outer_; }
  Walking(const Walking&) = delete;
  Walking& operator=(const Walking&) = delete;

 private:
  Walk* const outer_;
};

int visit(const char* path, const struct stat* status, int type, FTW* place) {
  const Walk& walk = *current_walk;
  char shown[PATH_MAX];
  const int length = snprintf(shown, sizeof shown, "%.*s%s", static_cast<int>(walk.asked_length),
                              walk.asked, path + walk.real_length);
  if (length <= 0 || static_cast<size_t>(length) >= sizeof shown) return 0;
  struct stat of_node;
  // What libc has seen is the link to a node's stand-in.
  if ((type == FTW_SL || type == FTW_F) && lstat(shown, &of_node) == 0 &&
      S_ISCHR(of_node.st_mode)) {
    status = &of_node;
    type = FTW_F;
  }
  if (place == nullptr) return walk.visit(shown, status, type);
  FTW shown_place = *place;
  shown_place.base += length - static_cast<int>(strlen(path));
  return walk.visit_with_place(shown, status, type, &shown_place);
}

size_t length_without_slashes(const char* path) {
  size_t length = strlen(path);
  while (length > 1 && path[length - 1] == '/') --length;
  return length;
}

/// A walk from `asked`. False: that is not ours.
[[gnu::noinline]] bool walk_ours(Walk walk, int open_folders, int flags, int& result) {
  Resolved target;
  resolve(AT_FDCWD, walk.asked, target);
  if (target.kind != PathKind::kFile) return false;
  walk.asked_length = length_without_slashes(walk.asked);
  walk.real_length = length_without_slashes(target.path);
  const Walking guard(walk);
  const auto visit_only = [](const char* path, const struct stat* status, int type) {
    return visit(path, status, type, nullptr);
  };
  result = walk.visit == nullptr ? real_nftw(target.path, visit, open_folders, flags)
                                 : real_ftw(target.path, visit_only, open_folders);
  return true;
}

bool has_ours(char* const* paths) {
  for (; *paths != nullptr; ++paths) {
    if (may_be_ours(*paths)) return true;
  }
  return false;
}

const char* redirected(const char* path, Resolved& target) {
  resolve(AT_FDCWD, path, target);
  return target.kind == PathKind::kFile ? target.path : path;
}

/// The names that the application gets are those of the tree, which lead to the same files.
[[gnu::noinline]] FTS* fts_open_ours(char* const* paths, int flags, FtsOrder* order) {
  size_t count = 0;
  while (paths[count] != nullptr) ++count;
  auto** real = static_cast<char**>(calloc(count + 1, sizeof(char*)));
  bool whole = real != nullptr;
  for (size_t i = 0; whole && i < count; ++i) {
    Resolved target;
    real[i] = strdup(redirected(paths[i], target));
    whole = real[i] != nullptr;
  }
  FTS* result = whole ? real_fts_open(real, flags, order) : nullptr;
  const int saved = whole ? errno : ENOMEM;
  for (size_t i = 0; real != nullptr && i < count; ++i) free(real[i]);
  free(real);
  errno = saved;
  return result;
}

}  // namespace

// The definitions below repeat libc's prototypes, exception specification included.
extern "C" {

int glob(const char* pattern, int flags, GlobError* failed, glob_t* found) noexcept {
  if ((flags & GLOB_ALTDIRFUNC) != 0 || !may_be_ours(pattern)) [[likely]]
    return real_glob(pattern, flags, failed, found);
  return glob_ours(pattern, flags, failed, found);
}

int ftw(const char* path, FtwVisit* visit, int open_folders) {
  int result;
  if (may_be_ours(path) && walk_ours({path, visit, nullptr}, open_folders, 0, result))
    return result;
  return real_ftw(path, visit, open_folders);
}

int nftw(const char* path, NftwVisit* visit, int open_folders, int flags) {
  int result;
  if (may_be_ours(path) && walk_ours({path, nullptr, visit}, open_folders, flags, result))
    return result;
  return real_nftw(path, visit, open_folders, flags);
}

FTS* fts_open(char* const* paths, int flags, FtsOrder* order) {
  return has_ours(paths) ? fts_open_ours(paths, flags, order) : real_fts_open(paths, flags, order);
}

// Further names of the same calls.
decltype(glob64) glob64 __attribute__((alias("glob")));
decltype(ftw64) ftw64 __attribute__((alias("ftw")));
decltype(nftw64) nftw64 __attribute__((alias("nftw")));
decltype(fts64_open) fts64_open __attribute__((alias("fts_open")));

}  // extern "C"
