// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// CRC32C over what a frame holds: a header alone up to a whole large frame.
#include <benchmark/benchmark.h>

#include <vector>

#include "base/crc32c.h"

namespace uwarp {
namespace {

void crc(benchmark::State& state) {
  const std::vector<char> bytes(static_cast<size_t>(state.range(0)), 'x');
  for (auto _ : state) benchmark::DoNotOptimize(crc32c(bytes.data(), bytes.size()));
  state.SetBytesProcessed(state.iterations() * state.range(0));
}

BENCHMARK(crc)->Arg(24)->Arg(64)->Arg(256)->Arg(1460)->Arg(4096)->Arg(65536);

}  // namespace
}  // namespace uwarp
