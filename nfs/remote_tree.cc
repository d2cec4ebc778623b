// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "nfs/remote_tree.h"

#include <filesystem>

#include "nfs/url.h"

namespace uwarp::nfs {

std::vector<std::string> RemoteTree::names_below_root(const std::string& path) const {
  return split_path(std::string_view(path).substr(root_path_ == "/" ? 0 : root_path_.size()));
}

Found RemoteTree::walk(const std::vector<std::string>& names, const std::string& path) {
  try {
    Found found{root_, {}, {}};
    for (const std::string& name : names) {
      found = client_.lookup(found.handle, name);
    }
    if (names.empty()) {
      found.attributes = client_.getattr(root_);
    }
    return found;
  } catch (const NfsError& error) {
    throw error.about(path);
  }
}

Found RemoteTree::find(const std::string& path) { return walk(names_below_root(path), path); }

std::optional<Found> RemoteTree::find_if_exists(const std::string& path) {
  try {
    return find(path);
  } catch (const NfsError& error) {
    if (error.status() != NfsStatus::kNoent) {
      throw;
    }
    return std::nullopt;
  }
}

std::vector<std::string> RemoteTree::missing(const std::string& path) {
  std::vector<std::string> missing;
  std::string each = path;
  while (!find_if_exists(each)) {
    if (names_below_root(each).empty()) {
      throw NfsError(NfsStatus::kNoent, each);
    }
    missing.push_back(each);
    each = std::filesystem::path(each).parent_path();
  }
  return missing;
}

Place RemoteTree::place_of(const std::string& path) {
  auto names = names_below_root(path);
  if (names.empty()) {
    throw NfsError(NfsStatus::kInval, path + ": the root itself");
  }
  std::string name = names.back();
  names.pop_back();
  return {walk(names, path).handle, name};
}

}  // namespace uwarp::nfs
