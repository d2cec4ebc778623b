// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// Receivers of datagrams, some processes full of them, and the client's view of them. Datagrams may
// be lost, so it is the receivers who count.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "ends/ends.h"

namespace uwarp::bench {

struct Crowd {
  int receivers = 1;
  int processes = 1;   // that they are spread over
  bool polls = false;  // each process polls; else it sleeps until something comes
};

/// The receivers of one process.
class Receivers {
 public:
  virtual ~Receivers() = default;
  /// What a sender has to know of each of them, one after the other.
  virtual std::vector<char> addresses() const = 0;
  /// Takes what has come, and says how many datagrams that were. If there are none it waits for a
  /// short time, unless the crowd polls.
  virtual uint64_t take() = 0;
};

/// Makes so many of them, in a child process.
using MakeReceivers = std::function<std::unique_ptr<Receivers>(int count)>;

/// Server: until the client has left. Called before the process has threads.
void serve_crowd(const Ends& ends, const Crowd& crowd, const MakeReceivers& make);

/// Client: the crowd, from where datagrams are sent.
class Audience {
 public:
  /// `address_bytes`: of what there is to know of each receiver.
  Audience(const Ends& ends, int receivers, size_t address_bytes);

  const char* address(size_t receiver) const;
  size_t size() const { return addresses_.size() / address_bytes_; }
  /// How many datagrams all receivers have taken so far.
  uint64_t taken() const { return ask(kCount); }
  /// The same, when nothing is left to take.
  uint64_t taken_at_last() const { return ask(kEnd); }

 private:
  friend void serve_crowd(const Ends& ends, const Crowd& crowd, const MakeReceivers& make);
  enum Question : char { kCount, kEnd };
  uint64_t ask(Question question) const;

  const size_t address_bytes_;
  int control_;
  std::vector<char> addresses_;
};

/// Has `send` send to the audience for so long, after each receiver has had its first datagram, and
/// prints what has been received. `send(count)` sends that many, of `bytes` bytes, to one receiver
/// after the other.
void address_audience(const Audience& audience, double seconds, size_t bytes,
                      const std::function<void(size_t count)>& send);

/// A whole measurement, either end: `MyReceivers` are made of the options and their number, and
/// known to `Sender` by an `Address` each.
template <typename MyReceivers, typename Sender, typename Address, typename Options>
void measure_crowd(const Options& options) {
  if (!options.client()) {
    return serve_crowd(options, options.crowd,
                       [&](int count) { return std::make_unique<MyReceivers>(options, count); });
  }
  const Audience audience(options, options.crowd.receivers, sizeof(Address));
  Sender sender(options, audience);
  address_audience(audience, options.seconds, options.size,
                   [&](size_t count) { sender.send(count); });
}

}  // namespace uwarp::bench
