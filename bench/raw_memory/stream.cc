// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// Messages in one direction, large ones or many small ones. Counted from the first byte until the
// receiver has all.
#include "ends/buffers.h"
#include "ends/round_trips.h"
#include "ends/sockets.h"
#include "raw_memory/channel.h"
#include "raw_memory/modes.h"

namespace uwarp::bench {
namespace {

constexpr size_t kSendsPerLook = 16;  // between two looks at the clock

/// Messages of `size` bytes. Their number in a second, meaningful for the client.
double one_stream(const Options& options, size_t size) {
  const std::unique_ptr<Channel> channel = open_channel(options);
  Buffers buffers(size, options.buffers);
  if (!options.client()) {
    while (channel->receive(buffers.next(), size)) {
    }
    return 0;
  }
  const auto start = Clock::now();
  double sent = 0;
  while (seconds_since(start) < options.seconds) {
    for (size_t i = 0; i < kSendsPerLook; ++i) channel->send(buffers.next(), size);
    sent += kSendsPerLook;
  }
  channel->drain();
  const double rate = sent / seconds_since(start);
  channel->end();
  return rate;
}

}  // namespace

void stream(const Options& options) {
  const double rate = one_stream(options, options.size);
  if (options.client())
    print_figure("mb_per_second", rate * static_cast<double>(options.size) / 1e6);
}

void messages(const Options& options) {
  const double rate = one_stream(options, options.size * options.batch);
  if (options.client()) print_figure("per_second", rate * static_cast<double>(options.batch));
}

}  // namespace uwarp::bench
