// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// One rdma_cm server, which is this process, and crowds of clients in other processes: this program
// again, started with a role.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <string>
#include <vector>

#include "verbs/cm_ends.h"
#include "verbs/numbered_ends.h"
#include "verbs/peer_process.h"

class CrowdServer {
 public:
  /// `most`: connections. `backlog` as in rdma_listen().
  explicit CrowdServer(int most, int backlog = 0);
  ~CrowdServer();
  uint16_t port() const { return port_; }
  /// Takes the events that have come, accepts each request, and polls. False: there was nothing.
  bool serve();
  /// Serves until the condition holds; false if that takes too long.
  bool serve_until(const std::function<bool()>& condition);
  /// Destroys all connections.
  void clear();

  NumberedEnds ends;
  int requests = 0;
  int established = 0;
  std::vector<int> accept_errors;
  std::vector<std::string> unexpected;  ///< other events

 private:
  bool take_event();
  void take(const rdma_cm_event& event);
  void accept(rdma_cm_id* id);

  CmChannel channel_;
  CmId listener_;
  std::list<CmId> ids_;
  uint16_t port_ = 0;
};

// What a crowd tells of each of its clients once it knows how rdma_connect() went.
inline constexpr char kIsEstablished = 'e';
inline constexpr char kIsRejected = 'j';
inline constexpr char kIsUnreachable = 'u';
inline constexpr char kIsOther = 'o';
// And of all together.
inline constexpr char kAllCalled = 'c';    ///< rdma_connect(), for each client
inline constexpr char kAllAnswered = 'a';  ///< each message has its answer

class Crowd : public OtherProcess {
 public:
  /// When it returns, the clients have their routes and queue pairs.
  Crowd(uint16_t port, int clients);

  void connect() const { say('C'); }  ///< all clients at once
  void talk() const { say('T'); }     ///< those that are connected send all the time
  void be_quiet() const { say('Q'); }
  /// How often it has told this letter until now.
  int told(char letter);
  /// Lets it end by itself. True: nothing was wrong with any message.
  bool finish();

 private:
  void say(char letter) const;

  std::map<char, int> told_;
};

/// Main function of the other process, where a crowd is its role: its exit status. Else -1.
int play_crowd(const std::vector<std::string>& arguments);
