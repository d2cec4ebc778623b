// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The terminal while the live table is shown: another screen, keys without Enter, and everything as
// it was at the end, also after a signal.
#pragma once

#include <termios.h>

#include <cstddef>
#include <string>
#include <vector>

namespace stat_view {

class Screen {
 public:
  Screen();
  ~Screen();
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  /// Shows as many of the lines as there is room for; the first `headings` stand out.
  void show(const std::vector<std::string>& lines, size_t headings);
  /// Waits so long for a key. 0: none came; 'q' also for a signal that ends programs.
  static char wait_for_key(double seconds);

 private:
  termios before_{};
  bool changed_ = false;
};

}  // namespace stat_view
