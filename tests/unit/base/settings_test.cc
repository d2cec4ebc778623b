// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The table of UWARP_* variables: defaults, accepted values, and one complaint per bad value.
#include "base/settings.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace uwarp {
namespace {

constexpr int kNotSecure = 77;

struct Parsed {
  Settings settings;
  std::vector<std::string> complaints;
};

Parsed parse(const std::map<std::string, std::string>& environment) {
  Parsed parsed;
  parsed.settings = parse_settings(
      [&](const char* name) -> const char* {
        const auto found = environment.find(name);
        return found == environment.end() ? nullptr : found->second.c_str();
      },
      [&](const std::string& line) { parsed.complaints.push_back(line); });
  return parsed;
}

void expect_defaults(const Settings& settings) {
  EXPECT_EQ(settings.log, "");
  EXPECT_TRUE(settings.netdevs.empty());
  EXPECT_EQ(settings.persona, Persona::kIwarp);
  EXPECT_TRUE(settings.roce_ack);
  EXPECT_FALSE(settings.acknowledged());
  EXPECT_EQ(settings.cm, CmOwner::kUwarp);
  EXPECT_FALSE(settings.crc);
  EXPECT_FALSE(settings.af_ib);
  EXPECT_EQ(settings.fpdu_bytes, 0u);
  EXPECT_EQ(settings.mpa_revision, 2u);
  EXPECT_EQ(settings.mpa_timeout_ms, 10000u);
  EXPECT_EQ(settings.connect_timeout_ms, 60000u);
  EXPECT_EQ(settings.rnr_timeout_ms, 1000u);
  EXPECT_EQ(settings.peer_timeout_ms, 0u);
  EXPECT_EQ(settings.spin_us, 50u);
  EXPECT_TRUE(settings.port_range.empty());
  EXPECT_TRUE(settings.allow.allows_all());
  EXPECT_EQ(settings.port_offset, 0);
  EXPECT_EQ(settings.congestion, "reno");
  EXPECT_EQ(settings.sndbuf_bytes, 0u);
  EXPECT_EQ(settings.rcvbuf_bytes, 0u);
  EXPECT_EQ(settings.host_sysfs, "/sys");
  EXPECT_EQ(settings.fault, "");
  EXPECT_EQ(settings.immediate, ImmediateHalf::kFirst);
}

TEST(Settings, DefaultsWithoutAnyVariable) {
  const Parsed parsed = parse({});
  EXPECT_TRUE(parsed.complaints.empty());
  expect_defaults(parsed.settings);
}

TEST(Settings, EachVariableReachesItsField) {
  const Parsed parsed = parse({{"UWARP_LOG", "/tmp/x.log"},
                               {"UWARP_NETDEVS", "eth0,,lo,"},
                               {"UWARP_PERSONA", "roce"},
                               {"UWARP_ROCE_ACK", "0"},
                               {"UWARP_CM", "kernel"},
                               {"UWARP_HOST_SYSFS", "/tmp/sys"},
                               {"UWARP_FAULT", "reset after=3"},
                               {"UWARP_CRC", "1"},
                               {"UWARP_IMMEDIATE", "last"},
                               {"UWARP_FPDU", "1400"},
                               {"UWARP_MPA_REVISION", "1"},
                               {"UWARP_MPA_TIMEOUT_MS", "200"},
                               {"UWARP_CONNECT_TIMEOUT_MS", "300"},
                               {"UWARP_RNR_TIMEOUT_MS", "0"},
                               {"UWARP_PEER_TIMEOUT_MS", "5000"},
                               {"UWARP_SPIN_US", "50"},
                               {"UWARP_CALLS", "dear"},
                               {"UWARP_SHM_COPIES", "two"},
                               {"UWARP_PORT_RANGE", "20000-20100"},
                               {"UWARP_ALLOW", "192.0.2.0/24,2001:db8::1"},
                               {"UWARP_PORT_OFFSET", "-7"},
                               {"UWARP_CONGESTION", "cubic"},
                               {"UWARP_SNDBUF", "65536"},
                               {"UWARP_RCVBUF", "131072"},
                               {"UWARP_AF_IB", "1"}});
  EXPECT_TRUE(parsed.complaints.empty());
  const Settings& settings = parsed.settings;
  EXPECT_EQ(settings.log, "/tmp/x.log");
  EXPECT_EQ(settings.netdevs, (std::vector<std::string>{"eth0", "lo"}));
  EXPECT_EQ(settings.persona, Persona::kRoce);
  EXPECT_EQ(settings.calls, CallCost::kDear);
  EXPECT_EQ(settings.copies, SharedCopies::kTwo);
  EXPECT_FALSE(settings.roce_ack);
  EXPECT_FALSE(settings.acknowledged());
  EXPECT_EQ(settings.cm, CmOwner::kKernel);
  EXPECT_TRUE(settings.crc);
  EXPECT_EQ(settings.immediate, ImmediateHalf::kLast);
  EXPECT_EQ(settings.fpdu_bytes, 1400u);
  EXPECT_EQ(settings.mpa_revision, 1u);
  EXPECT_EQ(settings.mpa_timeout_ms, 200u);
  EXPECT_EQ(settings.connect_timeout_ms, 300u);
  EXPECT_EQ(settings.rnr_timeout_ms, 0u);
  EXPECT_EQ(settings.peer_timeout_ms, 5000u);
  EXPECT_EQ(settings.spin_us, 50u);
  EXPECT_EQ(settings.port_range, (PortRange{20000, 20100}));
  EXPECT_EQ(settings.allow, AllowList::parse("192.0.2.0/24,2001:db8::1"));
  EXPECT_EQ(settings.port_offset, -7);
  EXPECT_EQ(settings.congestion, "cubic");
  EXPECT_EQ(settings.sndbuf_bytes, 65536u);
  EXPECT_EQ(settings.rcvbuf_bytes, 131072u);
  EXPECT_EQ(settings.host_sysfs, "/tmp/sys");
  EXPECT_EQ(settings.fault, "reset after=3");
  EXPECT_TRUE(settings.af_ib);
}

// With this setting, falling back to the default would allow every peer: the opposite of what the
// user wanted.
TEST(Settings, AnAllowListThatIsNotUnderstoodAllowsNone) {
  const Parsed parsed = parse({{"UWARP_ALLOW", "192.0.2.0/24;192.0.3.0/24"}});
  EXPECT_EQ(parsed.settings.allow, AllowList::none());
  ASSERT_EQ(parsed.complaints.size(), 1u);
  EXPECT_NE(parsed.complaints[0].find("no peer may connect"), std::string::npos);
  EXPECT_TRUE(parse({{"UWARP_ALLOW", ""}}).settings.allow.allows_all());
}

// In a setuid program the environment comes from the unprivileged user. The next test runs this
// one.
TEST(SetuidInside, DISABLED_EnvironmentHasNoEffect) {
  if (getauxval(AT_SECURE) == 0) _exit(kNotSecure);
  EXPECT_FALSE(settings().crc);
  EXPECT_EQ(settings().log, "");
  _exit(HasFailure() ? 1 : 0);  // no leak check: such a program cannot be traced
}

TEST(Settings, SetuidProgramsIgnoreTheEnvironment) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to make a setuid program";
  char folder[] = "/var/tmp/uwarp-setuid-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string program = std::string(folder) + "/program";
  std::error_code error;
  std::filesystem::copy_file("/proc/self/exe", program, error);
  ASSERT_FALSE(error) << error.message();
  constexpr uid_t kNobody = 65534;
  ASSERT_EQ(chmod(folder, 0755), 0);
  ASSERT_EQ(chown(program.c_str(), kNobody, kNobody), 0);
  ASSERT_EQ(chmod(program.c_str(), 04755), 0);
  const std::string command = "UWARP_CRC=1 UWARP_LOG=stderr " + program +
                              " --gtest_also_run_disabled_tests --gtest_brief=1"
                              " --gtest_filter=SetuidInside.*";
  const int status = system(command.c_str());
  std::filesystem::remove_all(folder, error);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 126) GTEST_SKIP() << "an emulated program cannot execute another one";
  if (WEXITSTATUS(status) == kNotSecure) GTEST_SKIP() << "setuid has no effect on this mount";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// Each bad value: one line with the variable, the value and the default, and the default is used.
