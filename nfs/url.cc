// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "nfs/url.h"

#include <algorithm>
#include <charconv>

namespace uwarp::nfs {

namespace {

constexpr std::string_view kScheme = "rdma://";

void check_port(std::string_view port) {
  unsigned number = 0;
  auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), number);
  if (error != std::errc() || end != port.data() + port.size() || number == 0 || number > 65535) {
    throw UrlError("bad port in the URL: " + std::string(port));
  }
}

}  // namespace

Url Url::parse(std::string_view text) {
  if (!text.starts_with(kScheme)) {
    throw UrlError("not a URL of the form rdma://HOST/EXPORT/PATH: " + std::string(text));
  }
  std::string_view rest = text.substr(kScheme.size());
  size_t slash = std::min(rest.find('/'), rest.size());
  std::string_view authority = rest.substr(0, slash);
  Url url;
  if (authority.starts_with('[')) {
    size_t bracket = authority.find(']');
    if (bracket == std::string_view::npos) {
      throw UrlError("no ] behind the IPv6 address: " + std::string(text));
    }
    url.host = authority.substr(1, bracket - 1);
    authority.remove_prefix(bracket + 1);
  } else {
    size_t colon = std::min(authority.find(':'), authority.size());
    url.host = authority.substr(0, colon);
    authority.remove_prefix(colon);
  }
  if (url.host.empty()) {
    throw UrlError("no host in the URL: " + std::string(text));
  }
  if (!authority.empty() && !authority.starts_with(':')) {
    throw UrlError("bad port in the URL: " + std::string(authority));
  }
  url.port = authority.empty() ? kDefaultPort : authority.substr(1);
  check_port(url.port);
  for (const std::string& component : split_path(rest.substr(slash))) {
    if (component == "." || component == "..") {
      throw UrlError("no . or .. in the path of a URL: " + std::string(text));
    }
    url.path += "/" + component;
  }
  if (url.path.empty()) {
    url.path = "/";
  }
  return url;
}

std::vector<std::string> split_path(std::string_view path) {
  std::vector<std::string> components;
  while (!path.empty()) {
    size_t slash = std::min(path.find('/'), path.size());
    if (slash > 0) {
      components.emplace_back(path.substr(0, slash));
    }
    path.remove_prefix(std::min(slash + 1, path.size()));
  }
  return components;
}

bool path_is_below(std::string_view path, std::string_view ancestor) {
  if (ancestor == "/") {
    return true;
  }
  return path.starts_with(ancestor) &&
         (path.size() == ancestor.size() || path[ancestor.size()] == '/');
}

}  // namespace uwarp::nfs
