// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A bounded number of places for what peers may hold in this process: half-open connections of a
// listener, lines of trunks. Decides which holder loses its place when all are taken: one of the
// network that holds most, so a peer in another network always gets in and stays.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "net/ip_address.h"

namespace uwarp {

/// What counts as one network: an IPv6 host chooses the lower 64 bits of its addresses itself (RFC
/// 4291 2.5.1), so a single one may connect from any of them. An IPv4 address is its own network.
inline IpAddress network_of(const IpAddress& address) {
  if (address.is_v4()) return address;
  IpAddress::Bytes bytes = address.bytes();
  std::fill(bytes.begin() + 8, bytes.end(), uint8_t{0});
  return IpAddress::from_gid(bytes.data(), address.scope_id());
}

/// A value without sockets, time or locks: places are kept in the order in which they were taken.
template <class Holder>
class NetworkPlaces {
 public:
  struct Place {
    Holder holder;
    IpAddress from;
    IpAddress network;
    size_t of_network = 1;  // places that its network holds
    size_t of_address = 1;
  };

  /// Gives a place to `holder`, always. Where none of `places` was free, returns the holder that
  /// has lost its place: in the network that holds most, one that `gives_way` if there is one, of
  /// the address that holds most, the oldest. Never `holder` itself, if there are two places at
  /// least and it does not give way.
  template <typename GivesWay>
  std::optional<Holder> enter(Holder holder, const IpAddress& from, size_t places,
                              GivesWay gives_way) {
    taken_.push_back({std::move(holder), from, network_of(from)});
    count_last();
    if (taken_.size() <= places) return std::nullopt;
    const auto rank = [&](const Place& place) {
      return std::tuple(place.of_network, bool{gives_way(place.holder)}, place.of_address);
    };
    return take_out(std::ranges::max_element(taken_, {}, rank));  // of equal ones the first
  }
  std::optional<Holder> enter(Holder holder, const IpAddress& from, size_t places) {
    return enter(std::move(holder), from, places, [](const Holder&) { return false; });
  }
  /// It needs its place no longer, or has lost it.
  void leave(const Holder& holder) {
    const auto found = std::ranges::find(taken_, holder, &Place::holder);
    if (found != taken_.end()) (void)take_out(found);
  }
  size_t size() const { return taken_.size(); }
  /// All places; none is taken then. Takes no memory.
  std::vector<Place> clear() { return std::exchange(taken_, {}); }

 private:
  // Counts are kept in the places themselves: a pass over some hundred costs less than a socket,
  // and one over four thousand as much as the start-up of the connection that takes the place.
  void count_last() {
    Place& last = taken_.back();
    for (Place& place : std::span(taken_).first(taken_.size() - 1)) {
      if (place.network != last.network) continue;
      last.of_network = ++place.of_network;
      if (place.from == last.from) last.of_address = ++place.of_address;
    }
  }
  Holder take_out(typename std::vector<Place>::iterator at) {
    Place gone = std::move(*at);
    taken_.erase(at);
    for (Place& place : taken_) {
      if (place.network != gone.network) continue;
      --place.of_network;
      if (place.from == gone.from) --place.of_address;
    }
    return std::move(gone.holder);
  }

  std::vector<Place> taken_;
};

}  // namespace uwarp