TEST(Settings, BadValuesGiveTheDefaultAndOneLine) {
  const std::pair<const char*, const char*> cases[] = {
      {"UWARP_CRC", "yes"},           {"UWARP_CRC", "2"},
      {"UWARP_CRC", "0|1"},           {"UWARP_PERSONA", "ib"},
      {"UWARP_PERSONA", "IWARP"},     {"UWARP_CM", "host"},
      {"UWARP_FPDU", "127"},          {"UWARP_FPDU", "65536"},
      {"UWARP_FPDU", "-1"},           {"UWARP_FPDU", "1400x"},
      {"UWARP_FPDU", " 1400"},        {"UWARP_FPDU", "99999999999999999999"},
      {"UWARP_MPA_REVISION", "0"},    {"UWARP_MPA_REVISION", "3"},
      {"UWARP_RNR_TIMEOUT_MS", "1s"}, {"UWARP_MPA_TIMEOUT_MS", "0"},
      {"UWARP_PORT_RANGE", "20000"},  {"UWARP_PORT_RANGE", "20100-20000"},
      {"UWARP_PORT_RANGE", "0-10"},   {"UWARP_PORT_RANGE", "1-65536"},
      {"UWARP_PORT_RANGE", "a-b"},    {"UWARP_PORT_RANGE", "1-2-3"},
      {"UWARP_PORT_OFFSET", "70000"}, {"UWARP_SNDBUF", "1"},
      {"UWARP_AF_IB", "on"},
  };
  for (const auto& [name, value] : cases) {
    const Parsed parsed = parse({{name, value}});
    ASSERT_EQ(parsed.complaints.size(), 1u) << name << "=" << value;
    const std::string& line = parsed.complaints[0];
    EXPECT_NE(line.find(std::string(name) + "=" + value), std::string::npos) << line;
    EXPECT_NE(line.find("default"), std::string::npos) << line;
    EXPECT_EQ(line.find('\n'), std::string::npos) << line;
    expect_defaults(parsed.settings);
  }
}

