// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "tables.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "peers.h"

namespace stat_view {
namespace {

std::string scaled(double value, double unit, const char* prefixes) {
  char text[32];
  if (value < unit) {
    std::snprintf(text, sizeof text, "%.0f", value);
    return text;
  }
  value /= unit;
  for (; value >= unit && prefixes[1] != '\0'; ++prefixes) value /= unit;
  std::snprintf(text, sizeof text, value < 9.95 ? "%.1f%c" : "%.0f%c", value, *prefixes);
  return text;
}

/// Rows below a line of headings, sorted by weight. "<" before a heading aligns its column left.
class Table {
 public:
  explicit Table(std::vector<std::string> headings) : headings_(std::move(headings)) {}

  void add(double weight, std::vector<std::string> cells) {
    rows_.push_back({weight, std::move(cells)});
  }

  std::vector<std::string> lines() {
    std::stable_sort(rows_.begin(), rows_.end(),
                     [](const Row& a, const Row& b) { return a.weight > b.weight; });
    std::vector<size_t> widths;
    for (size_t i = 0; i < headings_.size(); ++i) {
      size_t width = heading(i).size();
      for (const Row& row : rows_) width = std::max(width, row.cells[i].size());
      widths.push_back(width);
    }
    std::vector<std::string> out;
    std::vector<std::string> names;
    for (size_t i = 0; i < headings_.size(); ++i) names.push_back(heading(i));
    out.push_back(line(names, widths));
    for (const Row& row : rows_) out.push_back(line(row.cells, widths));
    return out;
  }

 private:
  struct Row {
    double weight;
    std::vector<std::string> cells;
  };

  bool stands_left(size_t column) const { return headings_[column][0] == '<'; }
  std::string heading(size_t column) const {
    return stands_left(column) ? headings_[column].substr(1) : headings_[column];
  }
  std::string line(const std::vector<std::string>& cells, const std::vector<size_t>& widths) const {
    std::string out;
    for (size_t i = 0; i < cells.size(); ++i) {
      const std::string pad(widths[i] - cells[i].size(), ' ');
      if (i != 0) out += "  ";
      out += stands_left(i) ? cells[i] + pad : pad + cells[i];
    }
    out.erase(out.find_last_not_of(' ') + 1);
    return out;
  }

