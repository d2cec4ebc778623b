// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// rdma://HOST[:PORT]/EXPORT/PATH. The path is taken as it is, without percent decoding.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace uwarp::nfs {

constexpr std::string_view kDefaultPort = "20049";

class UrlError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Url {
  std::string host;  // without brackets
  std::string port;
  std::string path;  // begins with '/', no empty components, no "." or ".."

  /// Throws UrlError.
  static Url parse(std::string_view text);
};

/// The components of a path: "/a//b/" has "a" and "b".
std::vector<std::string> split_path(std::string_view path);

/// Whether `path` is `ancestor` or below it; both begin with '/'.
bool path_is_below(std::string_view path, std::string_view ancestor);

}  // namespace uwarp::nfs
