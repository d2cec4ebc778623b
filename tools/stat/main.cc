// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// uwarp-stat: a live table of what uwarp processes do; or once, or as JSON.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <thread>

#include "json.h"
#include "processes.h"
#include "screen.h"
#include "tables.h"

namespace stat_view {
namespace {

constexpr int kSuccess = 0, kFailure = 1, kUsage = 2;

constexpr const char* kAbout =
    "Shows the queue pairs, completion queues, regions, devices and peers of all uwarp processes\n"
    "of the user, and how much they move.";

constexpr const char* kFooter =
    "On a terminal the table is renewed until q is pressed; keys: t processes, p queue pairs,\n"
    "c completion queues, m memory regions, d devices, n peers. Otherwise, or with --once or\n"
    "--json, it is printed once. uwarp-stat(1) says what the columns and the fields mean.";

struct Options {
  bool json = false;
  bool once = false;
  bool everybody = false;
  int pid = 0;
  double interval = 1;
  unsigned long count = 0;
  std::string view;
};

std::optional<View> view_of(const Options& options) {
  for (const ViewName& each : kViews)
    if (options.view == each.name) return each.view;
  return std::nullopt;
}

std::vector<std::string> all_tables(const Snapshot& snapshot, const RateTable& rates,
                                    std::optional<View> only) {
  std::vector<std::string> lines = {summary_of(snapshot, rates)};
  for (const ViewName& each : kViews) {
    if (only && each.view != *only) continue;
    lines.emplace_back();
    for (std::string& line : table_of(snapshot, rates, each.view)) lines.push_back(std::move(line));
  }
  return lines;
}

bool print(const Options& options, const Snapshot& snapshot, const RateTable& rates) {
  if (options.json) {
    std::printf("%s\n", to_json(snapshot, rates).c_str());
  } else {
    for (const std::string& line : all_tables(snapshot, rates, view_of(options)))
      std::printf("%s\n", line.c_str());
  }
  return std::fflush(stdout) == 0;
}

int print_some(const Options& options, Processes& processes) {
  std::unique_ptr<Snapshot> before;
  for (unsigned long i = 0; i < std::max(options.count, 1ul); ++i) {
    if (i != 0) std::this_thread::sleep_for(std::chrono::duration<double>(options.interval));
    auto now = std::make_unique<Snapshot>(processes.look());
    if (!print(options, *now, RateTable(before.get(), *now))) return kFailure;
    before = std::move(now);
  }
  return kSuccess;
}

int show_live(const Options& options, Processes& processes) {
  View view = view_of(options).value_or(View::kQueuePairs);
  std::unique_ptr<Snapshot> before;
  Screen screen;
  for (;;) {
    auto now = std::make_unique<Snapshot>(processes.look());
    const RateTable rates(before.get(), *now);
    std::vector<std::string> lines = {"uwarp-stat: " + summary_of(*now, rates)};
    for (std::string& line : table_of(*now, rates, view)) lines.push_back(std::move(line));
    screen.show(lines, 2);
    before = std::move(now);
    // The first look knows no rates: the second follows soon.
    const char key =
        Screen::wait_for_key(rates.known() ? options.interval : std::min(options.interval, 0.2));
    if (key == 'q') return kSuccess;
    for (const ViewName& each : kViews)
      if (key == each.key) view = each.view;
  }
}

}  // namespace
}  // namespace stat_view

int main(int argc, char** argv) {
  using namespace stat_view;
  Options options;
  CLI::App app(kAbout, "uwarp-stat");
  app.footer(kFooter);
  app.set_version_flag("--version", "uwarp " UWARP_VERSION);
  app.add_flag("--json", options.json, "print JSON, one line for each look");
  app.add_flag("--once", options.once, "print all tables once");
  app.add_option("--count", options.count, "print so many times; the first without rates")
      ->check(CLI::Range(1ul, 1000000000ul));
  app.add_option("--interval", options.interval, "seconds between two looks")
      ->check(CLI::Range(0.05, 3600.0))
      ->capture_default_str();
  app.add_option("--view", options.view, "processes, qps, cqs, mrs, devices or peers")
      ->check(CLI::IsMember({"processes", "qps", "cqs", "mrs", "devices", "peers"}));
  app.add_option("--pid", options.pid, "only this process")->check(CLI::PositiveNumber);
  app.add_flag("--all-users", options.everybody, "also processes of others, for root");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kSuccess : kUsage;
  }
  Processes processes(options.everybody, options.pid);
  const bool live = !options.json && !options.once && options.count == 0 &&
                    isatty(STDOUT_FILENO) != 0 && isatty(STDIN_FILENO) != 0;
  return live ? show_live(options, processes) : print_some(options, processes);
}
