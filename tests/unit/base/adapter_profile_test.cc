// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Profiles of adapters: which lines are taken, and what is said about the others.
#include "base/adapter_profile.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "base/profile_file.h"

namespace uwarp {
namespace {

std::string complaint(const std::string& text) {
  AdapterProfile profile;
  return profile.parse(text);
}

TEST(AdapterProfile, WithoutLinesItIsUwarp) {
  AdapterProfile profile;
  EXPECT_EQ(profile.parse(""), "");
  EXPECT_EQ(profile.max_qp, kMaxQp);
  EXPECT_EQ(profile.max_msg_sz, kMaxMessageBytes);
  EXPECT_EQ(profile.mtu_bytes(), 4096u);
  EXPECT_EQ(profile.rate(), "100 Gb/sec (4X EDR)");
  EXPECT_TRUE(profile.has_atomics());
  EXPECT_FALSE(profile.persona.has_value());
}

TEST(AdapterProfile, TakesLines) {
  AdapterProfile profile;
  EXPECT_EQ(profile.parse("# a comment\n"
                          "\n"
                          "  max_qp=12 \r\n"
                          "max_mr_size = 0x10000\n"
                          "persona = roce\n"
                          "atomic_cap = none\n"
                          "max_mtu = 512\n"
                          "active_width = 12x\n"
                          "active_speed = sdr\n"
                          "fw_ver = 1.2 # three\n"
                          "board_id =\n"
                          "hw_counter.packets = port_xmit_packets\n"
                          "hw_counter.nothing = 0"),
            "");
  EXPECT_EQ(profile.max_qp, 12u);
  EXPECT_EQ(profile.max_mr_size, 0x10000u);
  EXPECT_EQ(profile.persona, Persona::kRoce);
  EXPECT_FALSE(profile.has_atomics());
  EXPECT_EQ(profile.mtu_bytes(), 512u);
  EXPECT_EQ(profile.rate(), "30 Gb/sec (12X SDR)");
  EXPECT_EQ(profile.fw_ver, "1.2 # three");
  EXPECT_EQ(profile.board_id, "");
  ASSERT_EQ(profile.hw_counters.size(), 2u);
  EXPECT_EQ(profile.hw_counters[0].second, "port_xmit_packets");
  EXPECT_EQ(profile.hw_counters[1].second, "");
}

TEST(AdapterProfile, RateOfAHalf) {
  AdapterProfile profile;
  EXPECT_EQ(profile.parse("active_width = 1x\nactive_speed = sdr\n"), "");
  EXPECT_EQ(profile.rate(), "2.5 Gb/sec (1X SDR)");
}

TEST(AdapterProfile, NamesTheLineKeyValueAndLimit) {
  EXPECT_EQ(complaint("max_sge = 4\n\nmax_qp = 262144\n"),
            "3: max_qp = 262144 is more than uwarp's own limit of 65536");
  EXPECT_EQ(complaint("max_qp = 0"), "1: max_qp = 0 is not a number from 1 to 65536");
  EXPECT_EQ(complaint("max_qp = many"), "1: max_qp = many is not a number from 1 to 65536");
  EXPECT_EQ(complaint("max_qp = -1"), "1: max_qp = -1 is not a number from 1 to 65536");
  EXPECT_EQ(complaint("max_qp = 7 "), "");
  EXPECT_EQ(complaint("max_qp ="), "1: max_qp =  is not a number from 1 to 65536");
  EXPECT_EQ(complaint("max_mtu = 1500"),
            "1: max_mtu = 1500 is not 256 or 512 or 1024 or 2048 or 4096");
  EXPECT_EQ(complaint("max_pq = 7"), "1: there is no key max_pq");
  EXPECT_EQ(complaint("max_qp 7"), "1: \"max_qp 7\" is not KEY = VALUE");
  EXPECT_EQ(complaint("max_qp = 7\nmax_qp = 7"), "2: there is a second max_qp");
  EXPECT_EQ(complaint("fw_ver = " + std::string(64, '1')).find("1: fw_ver = 111"), 0u);
  EXPECT_EQ(complaint("fw_ver = a\x1b[2J"),
            "1: fw_ver = a?[2J is not up to 63 printable characters");
  EXPECT_EQ(complaint("hw_counter.a/b = 0"), "1: \"a/b\" is no name of a counter");
  EXPECT_EQ(complaint("hw_counter.a = no_such"),
            "1: hw_counter.a = no_such is neither 0 nor a counter of uwarp");
}

/// Every number is taken at both its ends and refused beyond.
TEST(AdapterProfile, EndsOfNumbers) {
  for (const ProfileKey& key : profile_keys()) {
    if (*key.values != '\0') continue;
    const std::string name = key.name + std::string(" = ");
    EXPECT_EQ(complaint(name + std::to_string(key.low)), "") << key.name;
    EXPECT_EQ(complaint(name + std::to_string(key.high)), "") << key.name;
    if (key.low > 0) {
      EXPECT_NE(complaint(name + std::to_string(key.low - 1)), "") << key.name;
    }
    if (key.high < UINT64_MAX) {
      EXPECT_NE(complaint(name + std::to_string(key.high + 1)), "") << key.name;
    }
  }
}

TEST(AdapterProfile, KeysAreDifferent) {
  std::set<std::string> names;
  for (const ProfileKey& key : profile_keys()) EXPECT_TRUE(names.insert(key.name).second);
}

class ProfileFileTest : public ::testing::Test {
 protected:
  ProfileFileTest() {
    char name[] = "/tmp/uwarp-profile-XXXXXX";
    folder_ = mkdtemp(name);
  }
  ~ProfileFileTest() override { std::filesystem::remove_all(folder_); }
  std::string write(const std::string& name, const std::string& text) const {
    const std::string path = folder_ + "/" + name;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::ofstream(path) << text;
    return path;
  }
  std::string folder_;
};

TEST_F(ProfileFileTest, IsFoundByItsName) {
  write("share/uwarp/profiles/mine.profile", "max_qp = 3\n");
  std::filesystem::create_directories(folder_ + "/lib/deeper");
  for (const char* library : {"/lib", "/lib/deeper"}) {
    const ProfileFile file = ProfileFile::read("mine", folder_ + library);
    EXPECT_EQ(file.error, "");
    EXPECT_EQ(file.profile.max_qp, 3u);
  }
}

TEST_F(ProfileFileTest, IsNamedByItsPath) {
  const std::string path = write("mine", "max_qp = 3\n");
  EXPECT_EQ(ProfileFile::read(path, "/").profile.max_qp, 3u);
  EXPECT_EQ(ProfileFile::read(path, "/").path, path);
}

TEST_F(ProfileFileTest, WhatIsNotRead) {
  const auto error = [&](const std::string& wanted) {
    return ProfileFile::read(wanted, folder_ + "/lib").error;
  };
  EXPECT_EQ(error("nothing").find("there is no profile nothing; those that come with uwarp are "),
            0u);
  EXPECT_EQ(error(folder_ + "/nothing"), folder_ + "/nothing: No such file or directory");
  EXPECT_EQ(error(folder_), folder_ + ": no regular file");
  EXPECT_EQ(error("/dev/zero"), "/dev/zero: no regular file");
  const std::string large = write("large", std::string(70000, '\n'));
  EXPECT_EQ(error(large), large + ": File too large");
  const std::string wrong = write("wrong", "max_qp = 3\nmax_qq = 3\n");
  EXPECT_EQ(error(wrong), wrong + ":2: there is no key max_qq");
}

}  // namespace
}  // namespace uwarp
