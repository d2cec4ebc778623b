// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "verbs/crowd.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

namespace {

constexpr const char* kRole = "crowd";
constexpr int kCrowdResolveMs = 2000;

bool has_bytes(int fd, int limit_ms = 0) {
  pollfd poller = {fd, POLLIN, 0};
  return poll(&poller, 1, limit_ms) == 1;
}

}  // namespace

// --- Server

CrowdServer::CrowdServer(int most, int backlog)
    : ends(most), channel_(make_cm_channel()), listener_(make_cm_id(channel_.get())) {
  sockaddr_storage address = cm_address("127.0.0.1");
  EXPECT_EQ(rdma_bind_addr(listener_.get(), generic(address)), 0) << std::strerror(errno);
  EXPECT_EQ(rdma_listen(listener_.get(), backlog), 0) << std::strerror(errno);
  port_ = ntohs(rdma_get_src_port(listener_.get()));
}

CrowdServer::~CrowdServer() { clear(); }

void CrowdServer::clear() {
  ends.clear();
  ids_.clear();
}

void CrowdServer::accept(rdma_cm_id* id) {
  ids_.push_back(CmId(id, destroy_cm_id));
  rdma_conn_param parameters = connection_parameters(1);
  if (ends.add(id) == nullptr || rdma_accept(id, &parameters) != 0) accept_errors.push_back(errno);
}

void CrowdServer::take(const rdma_cm_event& event) {
  switch (event.event) {
    case RDMA_CM_EVENT_CONNECT_REQUEST:
      ++requests;
      return accept(event.id);
    case RDMA_CM_EVENT_ESTABLISHED:
      ++established;
      return;
    case RDMA_CM_EVENT_DISCONNECTED:
      if (NumberedEnd* const end = ends.find(event.id)) ++end->disconnected;
      return;
    case RDMA_CM_EVENT_TIMEWAIT_EXIT:
      return;
    default:
      unexpected.emplace_back(rdma_event_str(event.event));
  }
}

bool CrowdServer::take_event() {
  if (!has_bytes(channel_->fd)) return false;
  rdma_cm_event* event = nullptr;
  EXPECT_EQ(rdma_get_cm_event(channel_.get(), &event), 0) << std::strerror(errno);
  if (event == nullptr) return false;
  const rdma_cm_event copy = *event;
  rdma_ack_cm_event(event);
  take(copy);
  return true;
}

bool CrowdServer::serve() {
  const bool came = take_event();
  return ends.poll() || came;
}

bool CrowdServer::serve_until(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + 3 * kPatience;
  while (!condition()) {
    if (serve()) continue;
    if (std::chrono::steady_clock::now() > end) return false;
    (void)has_bytes(channel_->fd, 1);
  }
  return true;
}

// --- The process of a crowd, as its starter sees it

Crowd::Crowd(uint16_t port, int clients) {
  pid_ =
      start_again({std::string("--role=") + kRole, std::to_string(port), std::to_string(clients)},
                  {}, control_);
  char ready = 0;
  EXPECT_EQ(read(control_, &ready, 1), 1) << "the crowd is not ready";
}

void Crowd::say(char letter) const {
  EXPECT_EQ(send(control_, &letter, 1, MSG_NOSIGNAL), 1) << letter;
}

int Crowd::told(char letter) {
  char letters[256];
  ssize_t count = 0;
  while ((count = recv(control_, letters, sizeof letters, MSG_DONTWAIT)) > 0)
    for (ssize_t i = 0; i < count; ++i) ++told_[letters[i]];
  return told_[letter];
}

