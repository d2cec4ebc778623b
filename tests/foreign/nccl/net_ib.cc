// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Drives NCCL's net_ib with memory of the host, between two processes. `net_ib SUBJECT [DEVICE]` is
// one test; subjects are those of main(). NCCL's own settings come from the environment.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "link.h"

namespace {

using Clock = std::chrono::steady_clock;

// For what must end by itself.
constexpr std::chrono::seconds kLongest{60};
// For receives of a peer that may have gone.
constexpr std::chrono::seconds kForReceives{10};
constexpr size_t kMegabyte = size_t{1} << 20;

std::string wanted_device;

// The device of this name, or the one that joins the first two.
int device_of(Net& net) {
  if (wanted_device == "joined") {
    if (net.devices() < 2) {
      puts("SKIPPED: there is one device only");
      _exit(77);
    }
    return net.join(0, 1);
  }
  for (int device = 0; device < net.devices(); ++device) {
    if (wanted_device.empty() || wanted_device == net.properties(device).name) return device;
  }
  fail("net_ib has no device %s", wanted_device.c_str());
}

void properties() {
  Net net;
  if (net.devices() < 1) fail("net_ib has no device");
  for (int device = 0; device < net.devices(); ++device) {
    const ncclNetProperties_t had = net.properties(device);
    printf("%s speed %d port %d guid %#lx path %s pointers %d\n", had.name, had.speed, had.port,
           had.guid, had.pciPath ? had.pciPath : "none", had.ptrSupport);
    if (had.ptrSupport != NCCL_PTR_HOST) fail("%s takes memory of a GPU", had.name);
    if (had.speed <= 0 || had.maxComms <= 0 || had.guid == 0) fail("%s lacks a figure", had.name);
  }
}

// Waits for a request, and for the flush of what it received.
int finish(Link& link, void* request, Memory* received = nullptr, size_t offset = 0) {
  int size = -1;
  const auto end = Clock::now() + kLongest;
  while (!done(request, &size)) {
    if (Clock::now() > end) fail("a request takes too long");
  }
  if (!received) return size;
  void* data = received->at(offset);
  void* handle = received->handle();
  void* flush = nullptr;
  check(ncclNetIb.iflush(link.receiver(), 1, &data, &size, &handle, &flush), "iflush");
  while (flush && !done(flush)) {
    if (Clock::now() > end) fail("a flush takes too long");
  }
  if (!flush && size > 0 && getenv("STAND_IN_PEERMEM")) fail("nothing was flushed");
  return size;
}

void* send_when_wanted(Link& link, Memory& memory, size_t offset, size_t size, int tag = 0) {
  const auto end = Clock::now() + kLongest;
  for (;;) {
    if (void* request = link.send(memory, offset, size, tag)) return request;
    if (Clock::now() > end) fail("the peer has no receive");
  }
}

// A message of `size` each way at once, at an odd place, into a buffer with more room than that.
void exchange(Link& link, Memory& from, Memory& to, size_t size, bool child) {
  constexpr size_t kOffset = 13, kMore = 5;
  const uint64_t mine = size * 2 + child, others = size * 2 + !child;
  fill(from.at(kOffset), size, mine);
  memset(to.at(0), 0xee, size + kOffset + kMore);
  void* receive = link.receive(to, kOffset, size + kMore);
  void* send = send_when_wanted(link, from, kOffset, size);
  const int received = finish(link, receive, &to, kOffset);
  if (received != static_cast<int>(size)) fail("%d bytes instead of %zu", received, size);
  const int sent = finish(link, send);
  if (sent != static_cast<int>(size)) fail("%d bytes sent instead of %zu", sent, size);
  compare(to.at(kOffset), size, others);
  for (size_t place = 0; place < kMore; ++place) {
    if (*to.at(kOffset + size + place) != 0xee) fail("byte %zu behind the message", place);
  }
  if (*to.at(kOffset - 1) != 0xee) fail("a byte in front of the message");
}

// Each size, both ways.
void transfer(Peer& peer, bool child) {
  Net net;
  Link link(net, device_of(net), peer);
  Memory from(link.sender(), 65 * kMegabyte), to(link.receiver(), 65 * kMegabyte);
  for (size_t size : {size_t{0}, size_t{1}, size_t{8}, size_t{127}, size_t{4097}, size_t{65536},
                      16 * kMegabyte, 64 * kMegabyte}) {
    for (int time = 0; time < 3; ++time) exchange(link, from, to, size, child);
  }
  // More than the receive has room for: NCCL sends what has room.
  constexpr size_t kRoom = 1000;
  void* receive = link.receive(to, 0, kRoom);
  fill(from.at(0), 2 * kRoom, child);
  void* send = send_when_wanted(link, from, 0, 2 * kRoom);
  if (finish(link, receive) != kRoom) fail("not what had room");
  finish(link, send);
  compare(to.at(0), kRoom, !child);
  peer.meet();
}

// Receives that are posted together, and the messages for them. The same in both processes.
struct Group {
  uint64_t number;
  std::vector<size_t> sizes;
  std::vector<size_t> rooms;
  // The order in which they are sent.
  std::vector<int> order;
};

constexpr size_t kMostBytes = 65536;
constexpr uint64_t kSlots = NCCL_NET_MAX_REQUESTS;
constexpr size_t kMostReceives = 8;
constexpr size_t kFloodBytes = kSlots * kMostReceives * kMostBytes;

Group group(uint64_t number, bool child) {
  std::mt19937_64 random(number * 2 + child);
  Group made{number * 2 + child, {}, {}, {}};
  const size_t count = random() % 3 ? 1 : 1 + random() % kMostReceives;
  for (size_t i = 0; i < count; ++i) {
    const size_t limit = random() % 4 ? 300 : kMostBytes;
    made.sizes.push_back(random() % limit);
    made.rooms.push_back(std::min(kMostBytes, made.sizes.back() + random() % 100));
    made.order.push_back(static_cast<int>(i));
  }
  std::shuffle(made.order.begin(), made.order.end(), random);
  return made;
}

uint64_t message_of(const Group& from, int index) {
  return from.number * kMostReceives + static_cast<uint64_t>(index);
}

size_t place_of(uint64_t number, int index) {
  return (number % kSlots * kMostReceives + static_cast<size_t>(index)) * kMostBytes;
}

// One direction of many messages under way, as one side sees it.
class Sending {
 public:
  Sending(Link& link, bool child)
      : link_(link), child_(child), memory_(link.sender(), kFloodBytes) {}

