// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "nfs/open_files.h"

#include <algorithm>
#include <random>

namespace uwarp::nfs {

namespace {

constexpr size_t kClientsMax = 1024;
constexpr size_t kKeptMax = 1 << 14;

Verifier random_verifier() {
  std::random_device random;
  Verifier made;
  std::ranges::generate(made, [&] { return static_cast<std::byte>(random()); });
  return made;
}

/// A state's name: its client, and the number of the file there.
struct StateName {
  uint64_t client_id;
  uint32_t number;

  static StateName of(const StateId& state) {
    XdrReader in(state.other);
    uint64_t client_id = in.u64();
    return {client_id, in.u32()};
  }
};

bool is_anonymous(const StateId& state) {
  auto filled_with = [&](std::byte value) {
    return std::ranges::all_of(state.other, [&](std::byte each) { return each == value; });
  };
  return (state.sequence == 0 && filled_with(std::byte{0})) ||
         (state.sequence == UINT32_MAX && filled_with(std::byte{0xff}));
}

}  // namespace

OpenFiles::OpenFiles(uint64_t instance, Now now)
    : instance_(static_cast<uint32_t>(instance)), now_(std::move(now)) {}

bool OpenFiles::expired(const Client& client) const {
  return now_() - client.renewed > std::chrono::seconds(kLeaseSeconds);
}

void OpenFiles::forget(uint64_t client_id) {
  auto found = clients_.find(client_id);
  kept_ -= found->second.owners.size() + found->second.opens.size();
  clients_.erase(found);
}

OpenFiles::Client& OpenFiles::client(uint64_t client_id) {
  if (client_id >> 32 != instance_) {
    throw NfsError(NfsStatus::kStaleClientid);
  }
  auto found = clients_.find(client_id);
  if (found == clients_.end() || !found->second.confirmed) {
    throw NfsError(NfsStatus::kExpired);
  }
  if (expired(found->second)) {
    forget(client_id);
    throw NfsError(NfsStatus::kExpired);
  }
  found->second.renewed = now_();
  return found->second;
}

OpenFiles::Introduction OpenFiles::introduce(const std::string& name, const Verifier& verifier) {
  for (auto& [client_id, client] : clients_) {
    if (client.confirmed && client.name == name && client.verifier == verifier) {
      client.confirmation = random_verifier();
      return {client_id, client.confirmation};
    }
  }
  if (clients_.size() >= kClientsMax) {
    std::erase_if(clients_, [this](const auto& each) {
      bool gone = expired(each.second);
      kept_ -= gone ? each.second.owners.size() + each.second.opens.size() : 0;
      return gone;
    });
  }
  if (clients_.size() >= kClientsMax) {
    throw NfsError(NfsStatus::kResource);
  }
  uint64_t client_id = uint64_t{instance_} << 32 | next_client_++;
  Client& made = clients_[client_id];
  made.name = name;
  made.verifier = verifier;
  made.confirmation = random_verifier();
  made.renewed = now_();
  return {client_id, made.confirmation};
}

void OpenFiles::confirm_client(uint64_t client_id, const Verifier& confirmation) {
  auto found = clients_.find(client_id);
  if (found == clients_.end() || found->second.confirmation != confirmation) {
    throw NfsError(NfsStatus::kStaleClientid);
  }
  found->second.renewed = now_();
  found->second.confirmed = true;
  for (const auto& [other_id, other] : clients_) {
    if (other_id != client_id && other.name == found->second.name) {
      forget(other_id);  // there is at most one more that matters: earlier ones went so
      return;
    }
  }
}

void OpenFiles::renew(uint64_t client_id) { client(client_id); }

void OpenFiles::begin_open(const Owner& owner, uint32_t sequence) {
  Client& its_client = client(owner.client_id);
  auto found = its_client.owners.find(owner.name);
  if (found == its_client.owners.end()) {
    if (kept_ + 2 > kKeptMax) {
      throw NfsError(NfsStatus::kResource);
    }
    found = its_client.owners.emplace(owner.name, OwnerState{}).first;
    ++kept_;
  } else if (found->second.confirmed && sequence != found->second.sequence + 1) {
    throw NfsError(NfsStatus::kBadSeqid);
  }
  found->second.sequence = sequence;
}

StateId OpenFiles::state_of(uint64_t client_id, uint32_t number, const Open& open) const {
  XdrWriter name;
  name.u64(client_id);
  name.u32(number);
  StateId state;
  state.sequence = open.sequence;
  std::ranges::copy(name.bytes(), state.other.begin());
  return state;
}

OpenFiles::Opened OpenFiles::open(const Owner& owner, NodeId node, uint32_t access) {
  Client& its_client = client(owner.client_id);
  bool unconfirmed = !its_client.owners.at(owner.name).confirmed;
  for (auto& [number, open] : its_client.opens) {
    if (open.node == node && open.owner == owner.name) {
      open.access |= access;
      ++open.sequence;
      return {state_of(owner.client_id, number, open), unconfirmed};
    }
  }
  if (kept_ >= kKeptMax) {
    throw NfsError(NfsStatus::kResource);
  }
  ++kept_;
  uint32_t number = next_open_++;
  const Open& made = its_client.opens[number] = {node, access, 1, owner.name};
  return {state_of(owner.client_id, number, made), unconfirmed};
}

OpenFiles::Open& OpenFiles::find(const StateId& state, NodeId node) {
  auto [client_id, number] = StateName::of(state);
  if (client_id >> 32 != instance_) {
    throw NfsError(NfsStatus::kStaleStateid);
  }
  Client& its_client = client(client_id);
  auto found = its_client.opens.find(number);
  if (found == its_client.opens.end() || found->second.node != node ||
      state.sequence > found->second.sequence) {
    throw NfsError(NfsStatus::kBadStateid);
  }
  if (state.sequence < found->second.sequence) {
    throw NfsError(NfsStatus::kOldStateid);
  }
  return found->second;
}

OpenFiles::OwnerState& OpenFiles::owner_of(const StateId& state) {
  auto [client_id, number] = StateName::of(state);
  Client& its_client = client(client_id);
  return its_client.owners.at(its_client.opens.at(number).owner);
}

StateId OpenFiles::confirm(const StateId& state, NodeId node, uint32_t sequence) {
  Open& open = find(state, node);
  OwnerState& owner = owner_of(state);
  if (sequence != owner.sequence + 1) {
    throw NfsError(NfsStatus::kBadSeqid);
  }
  owner.sequence = sequence;
  owner.confirmed = true;
  ++open.sequence;
  return state_of(StateName::of(state).client_id, StateName::of(state).number, open);
}

void OpenFiles::close(const StateId& state, NodeId node, uint32_t sequence) {
  find(state, node);
  OwnerState& owner = owner_of(state);
  if (sequence != owner.sequence + 1) {
    throw NfsError(NfsStatus::kBadSeqid);
  }
  owner.sequence = sequence;
  auto [client_id, number] = StateName::of(state);
  client(client_id).opens.erase(number);
  --kept_;
}

void OpenFiles::check(const StateId& state, NodeId node, uint32_t access) {
  if (is_anonymous(state)) {
    return;
  }
  const Open& open = find(state, node);
  if (!owner_of(state).confirmed) {
    throw NfsError(NfsStatus::kBadStateid);
  }
  if ((open.access & access) != access) {
    throw NfsError(NfsStatus::kOpenmode);
  }
}

}  // namespace uwarp::nfs
