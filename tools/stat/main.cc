// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// uwarp-stat: shows what uwarp processes do, as a live table, printed once, or as JSON.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <climits>
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
    "Shows what RDMA programs under uwarp-run are doing: their queue pairs, completion queues,\n"
    "memory regions, devices and peers, and how many bytes and messages they move.";

constexpr const char* kFooter =
    "On a terminal one table is shown and renewed until you press q; other keys choose the table.\n"
    "Without a terminal, or with --once, --count or --json, the tables are printed.\n"
    "\n"
    "SENT, RCVD   bytes; K, M, G are powers of 1024. With /s per second, else since the start\n"
    "MSG-OUT, -IN messages: Sends, Writes, Reads, answers to Reads, atomics; k is 1000\n"
    "OPEN         requests posted and not yet completed / depth of the send queue.\n"
    "             Near 0: the application is the slower side\n"
    "WAITS        how often the network or the peer took no more bytes, since the start. It grows\n"
    "             fast: they are the slower side\n"
    "HELD         how often a message found no receive posted, since the start. It grows fast:\n"
    "             the receiving program is the slower side\n"
    "CARRIER      what carries the bytes: tcp, or memory that both processes share\n"
    "\n"
    "uwarp-stat(1) describes the other columns, and the fields of the JSON.";

struct Options {
  bool json = false;
  bool once = false;
  bool all_users = false;
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

/// The last line of the screen: which keys there are; the table that is shown in brackets.
std::string key_line(View shown) {
  std::string line = "q quit";
  for (const ViewName& each : kViews) {
    const std::string name = std::string(1, each.key) + " " + each.title;
    line += each.view == shown ? " [" + name + "]" : "  " + name;
  }
  return line;
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
    screen.show(lines, 2, key_line(view));
    before = std::move(now);
    // Rates need two readings: the second one follows soon after the first.
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
  app.add_flag("--json", options.json, "print JSON, one line for each reading");
  app.add_flag("--once", options.once, "print all tables once");
  app.add_option("--count", options.count, "print N times; rates are shown from the second time on")
      ->check(CLI::Range(1ul, 1000000000ul).description(""))
      ->type_name("N");
  app.add_option("--interval", options.interval, "seconds between two readings")
      ->check(CLI::Range(0.05, 3600.0).description(""))
      ->type_name("SECONDS")
      ->capture_default_str();
  app.add_option("--view", options.view,
                 "show this table only: processes, qps, cqs, mrs, devices or peers")
      ->check(CLI::IsMember({"processes", "qps", "cqs", "mrs", "devices", "peers"}).description(""))
      ->type_name("TABLE");
  app.add_option("--pid", options.pid, "only this process")
      ->check(CLI::Range(1, INT_MAX).description(""))
      ->type_name("PID");
  app.add_flag("--all-users", options.all_users, "also processes of other users (for root)");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kSuccess : kUsage;
  }
  Processes processes(options.all_users, options.pid);
  const bool live = !options.json && !options.once && options.count == 0 &&
                    isatty(STDOUT_FILENO) != 0 && isatty(STDIN_FILENO) != 0;
  return live ? show_live(options, processes) : print_some(options, processes);
}
