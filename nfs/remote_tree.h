// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Paths of URLs on a server: looks names up from a root on.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "nfs/nfs_client.h"

namespace uwarp::nfs {

class RemoteTree {
 public:
  /// `root` is the directory that has the path `root_path` on the server.
  RemoteTree(NfsClient& client, std::string root_path, FileHandle root)
      : client_(client), root_path_(std::move(root_path)), root_(std::move(root)) {}

  NfsClient& client() { return client_; }

  /// Throws NfsError with the path in it.
  Found find(const std::string& path);
  std::optional<Found> find_if_exists(const std::string& path);
  /// The path, its parent and so on, up to the first that exists and without it. Throws NfsError if
  /// not even the root does.
  std::vector<std::string> missing(const std::string& path);
  /// Of a path that need not exist yet, where its parent does. Not of the root itself.
  Place place_of(const std::string& path);

 private:
  Found walk(const std::vector<std::string>& names, const std::string& path);
  std::vector<std::string> names_below_root(const std::string& path) const;

  NfsClient& client_;
  std::string root_path_;
  FileHandle root_;
};

}  // namespace uwarp::nfs
