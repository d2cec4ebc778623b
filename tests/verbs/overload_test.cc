// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Overload: more connects than fit, peers that die or stand still in numbers, no free descriptors.
// Each connect and each request has the outcome that a kernel driver would give it. Only counts
// and statuses are judged.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include "verbs/crowd.h"

namespace {

/// A number of the test, or the one that the environment asks for.
int overload_number(const char* name, int usual) {
  const char* const asked = getenv(name);
  return asked != nullptr ? std::atoi(asked) : usual;
}

/// Some crowds that connect to one server.
class Crowds {
 public:
  Crowds(const CrowdServer& server, int crowds, int clients_of_each) {
    for (int i = 0; i < crowds; ++i) all_.emplace_back(server.port(), clients_of_each);
  }
  auto begin() { return all_.begin(); }
  auto end() { return all_.end(); }
  Crowd& operator[](size_t i) { return all_[i]; }
  void connect() const {
    for (const Crowd& crowd : all_) crowd.connect();
  }
  int told(char letter) {
    int sum = 0;
    for (Crowd& crowd : all_) sum += crowd.told(letter);
    return sum;
  }
  /// Clients whose rdma_connect() has had an outcome.
  int outcomes() {
    return told(kIsEstablished) + told(kIsRejected) + told(kIsUnreachable) + told(kIsOther);
  }
  void finish() {
    for (Crowd& crowd : all_) EXPECT_TRUE(crowd.finish());
  }

 private:
  std::deque<Crowd> all_;
};

class Overload : public VerbsTest {
 protected:
  static void expect_nothing_strange(const CrowdServer& server) {
    for (const int error : server.accept_errors) ADD_FAILURE() << std::strerror(error);
    for (const std::string& event : server.unexpected) ADD_FAILURE() << event;
  }
};

// --- Many connects

constexpr int kManyClients = 1000;
constexpr int kCrowdCount = 4;

TEST_F(Overload, AThousandConnectsAtOnce) {
  CrowdServer server(kManyClients);
  Crowds crowds(server, kCrowdCount, kManyClients / kCrowdCount);
  crowds.connect();
  EXPECT_TRUE(server.serve_until([&] {
    return crowds.outcomes() == kManyClients && server.established == kManyClients;
  })) << crowds.outcomes()
      << " have an outcome, of the server's " << server.established;
  EXPECT_EQ(crowds.told(kIsEstablished), kManyClients);
  EXPECT_EQ(server.requests, kManyClients);
  expect_nothing_strange(server);
  crowds.finish();
}

// As many requests wait as rdma_listen() was told, and all others are rejected at once. Those that
// wait lose nothing however late the program looks.
TEST_F(Overload, AListenerThatDoesNotLook) {
  for (const int backlog : {1, 16, 100}) {
    SCOPED_TRACE(backlog);
    CrowdServer server(kManyClients, backlog);
    Crowds crowds(server, kCrowdCount, kManyClients / kCrowdCount);
    crowds.connect();
    EXPECT_TRUE(wait_until([&] { return crowds.outcomes() == kManyClients - backlog; }))
        << crowds.outcomes();
    EXPECT_EQ(crowds.told(kIsRejected), kManyClients - backlog);
    EXPECT_TRUE(server.serve_until([&] {
      return crowds.outcomes() == kManyClients && server.established == backlog;
    })) << crowds.outcomes()
        << " have an outcome, of the server's " << server.established;
    EXPECT_EQ(crowds.told(kIsEstablished), backlog);
    EXPECT_EQ(server.requests, backlog);
    expect_nothing_strange(server);
    Crowd late(server.port(), 1);
    late.connect();
    EXPECT_TRUE(server.serve_until([&] { return late.told(kIsEstablished) == 1; }));
    EXPECT_TRUE(late.finish());
    crowds.finish();
  }
}

/// One connection after the other to one listener. Both sides are this process.
class InARow {
 public:
  InARow() : server_(1), channel_(make_cm_channel()) {}
  /// One connection and its end; `client_ends` says which side disconnects.
  void once(bool client_ends);

 private:
  bool resolve(rdma_cm_id* id);

