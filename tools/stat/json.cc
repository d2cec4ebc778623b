// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "json.h"

#include <nlohmann/json.hpp>

#include "peers.h"

namespace stat_view {
namespace {

using nlohmann::json;

/// Raised when a field changes its meaning.
constexpr int kFormat = 1;
/// JSON key of a number of bytes. Scripts of users read this key, so uwarp-stat does not rename it.
constexpr const char* kBytes = "octets";

json seconds(uint64_t ns) { return static_cast<double>(ns) / 1e9; }

json direction(const Direction& from) {
  json messages = json::object();
  for (size_t i = 0; i < kMessageNames.size(); ++i) messages[kMessageNames[i]] = from.messages[i];
  return {{kBytes, from.bytes}, {"fpdus", from.fpdus}, {"messages", std::move(messages)}};
}

void put_traffic(json& out, const Traffic& traffic) {
  out["sent"] = direction(traffic.sent);
  out["received"] = direction(traffic.received);
  out["waits"] = traffic.waits;
  out["direct"] = traffic.direct;
  out["direct_unreachable"] = traffic.direct_unreachable;
  out["direct_refused"] = traffic.direct_refused;
  out["flushed_sends"] = traffic.flushed_sends;
  out["flushed_receives"] = traffic.flushed_receives;
  out["held_receives"] = traffic.held;
  out["rnr_timeouts"] = traffic.rnr_timeouts;
  out["dropped_receives"] = traffic.dropped;
  out["dropped_sends"] = traffic.lost_sends;
  out["refused_datagrams"] = traffic.refused;
  out["crc_errors"] = traffic.crc_errors;
  out["connections"] = traffic.stream.connections;
  out["peer_closes"] = traffic.stream.fins;
  out["peer_resets"] = traffic.stream.resets;
  out["peer_timeouts"] = traffic.stream.timeouts;
  out["failures"] = traffic.stream.failures;
}

void put_rates(json& out, const Rates& rates) {
  out["rates"] = {{"sent_octets", rates.sent_bytes},
                  {"received_octets", rates.received_bytes},
                  {"sent_messages", rates.sent_messages},
                  {"received_messages", rates.received_messages}};
}

json device(const Device& from) {
  json out = {{"name", from.name}, {"link", from.link}, {"link_downs", from.link_downs}};
  put_traffic(out, from.traffic);
  return out;
}

json queue_index(uint32_t index) { return index == uwarp::kNoSlot ? json() : json(index); }

json queue_pair(const QueuePair& from) {
  json out = {{"number", from.number},
              {"device", from.device},
              {"state", from.state},
              {"created", seconds(from.created_ns)},
              {"connected", from.connected_ns != 0},
              {"local", from.local},
              {"peer", from.peer},
              {"rdma_cm", from.rdma_cm},
              {"crc", from.crc},
              {"shared_memory", from.shared_memory},
              {"tls", !from.identity.empty()},
              {"identity", from.identity},
              {"shared_receive_queue", from.shared_receive},
              {"mulpdu", from.mulpdu},
              {"ord", from.ord},
              {"ird", from.ird},
              {"send_depth", from.send_depth},
              {"receive_depth", from.receive_depth},
              {"outstanding", from.outstanding},
              {"send_queue", queue_index(from.send_queue)},
              {"receive_queue", queue_index(from.receive_queue)}};
  put_traffic(out, from.traffic);
  return out;
}

json completion_queue(const CompletionQueue& from) {
  return {{"index", from.index},       {"device", from.device},
          {"capacity", from.capacity}, {"created", seconds(from.created_ns)},
          {"pushed", from.pushed},     {"polled", from.polled},
          {"waiting", from.waiting()}, {"failed", from.failed},
          {"events", from.events},     {"overruns", from.overruns}};
}

json region(const Region& from) {
  return {{"device", from.device},
          {"address", from.address},
          {kBytes, from.bytes},
          {"access", from.access},
          {"created", seconds(from.created_ns)}};
}

json process(const Process& from, const RateTable& rates) {
  json out = {{"pid", from.pid},
              {"own_pid", from.own_pid},
              {"uid", from.uid},
              {"program", from.program},
              {"release", from.release},
              {"persona", from.roce ? "roce" : "iwarp"},
              {"started", seconds(from.started_ns)},
              {"homeless", from.homeless},
              {"unsettled", from.unsettled}};
  for (const char* list : {"devices", "queue_pairs", "completion_queues", "regions"})
    out[list] = json::array();
  for (const Device& each : from.devices) out["devices"].push_back(device(each));
  for (const QueuePair& each : from.queue_pairs) {
    json one = queue_pair(each);
    if (rates.known()) put_rates(one, rates.of(from, each));
    out["queue_pairs"].push_back(std::move(one));
  }
  for (const CompletionQueue& each : from.completion_queues)
    out["completion_queues"].push_back(completion_queue(each));
  for (const Region& each : from.regions) out["regions"].push_back(region(each));
  if (rates.known()) put_rates(out, rates.of(from));
  return out;
}

json peer(const Peer& from, const RateTable& rates) {
  json out = {
      {"address", from.address}, {"queue_pairs", from.queue_pairs}, {"processes", from.processes}};
  put_traffic(out, from.traffic);
  if (rates.known()) put_rates(out, from.rates);
  return out;
}

/// ASCII only: names are of other processes, and the terminal must not obey what is in them.
std::string text_of(const json& value) {
  return value.dump(-1, ' ', true, json::error_handler_t::replace);
}

std::string member(const char* name, const json& value) {
  return std::string("\"") + name + "\":" + text_of(value);
}

/// Written item by item, since a tree of objects takes twenty times the memory of its text.
template <typename Items, typename ToJson>
std::string list(const char* name, const Items& items, ToJson to_json) {
  std::string out = std::string("\"") + name + "\":[";
  const char* separator = "";
  for (const auto& each : items) {
    out += separator + text_of(to_json(each));
    separator = ",";
  }
  return out + "]";
}

}  // namespace

std::string to_json(const Snapshot& snapshot, const RateTable& rates) {
  std::string out =
      "{" + member("format", kFormat) + "," + member("time", seconds(snapshot.time_ns));
  if (rates.known()) out += "," + member("interval", rates.seconds());
  out += "," + list("processes", snapshot.processes,
                    [&](const Process& each) { return process(each, rates); });
  out += "," + list("peers", peers_of(snapshot, rates),
                    [&](const Peer& each) { return peer(each, rates); });
  out += "," + list("unreadable", snapshot.unreadable, [](const Unreadable& each) {
           return json{{"pid", each.pid}, {"why", each.why}};
         });
  out += "," + list("left_out", snapshot.left_out, [](const LeftOut& each) {
           return json{{"uid", each.uid}, {"processes", each.processes}};
         });
  return out + "}";
}

}  // namespace stat_view
