// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Environment variables: what is set, and whether it means what was meant.
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string_view>

#include "inject/fault_plan.h"
#include "machine.h"

namespace doctor {
namespace {

constexpr std::string_view kPrefix = "UWARP_";

bool is_setting(std::string_view name) {
  for (const uwarp::Setting& row : uwarp::settings_table())
    if (name == row.name) return true;
  return false;
}

/// A misspelt variable has no effect, and only the doctor says so.
void warn_of_unknown(Report& report) {
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view line(*entry);
    const std::string_view name = line.substr(0, line.find('='));
    if (!name.starts_with(kPrefix) || is_setting(name)) continue;
    report.warning("setting", std::string(name) + " is set, but there is no such setting",
                   "uwarp-run --help lists them");
  }
}

/// Settings take any text for UWARP_FAULT; only the parser of its rules knows whether it is right.
std::string error_of_faults(const uwarp::Settings& settings) {
  std::string error;
  (void)uwarp::FaultPlan::parse(settings.fault, error);
  return error;
}

}  // namespace

uwarp::Settings check_settings(Report& report) {
  bool any = false;
  std::string refused_name;
  auto settings = uwarp::parse_settings(
      [](const char* name) { return std::getenv(name); },
      [&](const std::string& line) {
        const size_t start = line.find(kPrefix);
        refused_name += ' ' + line.substr(start, line.find('=') - start) + ' ';
        report.problem("setting", line.substr(start), "Correct it, or unset it");
        any = true;
      });
  if (const std::string error = error_of_faults(settings); !error.empty()) {
    refused_name += " UWARP_FAULT ";
    report.problem("setting", "UWARP_FAULT=" + settings.fault + ": " + error,
                   "Correct it, or unset it");
    any = true;
  }
  for (const uwarp::Setting& row : uwarp::settings_table()) {
    const char* text = std::getenv(row.name);
    if (text == nullptr || std::strcmp(text, row.default_text) == 0) continue;
    if (refused_name.find(' ' + std::string(row.name) + ' ') != std::string::npos) continue;
    report.ok("setting", std::string(row.name) + "=" + text + " (default: " +
                             (*row.default_text == '\0' ? "empty" : row.default_text) + ")");
    any = true;
  }
  if (!any) report.ok("setting", "all settings have their default values");
  warn_of_unknown(report);
  return settings;
}

}  // namespace doctor