TEST(Settings, ComplaintNamesTheDefault) {
  EXPECT_EQ(parse({{"UWARP_RNR_TIMEOUT_MS", "soon"}}).complaints.at(0),
            "uwarp: UWARP_RNR_TIMEOUT_MS=soon is not 0 to 3600000; using the default (1000)");
  EXPECT_EQ(parse({{"UWARP_FPDU", "1"}}).complaints.at(0),
            "uwarp: UWARP_FPDU=1 is not 0 or 128 to 65535; using the default (0)");
  EXPECT_EQ(parse({{"UWARP_CM", "a\nb"}}).complaints.at(0),
            "uwarp: UWARP_CM=a?b is not uwarp or kernel; using the default (uwarp)");
}

// One bad value does not affect the other variables.
TEST(Settings, OtherVariablesGoOn) {
  const Parsed parsed = parse({{"UWARP_CRC", "bad"}, {"UWARP_SPIN_US", "9"}});
  EXPECT_EQ(parsed.complaints.size(), 1u);
  EXPECT_EQ(parsed.settings.spin_us, 9u);
}

// An empty value means "not set", except where the setting gives it a meaning of its own.
TEST(Settings, EmptyValues) {
  const Parsed parsed =
      parse({{"UWARP_CRC", ""}, {"UWARP_FPDU", ""}, {"UWARP_CONGESTION", ""}, {"UWARP_LOG", ""}});
  EXPECT_TRUE(parsed.complaints.empty());
  EXPECT_EQ(parsed.settings.congestion, "");
  EXPECT_EQ(parse({{"UWARP_CONGESTION", "system"}}).settings.congestion, "");
  EXPECT_EQ(parse({{"UWARP_LOG", "0"}}).settings.log, "");
  // Off by choice is more than off: no advice either.
  EXPECT_TRUE(parse({}).settings.advice);
  EXPECT_TRUE(parse({{"UWARP_LOG", ""}}).settings.advice);
  EXPECT_FALSE(parse({{"UWARP_LOG", "0"}}).settings.advice);
}

// The table itself: names are unique, and each default is a value that its row accepts.
TEST(Settings, TableIsConsistent) {
  std::set<std::string> names;
  for (const Setting& row : settings_table()) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_EQ(std::string(row.name).rfind("UWARP_", 0), 0u) << row.name;
    EXPECT_NE(std::string(row.meaning), "") << row.name;
    EXPECT_TRUE(parse({{row.name, row.default_text}}).complaints.empty()) << row.name;
  }
}

