// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// What the command lines of the programs have in common.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <string>

namespace uwarp::bench {

/// An option whose number is more than 0, `value` unless it is given.
template <typename Number>
void add_positive(CLI::App& app, const char* name, Number& value, const std::string& what = {}) {
  app.add_option(name, value, what)->check(CLI::PositiveNumber)->capture_default_str();
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
