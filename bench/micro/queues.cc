// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// Completion queue and queue pair: what one request costs before a byte is sent.
#include <benchmark/benchmark.h>

#include "null_stream.h"
#include "qp/completion_queue.h"

namespace uwarp {
namespace {

/// What the promise of a single thread saves is the consumer's lock.
CompletionQueueOptions threads(bool single) {
  CompletionQueueOptions options;
  options.single_threaded = single;
  return options;
}

void completion_push_and_poll(benchmark::State& state, bool single) {
  CompletionQueue cq(256, nullptr, threads(single));
  WorkCompletion completion{};
  for (auto _ : state) {
    cq.push(completion, false);
    benchmark::DoNotOptimize(cq.poll(&completion, 1));
  }
}

void completion_poll_empty(benchmark::State& state, bool single) {
  CompletionQueue cq(256, nullptr, threads(single));
  WorkCompletion completion{};
  for (auto _ : state) benchmark::DoNotOptimize(cq.poll(&completion, 1));
}

void post_and_poll(benchmark::State& state, SendOpcode opcode, bool crc) {
  bench::NullStreamSender sender(crc);
  const auto bytes = static_cast<uint32_t>(state.range(0));
  for (auto _ : state) sender.post_and_poll(opcode, bytes);
}

BENCHMARK_CAPTURE(completion_push_and_poll, many_threads, false);
BENCHMARK_CAPTURE(completion_push_and_poll, one_thread, true);
BENCHMARK_CAPTURE(completion_poll_empty, many_threads, false);
BENCHMARK_CAPTURE(completion_poll_empty, one_thread, true);
BENCHMARK_CAPTURE(post_and_poll, write, SendOpcode::kWrite, false)->Arg(8)->Arg(65536);
BENCHMARK_CAPTURE(post_and_poll, send, SendOpcode::kSend, false)->Arg(8)->Arg(65536);
BENCHMARK_CAPTURE(post_and_poll, write_crc, SendOpcode::kWrite, true)->Arg(8)->Arg(65536);

}  // namespace
}  // namespace uwarp

BENCHMARK_MAIN();