  bool step(uint64_t groups) {
    for (auto& [slot, requests] : under_way_) {
      auto is_done = [](void* request) { return done(request); };
      requests.erase(std::remove_if(requests.begin(), requests.end(), is_done), requests.end());
    }
    while (next_ < groups) {
      auto& requests = under_way_[next_ % kSlots];
      const Group what = group(next_, child_);
      if (sent_ == 0 && !requests.empty()) break;
      const int index = what.order[sent_];
      const size_t place = place_of(next_, index), size = what.sizes[static_cast<size_t>(index)];
      fill(memory_.at(place), size, message_of(what, index));
      void* request = link_.send(memory_, place, size, index);
      if (!request) break;
      requests.push_back(request);
      if (++sent_ == what.order.size()) {
        sent_ = 0;
        ++next_;
      }
    }
    return next_ == groups && std::all_of(under_way_.begin(), under_way_.end(),
                                          [](auto& slot) { return slot.second.empty(); });
  }

 private:
  Link& link_;
  bool child_;
  Memory memory_;
  uint64_t next_ = 0;
  size_t sent_ = 0;
  std::map<uint64_t, std::vector<void*>> under_way_;
};

class Receiving {
 public:
  Receiving(Link& link, bool child)
      : link_(link), child_(child), memory_(link.receiver(), kFloodBytes) {}

  bool step(uint64_t groups) {
    for (auto& [number, request] : std::map(under_way_)) {
      int sizes[kMostReceives];
      if (!done(request, sizes)) continue;
      judge(number, sizes);
      under_way_.erase(number);
    }
    while (next_ < groups && (under_way_.empty() || next_ - under_way_.begin()->first < kSlots))
      post(next_++);
    return next_ == groups && under_way_.empty();
  }

 private:
  void post(uint64_t number) {
    Group what = group(number, !child_);
    std::vector<void*> data, handles(what.order.size(), memory_.handle());
    std::vector<int> tags;
    for (size_t i = 0; i < what.order.size(); ++i) {
      tags.push_back(static_cast<int>(i));
      data.push_back(memory_.at(place_of(number, tags.back())));
      memset(data.back(), 0xee, what.rooms[i]);
    }
    void* request = nullptr;
    check(ncclNetIb.irecv(link_.receiver(), static_cast<int>(data.size()), data.data(),
                          what.rooms.data(), tags.data(), handles.data(), nullptr, &request),
          "irecv");
    under_way_[number] = request;
  }

