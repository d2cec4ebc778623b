// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "report.h"

#include <algorithm>
#include <utility>

namespace doctor {

const char* name_of(Level level) {
  switch (level) {
    case Level::kOk:
      return "ok";
    case Level::kWarning:
      return "warning";
    case Level::kProblem:
      return "problem";
  }
  return "problem";
}

std::string printable(const std::string& text) {
  std::string out = text;
  for (char& c : out)
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7F) c = '.';
  return out;
}

void Report::ok(std::string check, std::string text) {
  add({Level::kOk, std::move(check), std::move(text), {}});
}

void Report::warning(std::string check, std::string text, std::string advice) {
  add({Level::kWarning, std::move(check), std::move(text), std::move(advice)});
}

void Report::problem(std::string check, std::string text, std::string advice) {
  add({Level::kProblem, std::move(check), std::move(text), std::move(advice)});
}

void Report::add(Finding finding) {
  finding.text = printable(finding.text);
  finding.advice = printable(finding.advice);
  findings_.push_back(std::move(finding));
}

bool Report::ready() const { return count(Level::kProblem) == 0; }

void Report::print(std::FILE* out) const {
  for (const Finding& finding : findings_) {
    std::fprintf(out, "%-8s %-12s %s\n", name_of(finding.level), finding.check.c_str(),
                 finding.text.c_str());
    if (!finding.advice.empty()) std::fprintf(out, "%22s-> %s\n", "", finding.advice.c_str());
  }
}

size_t Report::count(Level level) const {
  return static_cast<size_t>(
      std::count_if(findings_.begin(), findings_.end(),
                    [level](const Finding& finding) { return finding.level == level; }));
}

}  // namespace doctor
