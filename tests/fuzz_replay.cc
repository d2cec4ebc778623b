// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// Runs a fuzz target without libFuzzer: every file of the corpus folder named on the command line,
// each also cut short and with single bits flipped, then a fixed series of random inputs.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size);

namespace {

// Together about a second of a target that makes many system calls.
constexpr int kRandomInputs = 4000;
constexpr size_t kRandomSizeMax = 512;
constexpr size_t kMutations = 4000;  // of all files

void run(const std::vector<uint8_t>& input) {
  // A fresh exact-size buffer, so that ASan sees a read past the end.
  std::vector<uint8_t> exact(input.begin(), input.end());
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

void run_with_mutations(const std::vector<uint8_t>& input, size_t mutations, std::mt19937& random) {
  run(input);
  for (size_t i = 0; i < mutations && !input.empty(); ++i) {
    std::vector<uint8_t> mutant = input;
    if (i % 2 == 0) {
      mutant.resize(random() % mutant.size());
    } else {
      mutant[random() % mutant.size()] ^= static_cast<uint8_t>(1u << (random() % 8));
    }
    run(mutant);
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::filesystem::path> files;
  for (int i = 1; i < argc; ++i) {
    if (!std::filesystem::is_directory(argv[i])) continue;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(argv[i]))
      if (entry.is_regular_file()) files.push_back(entry.path());
  }
  // So that the series is the same on every machine.
  std::sort(files.begin(), files.end());
  std::mt19937 random(1);
  for (const auto& file : files) {
    std::ifstream in(file, std::ios::binary);
    const std::vector<uint8_t> bytes{std::istreambuf_iterator<char>(in), {}};
    run_with_mutations(bytes, kMutations / files.size(), random);
  }
  for (int i = 0; i < kRandomInputs; ++i) {
    std::vector<uint8_t> bytes(random() % kRandomSizeMax);
    for (auto& byte : bytes) byte = static_cast<uint8_t>(random());
    run(bytes);
  }
  std::printf("%zu corpus files, %d random inputs\n", files.size(), kRandomInputs);
  return 0;
}
