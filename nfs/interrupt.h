// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Notes SIGINT and SIGTERM instead of ending the process, so that a command can clean up. A second
// signal ends the process at once.
#pragma once

#include <chrono>
#include <stdexcept>

namespace uwarp::nfs {

/// Code that waits looks for a signal this often.
constexpr auto kSignalDelay = std::chrono::milliseconds(100);

class Interrupted : public std::runtime_error {
 public:
  Interrupted() : std::runtime_error("interrupted") {}
};

class Interrupt {
 public:
  /// From now on signals are noted.
  static void watch();
  static bool requested();
  /// The number of the signal that came.
  static int signal_number();

  /// Throws Interrupted.
  static void check() {
    if (requested()) {
      throw Interrupted();
    }
  }
  /// For cleaning up: what is asked from now on is a further signal.
  static void forget();
};

}  // namespace uwarp::nfs