  const std::vector<std::string> headings_;
  std::vector<Row> rows_;
};

std::string hex(uint64_t number) {
  char text[32];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(number));
  return text;
}

/// Four columns: bytes and messages out and in, per second if rates are known, else totals.
std::vector<std::string> flow(const Traffic& traffic, const Rates& rates, bool known) {
  if (known)
    return {bytes_text(rates.sent_bytes), bytes_text(rates.received_bytes),
            count_text(rates.sent_messages), count_text(rates.received_messages)};
  return {bytes_text(static_cast<double>(traffic.sent.bytes)),
          bytes_text(static_cast<double>(traffic.received.bytes)),
          count_text(static_cast<double>(traffic.sent.all_messages())),
          count_text(static_cast<double>(traffic.received.all_messages()))};
}

std::vector<std::string> with_flow(std::vector<std::string> before, const RateTable& rates,
                                   std::vector<std::string> after) {
  const char* const unit = rates.known() ? "/s" : "";
  for (const char* column : {"SENT", "RCVD", "MSG-OUT", "MSG-IN"})
    before.push_back(std::string(column) + unit);
  before.insert(before.end(), after.begin(), after.end());
  return before;
}

std::vector<std::string> joined(std::vector<std::string> one, const std::vector<std::string>& two,
                                const std::vector<std::string>& three) {
  one.insert(one.end(), two.begin(), two.end());
  one.insert(one.end(), three.begin(), three.end());
  return one;
}

/// Of rates only the power of two: rows that move about the same keep their places while one looks.
double weight(const Traffic& traffic, const Rates& rates, bool known) {
  return known ? std::ilogb(rates.sent_bytes + rates.received_bytes)
               : static_cast<double>(traffic.sent.bytes + traffic.received.bytes);
}

Traffic traffic_of(const Process& process) {
  Traffic sum;
  for (const Device& device : process.devices) sum.add(device.traffic);
  return sum;
}

std::string number(uint64_t value) { return std::to_string(value); }

std::vector<std::string> processes(const Snapshot& snapshot, const RateTable& rates) {
  Table table(with_flow({"PID", "<PROGRAM"}, rates, {"QPS", "CQS", "MRS", "MEMORY", "<PERSONA"}));
  for (const Process& process : snapshot.processes) {
    const Traffic traffic = traffic_of(process);
    const Rates rate = rates.of(process);
    double memory = 0;
    for (const Region& region : process.regions) memory += static_cast<double>(region.bytes);
    table.add(weight(traffic, rate, rates.known()),
              joined({std::to_string(process.pid), printable(process.program)},
                     flow(traffic, rate, rates.known()),
                     {number(process.queue_pairs.size()), number(process.completion_queues.size()),
                      number(process.regions.size()), bytes_text(memory),
                      process.roce ? "roce" : "iwarp"}));
  }
  return table.lines();
}

std::string carrier_of(const QueuePair& qp) {
  if (qp.connected_ns == 0) return "-";
  if (qp.shared_memory) return "memory";
  return qp.identity.empty() ? "tcp" : "tls";
}

std::string peer_of(const QueuePair& qp) {
  return qp.identity.empty() ? qp.peer : printable(qp.identity) + "@" + qp.peer;
}

std::vector<std::string> queue_pairs(const Snapshot& snapshot, const RateTable& rates) {
  Table table(with_flow({"PID", "<PROGRAM", "<QP", "<DEVICE", "<STATE"}, rates,
                        {"OPEN", "WAITS", "HELD", "DIRECT", "<CARRIER", "<PEER"}));
  for (const Process& process : snapshot.processes) {
    for (const QueuePair& qp : process.queue_pairs) {
      const Rates rate = rates.of(process, qp);
      table.add(
          weight(qp.traffic, rate, rates.known()),
          joined({std::to_string(process.pid), printable(process.program), hex(qp.number),
                  printable(qp.device), qp.state},
                 flow(qp.traffic, rate, rates.known()),
                 {number(qp.outstanding) + "/" + number(qp.send_depth), number(qp.traffic.waits),
                  number(qp.traffic.held), number(qp.traffic.direct), carrier_of(qp),
                  qp.connected_ns == 0 && !qp.peer.empty() ? "(" + qp.peer + ")" : peer_of(qp)}));
    }
  }
  return table.lines();
}

std::vector<std::string> completion_queues(const Snapshot& snapshot) {
  Table table({"PID", "<PROGRAM", "CQ", "<DEVICE", "CAPACITY", "WAITING", "COMPLETIONS", "FAILED",
               "EVENTS", "OVERRUNS"});
  for (const Process& process : snapshot.processes) {
    for (const CompletionQueue& queue : process.completion_queues)
      table.add(static_cast<double>(queue.pushed),
                {std::to_string(process.pid), printable(process.program), number(queue.index),
                 printable(queue.device), number(queue.capacity), number(queue.waiting()),
                 number(queue.pushed), number(queue.failed), number(queue.events),
                 number(queue.overruns)});
  }
  return table.lines();
}

std::string access_text(uint32_t access) {
  // ibv_access_flags.
  static constexpr std::pair<uint32_t, const char*> kNames[] = {
      {1, "local-write"}, {2, "remote-write"}, {4, "remote-read"}, {8, "atomic"},
      {16, "bind"},       {32, "zero-based"},  {64, "on-demand"}};
  std::string text;
  for (const auto& [bit, name] : kNames)
    if ((access & bit) != 0) text += (text.empty() ? "" : ",") + std::string(name);
  return text.empty() ? "local-read" : text;
}

std::vector<std::string> regions(const Snapshot& snapshot) {
  Table table({"PID", "<PROGRAM", "<DEVICE", "<ADDRESS", "SIZE", "<ACCESS"});
  for (const Process& process : snapshot.processes) {
    for (const Region& region : process.regions)
      table.add(static_cast<double>(region.bytes),
                {std::to_string(process.pid), printable(process.program), printable(region.device),
                 hex(region.address), bytes_text(static_cast<double>(region.bytes)),
                 access_text(region.access)});
  }
  return table.lines();
}

std::vector<std::string> devices(const Snapshot& snapshot) {
  Table table({"PID", "<PROGRAM", "<DEVICE", "<LINK", "SENT", "RCVD", "CONNECTIONS", "CLOSES",
               "RESETS", "TIMEOUTS", "FAILURES", "HELD", "RNR", "DROPPED", "CRC", "FLUSHED"});
  for (const Process& process : snapshot.processes) {
    for (const Device& device : process.devices) {
      const Traffic& t = device.traffic;
      table.add(
          static_cast<double>(t.sent.bytes + t.received.bytes),
          {std::to_string(process.pid), printable(process.program), printable(device.name),
           device.link, bytes_text(static_cast<double>(t.sent.bytes)),
           bytes_text(static_cast<double>(t.received.bytes)), number(t.stream.connections),
           number(t.stream.fins), number(t.stream.resets), number(t.stream.timeouts),
           number(t.stream.failures), number(t.held), number(t.rnr_timeouts), number(t.dropped),
           number(t.crc_errors), number(t.flushed_sends + t.flushed_receives)});
    }
  }
  return table.lines();
}

std::vector<std::string> peers(const Snapshot& snapshot, const RateTable& rates) {
  Table table(with_flow({"<PEER", "PROCESSES", "QPS"}, rates, {}));
  for (const Peer& peer : peers_of(snapshot, rates))
    table.add(weight(peer.traffic, peer.rates, rates.known()),
              joined({peer.address, number(peer.processes), number(peer.queue_pairs)},
                     flow(peer.traffic, peer.rates, rates.known()), {}));
  return table.lines();
}

}  // namespace

