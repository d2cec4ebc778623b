// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What the checks found: a line per check, and below it what to do. As text or as JSON.
#pragma once

#include <cstdio>
#include <string>
#include <vector>

namespace doctor {

enum class Level { kOk, kWarning, kProblem };

struct Finding {
  Level level = Level::kOk;
  std::string check;   // one word: what was looked at
  std::string text;    // what was found, one sentence
  std::string advice;  // what to do; empty if nothing
};

class Report {
 public:
  void ok(std::string check, std::string text);
  void warning(std::string check, std::string text, std::string advice);
  void problem(std::string check, std::string text, std::string advice);
  void add(Finding finding);

  /// No problem was found.
  bool ready() const;
  size_t count(Level level) const;
  const std::vector<Finding>& findings() const { return findings_; }

  void print(std::FILE* out) const;

 private:
  std::vector<Finding> findings_;
};

/// "ok", "warning" or "problem".
const char* name_of(Level level);

/// Text from outside as it may stand in one line of a terminal.
std::string printable(const std::string& text);

}  // namespace doctor
