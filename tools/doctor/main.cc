// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// uwarp-doctor [HOST:PORT]: checks this machine, or a server that listens elsewhere.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "machine.h"
#include "probe.h"

namespace doctor {
namespace {

using nlohmann::json;

enum ExitStatus { kReady = 0, kNotReady = 1, kUsage = 2 };

/// Of the JSON, for scripts: raised when a field changes its meaning.
constexpr int kFormat = 1;

constexpr const char* kAbout =
    "Without an argument: checks that this machine can run programs under uwarp-run.\n"
    "With HOST:PORT: checks that the RDMA server which listens there can talk to uwarp. HOST is a\n"
    "name, an IPv4 address, or an IPv6 address in brackets.";

constexpr const char* kFooter =
    "Each line is a check: ok, warning or problem, and what was found. The line below a warning "
    "or\n"
    "a problem, marked ->, says what to do.\n"
    "\n"
    "HOST:PORT costs the server one connection. It sees at most one connection request, without\n"
    "private data. If it accepts, the connection is established and disconnected at once: a "
    "server\n"
    "that ends after its first client ends. If the server closes without an answer, uwarp-doctor\n"
    "asks a second time with MPA revision 1; with --revision it asks only once.\n"
    "\n"
    "Exit status: 0 ready, perhaps with warnings; 1 a problem; 2 wrong usage.";

struct Options {
  std::string target;
  std::string program;
  bool json = false;
  bool application = false;
  double timeout_seconds = 5;
  unsigned revision = 0;
};

json to_json(const Report& report) {
  json checks = json::array();
  for (const Finding& finding : report.findings())
    checks.push_back({{"check", finding.check},
                      {"level", name_of(finding.level)},
                      {"text", finding.text},
                      {"advice", finding.advice}});
  return {{"format", kFormat},
          {"version", UWARP_VERSION},
          {"status", report.ready() ? "ready" : "problem"},
          {"checks", std::move(checks)}};
}

int finish(const Report& report, const json& all, bool as_json) {
  if (as_json) {
    std::printf("%s\n", all.dump(2, ' ', false, json::error_handler_t::replace).c_str());
  } else {
    report.print(stdout);
  }
  return report.ready() ? kReady : kNotReady;
}

std::string counted(size_t count, const char* noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

/// The last line: what all the checks come to.
std::string conclusion(const Report& report) {
  if (!report.ready())
    return "This machine is not ready: " + counted(report.count(Level::kProblem), "problem");
  const size_t warnings = report.count(Level::kWarning);
  return "This machine is ready" + (warnings == 0 ? "" : ", with " + counted(warnings, "warning")) +
         ". Start RDMA programs with: uwarp-run COMMAND";
}

int look_at_machine(const Options& options) {
  Report report;
  check_libraries(report);
  check_own_files(report);
  const uwarp::Settings settings = check_settings(report);
  check_tls(report, settings);
  check_devices(report, settings);
  check_ports(report, settings);
  check_congestion_control(report, settings);
  check_limits(report);
  check_system_calls(report);
  check_folders(report);
  check_same_host(report, settings);
  check_host_devices(report, settings);
  if (!options.program.empty()) check_program(report, options.program);
  check_application(report);
  const int status = finish(report, options.json ? to_json(report) : json(), options.json);
  if (!options.json) std::printf("\n%s\n", conclusion(report).c_str());
  return status;
}

int ask_peer(const Options& options, const Target& target) {
  Report ignored;
  const uwarp::Settings settings = check_settings(ignored);
  ProbeOptions how;
  how.timeout = std::chrono::milliseconds(static_cast<int64_t>(options.timeout_seconds * 1000));
  if (options.revision != 0) how.revision = options.revision;
  const ProbeResult result = probe(target, how, settings);
  Report report;
  report.add(result.finding);
  json all = to_json(report);
  all["peer"] = {
      {"target", target.name()}, {"verdict", result.verdict}, {"details", result.details}};
  return finish(report, all, options.json);
}

}  // namespace
}  // namespace doctor

int main(int argc, char** argv) {
  using namespace doctor;
  Options options;
  CLI::App app(kAbout, "uwarp-doctor");
  app.footer(kFooter);
  app.set_version_flag("--version", "uwarp " UWARP_VERSION);
  app.add_option("HOST:PORT", options.target, "the server to check; without it, this machine");
  app.add_flag("--json", options.json, "print JSON");
  app.add_option("--program", options.program, "also check that uwarp comes into this program")
      ->type_name("NAME");
  app.add_option("--timeout", options.timeout_seconds, "seconds that the server may take in all")
      ->check(CLI::Range(0.1, 3600.0).description(""))
      ->type_name("SECONDS")
      ->capture_default_str();
  app.add_option("--revision", options.revision, "ask once, with this MPA revision (1 or 2)")
      ->check(CLI::Range(1, 2).description(""))
      ->type_name("1|2");
  app.add_flag("--application", options.application)->group("");  // for check_application()
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kReady : kUsage;
  }
  if (options.application) return act_as_application();
  if (options.target.empty()) return look_at_machine(options);
  const auto target = Target::parse(options.target);
  if (!target) {
    std::fprintf(stderr, "uwarp-doctor: %s is not HOST:PORT (an IPv6 address needs brackets)\n",
                 options.target.c_str());
    return kUsage;
  }
  return ask_peer(options, *target);
}
