// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "peers.h"

#include <map>
#include <utility>

namespace stat_view {

std::vector<Peer> peers_of(const Snapshot& snapshot, const RateTable& rates) {
  std::map<std::string, Peer> by_address;
  std::map<std::string, int> last_pid;
  for (const Process& process : snapshot.processes) {
    for (const QueuePair& qp : process.queue_pairs) {
      if (qp.connected_ns == 0 || qp.peer_host.empty()) continue;
      Peer& peer = by_address[qp.peer_host];
      peer.address = qp.peer_host;
      ++peer.queue_pairs;
      if (std::exchange(last_pid[qp.peer_host], process.pid) != process.pid) ++peer.processes;
      peer.traffic.add(qp.traffic);
      peer.rates.add(rates.of(process, qp));
    }
  }
  std::vector<Peer> all;
  all.reserve(by_address.size());
  for (auto& [address, peer] : by_address) all.push_back(std::move(peer));
  return all;
}

}  // namespace stat_view
