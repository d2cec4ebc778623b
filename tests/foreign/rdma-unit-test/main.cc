// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// main() of the suite's programs. An adapter is described to the suite by a class; ours excuses
// nothing and leaves all else as the suite would have it.
#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "gtest/gtest.h"
#include "internal/introspection_registrar.h"
#include "public/introspection.h"

// Some tests ask it, none of the sources defines it.
ABSL_FLAG(bool, silicon, false, "whether the adapter is a chip");

namespace {

class Uwarp : public rdma_unit_test::NicIntrospection {
 public:
  using NicIntrospection::NicIntrospection;
  bool SupportsUdQp() const override { return attr_.max_ah != 0; }
};

}  // namespace

int main(int argc, char* argv[]) {
  testing::InitGoogleTest(&argc, argv);
  absl::ParseCommandLine(argc, argv);
  rdma_unit_test::IntrospectionRegistrar::GetInstance().Register(
      "uwarp",
      [](const std::string& name, const ibv_device_attr& attr) { return new Uwarp(name, attr); });
  return RUN_ALL_TESTS();
}
