// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// Encoding and decoding of headers.
#include <benchmark/benchmark.h>

#include <array>

#include "protocol/wire/ddp_headers.h"
#include "protocol/wire/rdmap_headers.h"

namespace uwarp {
namespace {

template <typename Header>
void encode(benchmark::State& state) {
  std::array<std::byte, Header::kWireSize> bytes{};
  Header header;
  for (auto _ : state) {
    benchmark::DoNotOptimize(header);
    header.encode(bytes.data());
    benchmark::DoNotOptimize(bytes);
  }
}

template <typename Header>
void decode(benchmark::State& state) {
  std::array<std::byte, Header::kWireSize> bytes{};
  for (auto _ : state) {
    benchmark::DoNotOptimize(bytes);
    benchmark::DoNotOptimize(Header::decode(bytes.data()));
  }
}

BENCHMARK(encode<TaggedHeader>);
BENCHMARK(decode<TaggedHeader>);
BENCHMARK(encode<UntaggedHeader>);
BENCHMARK(decode<UntaggedHeader>);
BENCHMARK(encode<ReadRequestHeader>);
BENCHMARK(decode<ReadRequestHeader>);
BENCHMARK(encode<AtomicRequestHeader>);
BENCHMARK(decode<AtomicRequestHeader>);

}  // namespace
}  // namespace uwarp