std::string bytes_text(double bytes) { return scaled(bytes, 1024, "KMGTPE"); }
std::string count_text(double count) { return scaled(count, 1000, "kMGTPE"); }

std::string printable(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) > 0x7e) c = '?';
  return out;
}

std::vector<std::string> table_of(const Snapshot& snapshot, const RateTable& rates, View view) {
  switch (view) {
    case View::kProcesses:
      return processes(snapshot, rates);
    case View::kQueuePairs:
      return queue_pairs(snapshot, rates);
    case View::kCompletionQueues:
      return completion_queues(snapshot);
    case View::kRegions:
      return regions(snapshot);
    case View::kDevices:
      return devices(snapshot);
    case View::kPeers:
      break;
  }
  return peers(snapshot, rates);
}

std::string summary_of(const Snapshot& snapshot, const RateTable& rates) {
  size_t queue_pairs = 0, connected = 0, queues = 0, regions = 0;
  Rates sum;
  for (const Process& process : snapshot.processes) {
    queue_pairs += process.queue_pairs.size();
    for (const QueuePair& qp : process.queue_pairs) connected += qp.connected_ns != 0 ? 1 : 0;
    queues += process.completion_queues.size();
    regions += process.regions.size();
    sum.add(rates.of(process));
  }
  const size_t count = snapshot.processes.size();
  if (count == 0 && snapshot.unreadable.empty() && snapshot.left_out.empty())
    return "no process uses uwarp here: start a program with uwarp-run COMMAND";
  std::string line = number(count) + (count == 1 ? " process" : " processes");
  if (rates.known())
    line += ", sent " + bytes_text(sum.sent_bytes) + "/s, received " +
            bytes_text(sum.received_bytes) + "/s";
  line += ": " + number(queue_pairs) + " queue pairs (" + number(connected) + " connected), " +
          number(queues) + " completion queues, " + number(regions) + " memory regions";
  for (const Unreadable& each : snapshot.unreadable)
    line += "; " + std::to_string(each.pid) + " cannot be read: " + printable(each.why);
  for (const LeftOut& each : snapshot.left_out)
    line += "; " + number(each.processes) + " processes of user " + number(each.uid) +
            " are left out: that user has too many";
  return line;
}

}  // namespace stat_view