  CrowdServer server_;
  CmChannel channel_;
};

bool InARow::resolve(rdma_cm_id* id) {
  sockaddr_storage to = cm_address("127.0.0.1", server_.port());
  return rdma_resolve_addr(id, nullptr, generic(to), 2000) == 0 &&
         expect_event(channel_.get(), RDMA_CM_EVENT_ADDR_RESOLVED) != nullptr &&
         rdma_resolve_route(id, 2000) == 0 &&
         expect_event(channel_.get(), RDMA_CM_EVENT_ROUTE_RESOLVED) != nullptr;
}

void InARow::once(bool client_ends) {
  const CmId client = make_cm_id(channel_.get());
  ASSERT_TRUE(resolve(client.get())) << std::strerror(errno);
  NumberedEnds ends(1);
  ASSERT_NE(ends.add(client.get()), nullptr) << std::strerror(errno);
  rdma_conn_param parameters = {};
  ASSERT_EQ(rdma_connect(client.get(), &parameters), 0) << std::strerror(errno);
  const int wanted = server_.established + 1;
  EXPECT_TRUE(server_.serve_until([&] { return readable(channel_->fd, std::chrono::seconds(0)); }));
  ASSERT_NE(expect_event(channel_.get(), RDMA_CM_EVENT_ESTABLISHED), nullptr);
  ASSERT_TRUE(server_.serve_until([&] { return server_.established == wanted; }));
  if (client_ends) {
    EXPECT_EQ(rdma_disconnect(client.get()), 0);
  }
  server_.clear();
  EXPECT_NE(expect_event(channel_.get(), RDMA_CM_EVENT_DISCONNECTED), nullptr);
}

// UWARP_TEST_CONNECTS=20000 for the long run: most ports of the host are then kept by connections
// that have ended.
TEST_F(Overload, ManyConnectsInARow) {
  const int connects = overload_number("UWARP_TEST_CONNECTS", 1000);
  InARow row;
  row.once(true);
  const size_t files = open_files();
  for (int i = 0; i < connects && !HasFailure(); ++i) {
    SCOPED_TRACE(i);
    row.once(i % 2 == 0);
  }
  EXPECT_TRUE(wait_until([&] { return open_files() <= files; })) << open_file_names();
}

// --- No free descriptors

/// While this exists, the process can open no file.
class NoFreeFiles {
 public:
  NoFreeFiles() {
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
    // The engine's own descriptors have numbers from 1,024 on.
    const rlimit low = {.rlim_cur = std::min<rlim_t>(before_.rlim_cur, 2048),
                        .rlim_max = before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
    for (int fd = dup(0); fd >= 0; fd = dup(0)) taken_.push_back(fd);
    EXPECT_EQ(errno, EMFILE);
  }
  ~NoFreeFiles() {
    for (const int fd : taken_) close(fd);
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before_), 0);
  }

 private:
  rlimit before_ = {};
  std::vector<int> taken_;
};

// What is connected goes on. What connects meanwhile waits, and is neither lost nor refused.
TEST_F(Overload, AServerWithoutFreeFiles) {
  constexpr int kClients = 8;
  CrowdServer server(2 * kClients);
  Crowd early(server.port(), kClients), late(server.port(), kClients);
  early.connect();
  ASSERT_TRUE(server.serve_until(
      [&] { return early.told(kIsEstablished) == kClients && server.established == kClients; }));
  early.talk();
  const auto all_have = [&](uint64_t messages) {
    return std::ranges::all_of(server.ends.all(),
                               [&](const auto& one) { return one.second->received() >= messages; });
  };
  {
    const NoFreeFiles none;
    late.connect();
    EXPECT_TRUE(server.serve_until([&] { return late.told(kAllCalled) == 1 && all_have(200); }));
    EXPECT_EQ(server.requests, kClients);
  }
  EXPECT_TRUE(server.serve_until([&] {
    return late.told(kIsEstablished) == kClients && server.established == 2 * kClients;
  })) << late.told(kIsEstablished);
  late.talk();
  EXPECT_TRUE(server.serve_until([&] { return all_have(200); }));
  for (Crowd* const crowd : {&early, &late}) {
    crowd->be_quiet();
    EXPECT_TRUE(server.serve_until([&] { return crowd->told(kAllAnswered) == 1; }));
    EXPECT_TRUE(crowd->finish());
  }
  expect_nothing_strange(server);
}

// --- Peers that are killed or stopped in numbers

/// Half of the crowds of a server, all of which talk, have something done to them.
class Half : public Overload {
 protected:
  static constexpr int kProcesses = 10;
  static constexpr int kOfEach = 20;
  static constexpr int kAll = kProcesses * kOfEach;
  static constexpr uint64_t kMessages = 100;

  struct Hall {
    CrowdServer server{kAll};
    std::vector<std::unique_ptr<Crowd>> crowds;
    std::map<NumberedEnd*, int> crowd_of;
  };
  static bool is_chosen(int crowd) { return crowd % 2 == 0; }

  /// Each crowd by itself, so that it is known which end is whose. All talk in the end.
  void fill(Hall& hall);
  /// The ends of the crowds that are chosen, or of the others.
  static std::vector<NumberedEnd*> ends_of(const Hall& hall, bool chosen);
  /// Until each of them has received `more` messages.
  static void serve_messages(Hall& hall, const std::vector<NumberedEnd*>& ends, uint64_t more);
  /// They have their answers, and have never seen anything wrong.
  static void finish(Hall& hall, bool chosen);
  static void expect_well(const std::vector<NumberedEnd*>& ends);
  static void one_is_killed();
};

