// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "installed_files.h"

#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <string_view>

namespace uwarp {

std::string own_folder() {
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path);
  if (length <= 0 || length == static_cast<ssize_t>(sizeof path)) return ".";
  const std::string_view self(path, static_cast<size_t>(length));
  return std::string(self.substr(0, self.rfind('/')));
}

const char* install_folder() { return UWARP_INSTALL_LIBDIR; }

std::string find_preload() {
  const std::string folder = own_folder();
  const std::string name = kPreloadName;
  for (const std::string& candidate :
       {folder + "/../lib/" + name, folder + "/" UWARP_LIBDIR_FROM_BINDIR "/" + name,
        std::string(UWARP_INSTALL_LIBDIR "/") + name}) {
    char resolved[PATH_MAX];
    if (access(candidate.c_str(), R_OK) == 0 && realpath(candidate.c_str(), resolved)) {
      return resolved;
    }
  }
  return {};
}

}  // namespace uwarp