  void judge(uint64_t number, const int* sizes) {
    const Group what = group(number, !child_);
    for (size_t i = 0; i < what.order.size(); ++i) {
      const int index = static_cast<int>(i);
      if (sizes[i] != static_cast<int>(what.sizes[i]))
        fail("group %lu of %zu: %d bytes instead of %zu", number, what.order.size(), sizes[i],
             what.sizes[i]);
      const uint8_t* bytes = memory_.at(place_of(number, index));
      compare(bytes, what.sizes[i], message_of(what, index));
      for (size_t place = what.sizes[i]; place < what.rooms[i]; ++place) {
        if (bytes[place] != 0xee) fail("group %lu: a byte behind the message", number);
      }
    }
  }

  Link& link_;
  bool child_;
  Memory memory_;
  uint64_t next_ = 0;
  std::map<uint64_t, void*> under_way_;
};

void flood_over(Link& link, bool child, uint64_t groups) {
  Sending sending(link, child);
  Receiving receiving(link, child);
  const auto end = Clock::now() + 2 * kLongest;
  for (bool sent = false, received = false; !sent || !received;) {
    sent = sending.step(groups);
    received = receiving.step(groups);
    if (Clock::now() > end) fail("the flood takes too long");
  }
}

void flood(Peer& peer, bool child) {
  Net net;
  Link link(net, device_of(net), peer);
  flood_over(link, child, 3000);
  peer.meet();
}

// Connections of one pair of processes, used by two threads of each.
void connections(Peer& peer, bool child) {
  constexpr size_t kThreads = 2, kLinks = 8;
  Net net;
  const int device = device_of(net);
  std::vector<std::unique_ptr<Link>> links;
  for (size_t i = 0; i < kThreads * kLinks; ++i)
    links.push_back(std::make_unique<Link>(net, device, peer));
  std::vector<std::thread> threads;
  for (size_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (size_t i = thread; i < links.size(); i += kThreads) flood_over(*links[i], child, 200);
      std::vector<std::unique_ptr<Memory>> memories;
      for (int round = 0; round < 3; ++round) {
        for (size_t i = thread; i < links.size(); i += kThreads) {
          Memory from(links[i]->sender(), kMegabyte + 100),
              to(links[i]->receiver(), kMegabyte + 100);
          exchange(*links[i], from, to, kMegabyte >> round, child);
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  peer.meet();
}

// Tests each request until it is done or has an error; how many are done. `judge` is called of
// each.
template <class Judge>
size_t end_of_all(std::vector<void*> requests, const Judge& judge) {
  size_t finished = 0;
  bool failed = false;
  const auto end = Clock::now() + kLongest;
  std::vector<bool> is_done(requests.size());
  while (finished < requests.size() && !failed) {
    if (Clock::now() > end) fail("requests outstanding when the peer went away do not end");
    for (size_t i = 0; i < requests.size() && !failed; ++i) {
      int done_now = 0, size = 0;
      if (is_done[i]) continue;
      failed = ncclNetIb.test(requests[i], &done_now, &size) != ncclSuccess;
      if (failed || !done_now) continue;
      is_done[i] = true;
      ++finished;
      judge(i, size);
    }
  }
  return finished;
}

constexpr size_t kLarge = 4 * kMegabyte;
constexpr size_t kLargeOnes = 16;

std::vector<void*> receive_large(Link& link, Memory& memory) {
  std::vector<void*> requests;
  for (size_t i = 0; i < kLargeOnes; ++i)
    requests.push_back(link.receive(memory, i * kLarge, kLarge));
  return requests;
}

// Those that the peer still lives for.
std::vector<void*> send_large(Link& link, Memory& memory) {
  std::vector<void*> requests;
  for (size_t i = 0; i < kLargeOnes; ++i) fill(memory.at(i * kLarge), kLarge, i);
  const auto end = Clock::now() + kForReceives;
  while (requests.size() < kLargeOnes && Clock::now() < end) {
    const size_t place = requests.size() * kLarge;
    void* request = nullptr;
    if (ncclNetIb.isend(link.sender(), memory.at(place), kLarge, 0, memory.handle(), nullptr,
                        &request) != ncclSuccess)
      break;
    if (request) requests.push_back(request);
  }
  return requests;
}

// What was received is right, also if what came behind it was not.
auto judge_large(Memory& memory) {
  return [&memory](size_t i, int size) {
    if (size != static_cast<int>(kLarge)) fail("%d bytes instead of %zu", size, kLarge);
    compare(memory.at(i * kLarge), kLarge, i);
  };
}

void a_last_exchange(Net& net, int device, Peer& peer, bool child) {
  Link link(net, device, peer);
  Memory from(link.sender(), kMegabyte + 100), to(link.receiver(), kMegabyte + 100);
  exchange(link, from, to, kMegabyte, child);
  peer.meet();
}

// Connections are closed while requests are outstanding. NCCL takes the registration away before
// that.
void closing(Peer& peer, bool child) {
  Net net;
  const int device = device_of(net);
  for (int round = 0; round < 3; ++round) {
    {
      Link link(net, device, peer);
      Memory to(link.receiver(), kLargeOnes * kLarge);
      receive_large(link, to);
      if (round == 1) peer.meet();
      if (round == 2 && child) check(link.close_sender(), "closeSend");
    }
    // The sender goes.
    {
      Link link(net, device, peer);
      if (child) {
        Memory to(link.receiver(), kLargeOnes * kLarge);
        const size_t got = end_of_all(receive_large(link, to), judge_large(to));
        printf("the sender went: %zu of %zu were received\n", got, kLargeOnes);
      } else {
        Memory from(link.sender(), kLargeOnes * kLarge);
        send_large(link, from);
      }
    }
    peer.meet();
    // The receiver goes.
    {
      Link link(net, device, peer);
      if (child) {
        Memory to(link.receiver(), kLargeOnes * kLarge);
        auto requests = receive_large(link, to);
        while (!done(requests[0])) {
        }
      } else {
        Memory from(link.sender(), kLargeOnes * kLarge);
        const size_t went = end_of_all(send_large(link, from), [](size_t, int) {});
        printf("the receiver went: %zu of %zu were sent\n", went, kLargeOnes);
      }
    }
    peer.meet();
  }
  a_last_exchange(net, device, peer, child);
}

// The peer is killed while messages are under way in both directions and receives wait.
void killed() {
  std::vector<std::unique_ptr<Peer>> peers;
  constexpr size_t kKilled = 3;
  auto victim = [](Peer& parent) {
    Net net;
    Link link(net, device_of(net), parent);
    Memory from(link.sender(), kLargeOnes * kLarge), to(link.receiver(), kLargeOnes * kLarge);
    receive_large(link, to);
    parent.meet();
    send_large(link, from);
    for (;;) pause();
  };
  auto last = [](Peer& parent) {
    Net net;
    a_last_exchange(net, device_of(net), parent, true);
  };
  for (size_t i = 0; i < kKilled; ++i) peers.push_back(std::make_unique<Peer>(victim));
  Peer survivor(last);
  Net net;
  const int device = device_of(net);
  for (size_t i = 0; i < kKilled; ++i) {
    Link link(net, device, *peers[i]);
    Memory from(link.sender(), kLargeOnes * kLarge), to(link.receiver(), 2 * kLargeOnes * kLarge);
    auto received = receive_large(link, to);
    // One more than the peer sends.
    received.push_back(link.receive(to, kLargeOnes * kLarge, kLarge));
    peers[i]->meet();
    auto sent = send_large(link, from);
    std::this_thread::sleep_for(std::chrono::milliseconds(10 * i));
    peers[i]->kill();
    const size_t went = end_of_all(sent, [](size_t, int) {});
    const size_t got = end_of_all(received, judge_large(to));
    if (got > kLargeOnes) fail("more came than was sent");
    printf("the peer was killed: %zu of %zu were sent, %zu received\n", went, sent.size(), got);
  }
  a_last_exchange(net, device, survivor, false);
  survivor.join();
}

void in_two(void (*work)(Peer&, bool)) {
  Peer peer([work](Peer& parent) { work(parent, true); });
  work(peer, false);
  peer.join();
}

}  // namespace

int main(int argc, char** argv) {
  const std::map<std::string, void (*)(Peer&, bool)> subjects = {
      {"transfer", transfer},
      {"flood", flood},
      {"connections", connections},
      {"closing", closing},
  };
  const std::string subject = argc > 1 ? argv[1] : "";
  if (argc > 2) wanted_device = argv[2];
  if (subject == "properties") {
    properties();
  } else if (subject == "killed") {
    killed();
  } else if (const auto found = subjects.find(subject); found != subjects.end()) {
    in_two(found->second);
  } else {
    fprintf(stderr,
            "usage: net_ib properties|killed|transfer|flood|connections|closing [DEVICE]\n");
    return 2;
  }
  puts("ok");
}
