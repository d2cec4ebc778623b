// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// What a server of NFS version 4.0 keeps for its clients while their leases last: who they are, and
// what they have open (RFC 7530, section 9). There are no locks, share reservations, delegations.
//
// Everything fails by throwing NfsError.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <unordered_map>

#include "nfs/memory_tree.h"
#include "nfs/nfs4.h"

namespace uwarp::nfs {

class OpenFiles {
 public:
  using Clock = std::chrono::steady_clock;
  using Now = std::function<Clock::time_point()>;
  static constexpr uint32_t kLeaseSeconds = 90;

  /// `instance` is the number of this run of the server: state of another run is stale.
  explicit OpenFiles(uint64_t instance, Now now = &Clock::now);

  struct Introduction {
    uint64_t client_id;
    Verifier confirmation;
  };
  /// SETCLIENTID. The same client with another verifier was restarted: once the new one is
  /// confirmed, what the old one had open is closed.
  Introduction introduce(const std::string& name, const Verifier& verifier);
  void confirm_client(uint64_t client_id, const Verifier& confirmation);
  void renew(uint64_t client_id);

  struct Owner {
    uint64_t client_id;
    std::string name;
  };
  /// The first step of OPEN: what follows counts, whether it succeeds or not.
  void begin_open(const Owner& owner, uint32_t sequence);
  struct Opened {
    StateId state;
    bool unconfirmed;
  };
  Opened open(const Owner& owner, NodeId node, uint32_t access);
  StateId confirm(const StateId& state, NodeId node, uint32_t sequence);
  void close(const StateId& state, NodeId node, uint32_t sequence);
  /// Whether a READ or WRITE may name this state, or none.
  void check(const StateId& state, NodeId node, uint32_t access);

 private:
  struct OwnerState {
    uint32_t sequence = 0;
    bool confirmed = false;
  };
  struct Open {
    NodeId node;
    uint32_t access;
    uint32_t sequence;
    std::string owner;
  };
  struct Client {
    std::string name;
    Verifier verifier;
    Verifier confirmation;
    bool confirmed = false;
    Clock::time_point renewed;
    std::map<std::string, OwnerState> owners;
    std::map<uint32_t, Open> opens;  // by the end of the state's name
  };

  Client& client(uint64_t client_id);
  Open& find(const StateId& state, NodeId node);
  OwnerState& owner_of(const StateId& state);
  StateId state_of(uint64_t client_id, uint32_t number, const Open& open) const;
  bool expired(const Client& client) const;
  void forget(uint64_t client_id);

  uint32_t instance_;
  Now now_;
  uint32_t next_client_ = 1;
  uint32_t next_open_ = 1;
  size_t kept_ = 0;  // owners and files, of all clients
  std::unordered_map<uint64_t, Client> clients_;
};

}  // namespace uwarp::nfs
