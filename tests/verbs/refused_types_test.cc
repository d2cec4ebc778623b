// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Types of queue pairs that uwarp does not have: a clear errno, and one log line each that says
// what would help.
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "verbs/verbs_fixture.h"

namespace {

class RefusedTypes : public VerbsTest {};

struct Row {
  ibv_qp_type type;
  const char* name;
  bool in_roce = false;  // exists in the roce persona
};
constexpr Row kRows[] = {{IBV_QPT_UC, "UC", true},           {IBV_QPT_UD, "UD", true},
                         {IBV_QPT_RAW_PACKET, "raw packet"}, {IBV_QPT_XRC_SEND, "XRC", true},
                         {IBV_QPT_XRC_RECV, "XRC", true},    {IBV_QPT_DRIVER, "driver"}};

std::vector<Row> refused(bool roce) {
  std::vector<Row> rows;
  for (const Row& row : kRows)
    if (!roce || !row.in_roce) rows.push_back(row);
  return rows;
}

// Runs in its own process, whose log is a file.
TEST_F(RefusedTypes, DISABLED_AreAskedFor) {
  Pd pd(ibv_alloc_pd(context()));
  Cq cq(ibv_create_cq(context(), 4, nullptr, nullptr, 0));
  for (const Row& row : refused(roce())) {
    ibv_qp_init_attr init = init_attributes(cq.get());
    init.qp_type = row.type;
    errno = 0;
    EXPECT_EQ(ibv_create_qp(pd.get(), &init), nullptr) << row.name;
    EXPECT_EQ(errno, EOPNOTSUPP) << row.name;
  }
  ibv_qp_init_attr_ex extended = {};
  extended.qp_type = IBV_QPT_DRIVER;
  errno = 0;
  EXPECT_EQ(ibv_create_qp_ex(context(), &extended), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
}

TEST_F(RefusedTypes, AreLoggedWithAdvice) {
  char path[] = "/tmp/uwarp_refused_XXXXXX";
  close(mkstemp(path));
  const pid_t child = fork();
  if (child == 0) {
    setenv("UWARP_LOG", path, 1);
    execl("/proc/self/exe", "verbs_tests", "--gtest_filter=RefusedTypes.DISABLED_AreAskedFor",
          "--gtest_also_run_disabled_tests", "--gtest_brief=1", nullptr);
    _exit(1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  std::vector<std::string> lines;
  std::ifstream log(path);
  for (std::string line; std::getline(log, line);)
    if (line.find("no queue pair of type") != std::string::npos) lines.push_back(line);
  unlink(path);
  const std::vector<Row> rows = refused(roce());
  ASSERT_EQ(lines.size(), rows.size() + 1);
  const std::string persona = std::string(" ") + (roce() ? "roce" : "iwarp") + " persona";
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_NE(lines[i].find(std::string("type ") + rows[i].name), std::string::npos) << lines[i];
    if (rows[i].in_roce) {
      EXPECT_NE(lines[i].find("UWARP_PERSONA=roce"), std::string::npos) << lines[i];
    }
    EXPECT_NE(lines[i].find(persona), std::string::npos) << lines[i];
    EXPECT_NE(lines[i].find(context()->device->name), std::string::npos) << lines[i];
  }
}

}  // namespace
