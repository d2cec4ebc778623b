// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "raw_memory/channel.h"

#include <sys/uio.h>

#include "ends/process.h"

namespace uwarp::bench {
namespace {

constexpr uint64_t kOutstanding = 16;  // messages that a sender does not wait for

/// Where a message is, in the sender's memory.
struct Place {
  const char* bytes;
  size_t size;
};

}  // namespace

void CopyChannel::drain() {
  while (!writer_.all_read()) {
  }
}

PullChannel::PullChannel(const Meeting& meeting)
    : meeting_(meeting), writer_(meeting.out, sizeof(Place)), reader_(meeting.in) {}

void PullChannel::send(const char* bytes, size_t size) {
  wait_for_fewer(kOutstanding);
  const Place place{bytes, size};
  writer_.write(reinterpret_cast<const char*>(&place), sizeof place);
  ++sent_;
}

bool PullChannel::receive(char* bytes, size_t size) {
  Place place{};
  if (!reader_.read(reinterpret_cast<char*>(&place), sizeof place)) return false;
  const iovec from{const_cast<char*>(place.bytes), place.size};
  const iovec to{bytes, size};
  const ssize_t copied = process_vm_readv(meeting_.peer, &to, 1, &from, 1, 0);
  if (copied != static_cast<ssize_t>(size)) die("process_vm_readv");
  meeting_.in.pulled.store(++pulled_, std::memory_order_release);
  return true;
}

void PullChannel::wait_for_fewer(uint64_t limit) const {
  while (sent_ - meeting_.out.pulled.load(std::memory_order_acquire) >= limit) {
  }
}

std::unique_ptr<Channel> open_channel(const Options& options) {
  const Meeting meeting = meet(options);
  if (options.pull) return std::make_unique<PullChannel>(meeting);
  return std::make_unique<CopyChannel>(meeting, options.piece);
}

}  // namespace uwarp::bench