TEST(Settings, HelpNamesEveryVariableInNarrowLines) {
  char* text = nullptr;
  size_t size = 0;
  FILE* out = open_memstream(&text, &size);
  print_settings_help(out);
  fclose(out);
  const std::string help(text, size);
  free(text);
  for (const Setting& row : settings_table())
    EXPECT_NE(help.find(row.name), std::string::npos) << row.name;
  for (size_t at = 0; at < help.size();) {
    const size_t end = help.find('\n', at);
    ASSERT_NE(end, std::string::npos);
    EXPECT_LE(end - at, 79u) << help.substr(at, end - at);
    at = end + 1;
  }
}

TEST(Settings, ProfileSetsThePersonaUnlessTheVariableDoes) {
  char name[] = "/tmp/uwarp-profile-XXXXXX";
  const int file = mkstemp(name);
  ASSERT_EQ(write(file, "persona = roce\nmax_qp = 5\n", 26), 26);
  close(file);
  for (const bool given : {false, true}) {
    Settings settings = parse({{"UWARP_PROFILE", name}}).settings;
    std::string path;
    EXPECT_EQ(take_profile(settings, given, "/", path), "");
    EXPECT_EQ(path, name);
    EXPECT_EQ(settings.adapter.max_qp, 5u);
    EXPECT_EQ(settings.persona, given ? Persona::kIwarp : Persona::kRoce);
  }
  unlink(name);
  Settings settings = parse({{"UWARP_PROFILE", name}}).settings;
  std::string path;
  EXPECT_NE(take_profile(settings, false, "/", path), "");
  EXPECT_FALSE(settings.profile_valid);
}

TEST(Settings, TheListMayNameIdentities) {
  const auto list = AllowList::parse("192.0.2.0/24,id:node7,id:spiffe://site/x");
  ASSERT_TRUE(list);
  EXPECT_TRUE(list->names_identities());
  EXPECT_TRUE(list->allows("node7"));
  EXPECT_TRUE(list->allows("spiffe://site/x"));
  EXPECT_FALSE(list->allows("node"));
  EXPECT_FALSE(list->allows(""));
  EXPECT_FALSE(list->allows(*read_address("192.0.3.1")));
  const auto names_only = AllowList::parse("id:node7");
  ASSERT_TRUE(names_only);
  EXPECT_TRUE(names_only->allows(*read_address("192.0.3.1")));
  EXPECT_FALSE(names_only->allows_all());
  EXPECT_TRUE(AllowList().allows("anything"));
  for (const char* wrong : {"id:", "node7", "id:node7,", ",id:node7"})
    EXPECT_FALSE(AllowList::parse(wrong)) << wrong;
}

Settings with_variables(const std::map<std::string, std::string>& values,
                        std::vector<std::string>& complaints) {
  return parse_settings(
      [&](const char* name) -> const char* {
        const auto found = values.find(name);
        return found == values.end() ? nullptr : found->second.c_str();
      },
      [&](const std::string& line) { complaints.push_back(line); });
}

TEST(Settings, TlsThatIsNotUnderstoodIsNotOff) {
  std::vector<std::string> complaints;
  EXPECT_EQ(with_variables({{"UWARP_TLS", "on"}}, complaints).tls, TlsMode::kNotUnderstood);
  ASSERT_EQ(complaints.size(), 1u);
  EXPECT_NE(complaints[0].find("no connection can be made"), std::string::npos);
  complaints.clear();
  EXPECT_EQ(with_variables({{"UWARP_TLS", ""}}, complaints).tls, TlsMode::kOff);
  EXPECT_EQ(with_variables({{"UWARP_TLS", "off"}}, complaints).tls, TlsMode::kOff);
  EXPECT_EQ(with_variables({{"UWARP_TLS", "cert"}}, complaints).tls, TlsMode::kCert);
  EXPECT_TRUE(complaints.empty());
  // Without TLS no identity is proved, so none of the list can connect.
  const Settings named = with_variables({{"UWARP_ALLOW", "id:alice"}}, complaints);
  EXPECT_EQ(named.allow, AllowList::none());
  EXPECT_EQ(complaints.size(), 1u);
}

}  // namespace
}  // namespace uwarp
