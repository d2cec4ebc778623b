// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// One message to and fro: through the ring, or copied into the other process by its sender. And
// reads of the other process's memory.
#include <sys/uio.h>

#include <vector>

#include "ends/process.h"
#include "ends/round_trips.h"
#include "raw_memory/channel.h"
#include "raw_memory/modes.h"

namespace uwarp::bench {

void ping_pong(const Options& options) {
  const std::unique_ptr<Channel> channel = open_channel(options);
  const std::vector<char> out(options.size, 'x');
  std::vector<char> in(options.size);
  if (!options.client()) {
    while (channel->receive(in.data(), in.size())) channel->send(out.data(), out.size());
    return;
  }
  RoundTrips trips(options.seconds);
  while (trips.go_on()) {
    trips.begin();
    channel->send(out.data(), out.size());
    if (!channel->receive(in.data(), in.size())) die("the other end is gone");
    trips.end();
  }
  trips.print_halves();
  channel->end();
}

namespace {

/// A buffer here that the other process reads and writes, and the one there.
class CopiedBuffers {
 public:
  explicit CopiedBuffers(const Options& options)
      : meeting_(meet(options)), here_(options.size), out_(options.size) {
    char* const at = here_.data();
    RingWriter(meeting_.out, sizeof at).write(reinterpret_cast<const char*>(&at), sizeof at);
    if (!RingReader(meeting_.in).read(reinterpret_cast<char*>(&there_), sizeof there_))
      die("the other end is gone");
  }
  void write(char value) {
    out_.back() = value;
    const iovec from{out_.data(), out_.size()}, to{there_, out_.size()};
    if (process_vm_writev(meeting_.peer, &from, 1, &to, 1, 0) != static_cast<ssize_t>(out_.size()))
      die("process_vm_writev");
  }
  void read() {
    const iovec to{out_.data(), out_.size()}, from{there_, out_.size()};
    if (process_vm_readv(meeting_.peer, &to, 1, &from, 1, 0) != static_cast<ssize_t>(out_.size()))
      die("process_vm_readv");
  }
  /// The next value of the last byte.
  char await_change() {
    volatile char& last = here_.back();
    while (last == seen_) {
    }
    return seen_ = last;
  }

 private:
  const Meeting meeting_;
  std::vector<char> here_, out_;
  char* there_ = nullptr;
  char seen_ = 0;
};

constexpr char kEnd = 3;

}  // namespace

void write_ping_pong(const Options& options) {
  CopiedBuffers buffers(options);
  if (!options.client()) {
    for (char value; (value = buffers.await_change()) != kEnd;) buffers.write(value);
    return;
  }
  RoundTrips trips(options.seconds);
  for (char value = 1; trips.go_on(); value = value == 1 ? 2 : 1) {
    trips.begin();
    buffers.write(value);
    (void)buffers.await_change();
    trips.end();
  }
  trips.print_halves();
  buffers.write(kEnd);
}

void read_alone(const Options& options) {
  CopiedBuffers buffers(options);
  if (!options.client()) {
    while (buffers.await_change() != kEnd) {
    }
    return;
  }
  RoundTrips trips(options.seconds);
  while (trips.go_on()) {
    trips.begin();
    buffers.read();
    trips.end();
  }
  trips.print_halves();
  buffers.write(kEnd);
}

}  // namespace uwarp::bench
