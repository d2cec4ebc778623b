// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Connects to a peer by MPA as uwarp would, and ends the connection once it is established.
#pragma once

#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/settings.h"
#include "report.h"

namespace doctor {

/// HOST:PORT, with an IPv6 address in brackets.
struct Target {
  std::string host;
  uint16_t port = 0;

  static std::optional<Target> parse(const std::string& text);
  std::string name() const;
};

struct ProbeOptions {
  std::chrono::milliseconds timeout{5000};  // for everything together
  std::optional<unsigned> revision;         // this one only, on one connection
};

struct ProbeResult {
  std::string verdict;     // one word for scripts; the list is in docs/doctor.md
  Finding finding;         // the sentence
  nlohmann::json details;  // what the peer said
};

ProbeResult probe(const Target& target, const ProbeOptions& options,
                  const uwarp::Settings& settings);

}  // namespace doctor
