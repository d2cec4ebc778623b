// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "kernel/tree_folders.h"

#include <cstdlib>

#include "kernel/private_folder.h"

namespace uwarp {

std::vector<std::string> tree_folders() {
  std::vector<std::string> folders;
  const auto add_named_by = [&](const char* variable) {
    const char* value = secure_getenv(variable);
    if (value != nullptr && value[0] == '/' && value[1] != '\0') folders.emplace_back(value);
  };
  add_named_by("XDG_RUNTIME_DIR");
  // Other users must not be able to take the tree's place there, and it is not as sticky as /tmp.
  if (!folders.empty() && !is_private_folder(folders.front().c_str())) folders.clear();
  folders.insert(folders.end(), {"/tmp", "/dev/shm"});
  add_named_by("TMPDIR");
  add_named_by("HOME");
  folders.insert(folders.end(), {"/run", "/var/tmp"});
  return folders;
}

}  // namespace uwarp
