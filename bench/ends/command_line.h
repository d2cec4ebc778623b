// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// What the command lines of the programs have in common.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <string>

#include "ends/crowd.h"
#include "ends/ends.h"

namespace uwarp::bench {

/// An option whose number is more than 0, `value` unless it is given.
template <typename Number>
void add_positive(CLI::App& app, const char* name, Number& value, const std::string& what = {}) {
  app.add_option(name, value, what)->check(CLI::PositiveNumber)->capture_default_str();
}

/// The mode, where the ends meet, and for how long they measure.
inline void add_run(CLI::App& app, std::string& mode, Ends& ends, double& seconds) {
  app.add_option("mode", mode)->required();
  app.add_option("address", ends.address, "of the server; without it this is the server");
  add_positive(app, "--port", ends.port);
  add_positive(app, "--seconds", seconds);
}

/// Of a crowd of receivers.
inline void add_crowd(CLI::App& app, Crowd& crowd) {
  add_positive(app, "--receivers", crowd.receivers, "that datagrams go to in turn");
  add_positive(app, "--processes", crowd.processes,
               "that the receivers are spread over, or of scale");
  app.add_flag("--receivers-poll", crowd.polls, "instead of sleeping");
}

/// Exits with a message if the arguments make no sense.
inline void parse_or_exit(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error) == 0 ? 0 : 2);
  }
}

}  // namespace uwarp::bench