void Half::fill(Hall& hall) {
  for (int i = 0; i < kProcesses; ++i) {
    const auto& crowd =
        hall.crowds.emplace_back(std::make_unique<Crowd>(hall.server.port(), kOfEach));
    crowd->connect();
    EXPECT_TRUE(hall.server.serve_until([&] {
      return crowd->told(kIsEstablished) == kOfEach && hall.server.established == kOfEach * (i + 1);
    }));
    for (const auto& [number, end] : hall.server.ends.all()) hall.crowd_of.emplace(end.get(), i);
  }
  for (const auto& crowd : hall.crowds) crowd->talk();
}

std::vector<NumberedEnd*> Half::ends_of(const Hall& hall, bool chosen) {
  std::vector<NumberedEnd*> found;
  for (const auto& [end, crowd] : hall.crowd_of)
    if (is_chosen(crowd) == chosen) found.push_back(end);
  EXPECT_EQ(found.size(), kAll / 2u);
  return found;
}

void Half::serve_messages(Hall& hall, const std::vector<NumberedEnd*>& ends, uint64_t more) {
  std::map<NumberedEnd*, uint64_t> wanted;
  for (NumberedEnd* const end : ends) wanted[end] = end->received() + more;
  EXPECT_TRUE(hall.server.serve_until([&] {
    return std::ranges::all_of(wanted,
                               [](const auto& one) { return one.first->received() >= one.second; });
  }));
}

void Half::finish(Hall& hall, bool chosen) {
  for (int i = 0; i < kProcesses; ++i)
    if (is_chosen(i) == chosen) hall.crowds[static_cast<size_t>(i)]->be_quiet();
  for (int i = 0; i < kProcesses; ++i) {
    if (is_chosen(i) != chosen) continue;
    Crowd& crowd = *hall.crowds[static_cast<size_t>(i)];
    EXPECT_TRUE(hall.server.serve_until([&] { return crowd.told(kAllAnswered) == 1; })) << i;
    EXPECT_TRUE(crowd.finish()) << i;
  }
}

void Half::expect_well(const std::vector<NumberedEnd*>& ends) {
  for (const NumberedEnd* const end : ends) {
    EXPECT_EQ(end->wrong(), "");
    EXPECT_EQ(end->failed() + end->flushed_receives(), 0u);
    EXPECT_EQ(end->disconnected, 0);
  }
}

void Half::one_is_killed() {
  CrowdServer server(1);
  Crowd crowd(server.port(), 1);
  crowd.connect();
  EXPECT_TRUE(server.serve_until([&] { return crowd.told(kIsEstablished) == 1; }));
  crowd.talk();
  const auto& end = server.ends.all().begin()->second;
  EXPECT_TRUE(server.serve_until([&] { return end->received() >= 10 * kMessages; }));
  crowd.kill_now();
  EXPECT_TRUE(server.serve_until([&] { return end->disconnected == 1; }));
}

// Each end of a dead peer: each request completes once, as flushed or, the first Send, with the
// retries at an end, and there is one event. The other ends lose nothing.
TEST_F(Half, OfThePeersIsKilledWhileAllTalk) {
  one_is_killed();  // what the libraries keep for the process is open then
  const size_t files = open_files();
  {
    Hall hall;
    fill(hall);
    const auto dead = ends_of(hall, true), living = ends_of(hall, false);
    serve_messages(hall, dead, kMessages);
    serve_messages(hall, living, kMessages);
    for (int i = 0; i < kProcesses; ++i)
      if (is_chosen(i)) hall.crowds[static_cast<size_t>(i)]->kill_now();
    EXPECT_TRUE(hall.server.serve_until([&] {
      return std::ranges::all_of(dead, [](const NumberedEnd* end) {
        return end->outstanding() == 0 && end->disconnected > 0;
      });
    }));
    serve_messages(hall, living, kMessages);
    expect_well(living);
    for (const NumberedEnd* const end : dead) {
      EXPECT_EQ(end->wrong(), "");
      EXPECT_EQ(end->outstanding(), 0u);
      EXPECT_EQ(end->flushed_receives(), NumberedEnd::kReceives);
      EXPECT_EQ(end->disconnected, 1);
    }
    finish(hall, false);
    expect_nothing_strange(hall.server);
  }
  EXPECT_TRUE(wait_until([&] { return open_files() <= files; })) << open_file_names();
}

TEST_F(Half, OfThePeersIsStoppedWhileAllTalk) {
  Hall hall;
  fill(hall);
  const auto stopped = ends_of(hall, true), others = ends_of(hall, false);
  serve_messages(hall, others, kMessages);
  for (int i = 0; i < kProcesses; ++i)
    if (is_chosen(i)) hall.crowds[static_cast<size_t>(i)]->stop();
  serve_messages(hall, others, 5 * kMessages);
  expect_well(stopped);
  for (int i = 0; i < kProcesses; ++i)
    if (is_chosen(i)) hall.crowds[static_cast<size_t>(i)]->go_on();
  serve_messages(hall, stopped, kMessages);
  expect_well(stopped);
  expect_well(others);
  finish(hall, true);
  finish(hall, false);
  expect_nothing_strange(hall.server);
}

}  // namespace