bool Crowd::finish() {
  shutdown(control_, SHUT_WR);
  int status = -1;
  waitpid(pid_, &status, 0);
  pid_ = 0;
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// --- The process itself

namespace {

class CrowdClients {
 public:
  explicit CrowdClients(int count) : channel_(make_cm_channel()), ends_(count), count_(count) {}
  bool resolve(uint16_t port);
  /// Until the starter closes its end. The exit status.
  int serve();

 private:
  bool resolve_one(sockaddr_storage to);
  void take_command(char letter);
  void connect();
  void take_event();
  static void tell(char letter) { (void)!write(kControlFd, &letter, 1); }
  static char letter_of(rdma_cm_event_type type);
  void tell_once_all_is_answered();
  int status();

  CmChannel channel_;
  std::list<CmId> ids_;
  NumberedEnds ends_;
  const int count_;
  std::vector<NumberedEnd*> connected_;
  bool talks_ = false;
  bool waits_for_answers_ = false;
};

bool CrowdClients::resolve_one(sockaddr_storage to) {
  ids_.push_back(make_cm_id(channel_.get()));
  rdma_cm_id* const id = ids_.back().get();
  return rdma_resolve_addr(id, nullptr, generic(to), kCrowdResolveMs) == 0 &&
         expect_event(channel_.get(), RDMA_CM_EVENT_ADDR_RESOLVED) != nullptr &&
         rdma_resolve_route(id, kCrowdResolveMs) == 0 &&
         expect_event(channel_.get(), RDMA_CM_EVENT_ROUTE_RESOLVED) != nullptr &&
         ends_.add(id) != nullptr;
}

bool CrowdClients::resolve(uint16_t port) {
  for (int i = 0; i < count_; ++i)
    if (!resolve_one(cm_address("127.0.0.1", port))) return false;
  tell('r');
  return true;
}

void CrowdClients::connect() {
  for (const CmId& id : ids_) {
    rdma_conn_param parameters = connection_parameters(1);
    if (rdma_connect(id.get(), &parameters) != 0) tell(kIsOther);
  }
  tell(kAllCalled);
}

char CrowdClients::letter_of(rdma_cm_event_type type) {
  switch (type) {
    case RDMA_CM_EVENT_ESTABLISHED:
      return kIsEstablished;
    case RDMA_CM_EVENT_REJECTED:
      return kIsRejected;
    case RDMA_CM_EVENT_UNREACHABLE:
      return kIsUnreachable;
    default:
      return kIsOther;
  }
}

void CrowdClients::take_event() {
  rdma_cm_event* event = nullptr;
  if (rdma_get_cm_event(channel_.get(), &event) != 0) return;
  const rdma_cm_event_type type = event->event;
  rdma_cm_id* const id = event->id;
  rdma_ack_cm_event(event);
  if (type == RDMA_CM_EVENT_TIMEWAIT_EXIT) return;
  tell(letter_of(type));
  if (type != RDMA_CM_EVENT_ESTABLISHED) return;
  connected_.push_back(ends_.find(id));
  if (talks_) connected_.back()->begin();
}

void CrowdClients::take_command(char letter) {
  if (letter == 'C') return connect();
  talks_ = letter == 'T';
  waits_for_answers_ = letter == 'Q';
  for (NumberedEnd* const end : connected_) {
    end->quiet = !talks_;
    if (talks_) end->begin();
  }
}

void CrowdClients::tell_once_all_is_answered() {
  if (!waits_for_answers_ ||
      !std::ranges::all_of(connected_, [](const NumberedEnd* end) { return end->all_answered(); }))
    return;
  waits_for_answers_ = false;
  tell(kAllAnswered);
}

int CrowdClients::status() {
  for (const NumberedEnd* const end : connected_) {
    if (end->wrong().empty() && end->failed() + end->flushed_receives() == 0) continue;
    std::fprintf(stderr, "a client: %s%llu failed\n", end->wrong().c_str(),
                 static_cast<unsigned long long>(end->failed() + end->flushed_receives()));
    return 7;
  }
  return ::testing::Test::HasFailure() ? 5 : 0;
}

int CrowdClients::serve() {
  for (;;) {
    tell_once_all_is_answered();
    const bool busy = ends_.poll();
    pollfd all[] = {{kControlFd, POLLIN, 0}, {channel_->fd, POLLIN, 0}};
    // The helper thread serves the connections while this one sleeps.
    if (poll(all, 2, busy ? 0 : 1) <= 0) continue;
    if (all[1].revents != 0) take_event();
    if (all[0].revents == 0) continue;
    char letter = 0;
    if (read(kControlFd, &letter, 1) != 1) return status();
    take_command(letter);
  }
}

}  // namespace

int play_crowd(const std::vector<std::string>& arguments) {
  if (arguments.size() != 3 || arguments[0] != kRole) return -1;
  // A crowd that is stopped would outlive a test that is ended by force.
  (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
  CrowdClients clients(std::stoi(arguments[2]));
  if (!clients.resolve(static_cast<uint16_t>(std::stoul(arguments[1])))) return 6;
  return clients.serve();
}
