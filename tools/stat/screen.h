// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The terminal while the live table is shown. The table has a screen of its own and keys work
// without Enter; at the end, also after a signal, the terminal is as it was before.
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

  /// Shows `last` on the bottom line, and above it as many of the lines as fit. Line number
  /// `heading`, counted from 1, and the bottom line are shown inverted.
  void show(const std::vector<std::string>& lines, size_t heading, const std::string& last);
  /// Waits for a key, at most `seconds`. 0: no key; 'q' also after a signal that ends programs.
  static char wait_for_key(double seconds);

 private:
  termios before_{};
  bool changed_ = false;
};

}  // namespace stat_view
