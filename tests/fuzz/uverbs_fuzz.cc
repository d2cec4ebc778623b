// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The commands of a uverbs node, written by a faulty application, and the event channels that they
// make. The input is a script. Checked: a wrong address gives EFAULT and leaves no fd behind; no
// byte behind the response changes; every event is read once and in order, unless it was taken
// back; names of files and nodes may be anything.
#include <fcntl.h>
#include <rdma/ib_user_verbs.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "events/event_channel.h"
#include "fuzz/script.h"
#include "fuzz/user_addresses.h"
#include "host/uverbs_node.h"
#include "os/engine_fds.h"
#include "sysfs/sysfs_tree.h"

namespace uwarp {
namespace {

using fuzz::Script;

constexpr size_t kStepsMax = 200;
constexpr size_t kChannelsMax = 8;
constexpr size_t kQueuesMax = 3;
constexpr size_t kRecordMax = sizeof(AsyncEventRecord);

fuzz::GuardedPages& pages() {
  static fuzz::GuardedPages made;
  return made;
}

using Bytes = std::vector<std::byte>;

template <typename T>
Bytes bytes_of(const T& record) {
  const auto* bytes = reinterpret_cast<const std::byte*>(&record);
  return Bytes(bytes, bytes + sizeof record);
}

/// A completion queue as its channel knows it, with the records that it has sent.
struct Queue {
  std::unique_ptr<CompletionEvents> events;
  CompletionEventRecord record;
  bool unread = false;
  bool again = false;
  bool stopped = false;
};

struct Channel {
  std::vector<int> fds;
  std::shared_ptr<EventChannel> channel;
  std::deque<Bytes> expected;
  std::vector<Queue> queues;
};

int lowest_free_fd() {
  const int fd = dup(STDERR_FILENO);
  close(fd);
  return fd;
}

size_t engine_fds() {
  static size_t count;
  count = 0;
  visit_engine_fds([](int) { ++count; });
  return count;
}

class Application {
 public:
  explicit Application(Script& script) : script_(script) {}
  ~Application() {
    while (!channels_.empty()) close_one(*channels_.back());
    UWARP_REQUIRE(lowest_free_fd() == first_free_);
    UWARP_REQUIRE(engine_fds() == engine_fds_);
  }

  void run() {
    for (size_t i = 0; i < kStepsMax && !script_.done(); ++i) step(script_.next());
  }

 private:
  void step(uint8_t kind) {
    switch (kind % 10) {
      case 0:
        return command();
      case 1:
        return open_node();
      case 2:
        return ask_for_counter();
      default:
        break;
    }
    if (channels_.empty()) return command();
    Channel& channel = *channels_[script_.below(channels_.size())];
    switch (kind % 10) {
      case 3:
        return send(channel, kind >= 0xF0 ? 300 : 1);
      case 4:
        return read(channel);
      case 5:
        return duplicate(channel);
      case 6:
        return close_one(channel);
      case 7:
        return raise(channel);
      case 8:
        return record_read(channel);
      default:
        return stop(channel);
    }
  }

  void command() {
    const uint8_t how = script_.next();
    struct {
      ib_uverbs_cmd_hdr header{IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL, 4, 1};
      ib_uverbs_create_comp_channel body{};
      std::byte more[64]{};
    } written;
    fuzz::ResponseArea on_stack;
    static fuzz::ResponseArea elsewhere;
    elsewhere.refresh();
    fuzz::ResponseArea& area = (how & 1) != 0 ? on_stack : elsewhere;
    written.body.response = area.address();
    size_t length = 16;
    bool bad = false;
    if ((how & 0x06) == 0x06) {
      bad = true;
      written.body.response = fuzz::bad_address(script_, pages());
    }
    if ((how & 0x18) == 0x18) written.header.command = script_.next32();
    if ((how & 0x60) == 0x60) length = script_.next() % sizeof written;
    if ((how & 0x60) == 0x40) written.header.in_words = script_.next16();
    if ((how & 0x60) == 0x20) written.header.out_words = script_.next16();
    std::byte* bytes = pages().last(length);
    std::memcpy(bytes, &written, length);
    size_t given = length;
    if ((how & 0x80) != 0) given += script_.next();
    if (channels_.size() >= kChannelsMax) return;
    const int free = lowest_free_fd();
    errno = 0;
    const ssize_t result = write_uverbs_command(bytes, given);
    UWARP_REQUIRE(area.untouched_from(result < 0 ? 0 : 4));
    if (result < 0) {
      UWARP_REQUIRE(errno == EINVAL || errno == EOPNOTSUPP || errno == EFAULT);
      UWARP_REQUIRE(errno != EFAULT || bad || given > length);
      UWARP_REQUIRE(lowest_free_fd() == free);
      return;
    }
    UWARP_REQUIRE(result == static_cast<ssize_t>(given) && given >= 16);
    // A bad address may still be valid for the four bytes of the fd; the application then has the
    // lowest free fd.
    const int fd = bad ? free : area.as<int>();
    UWARP_REQUIRE(fcntl(fd, F_GETFD) == FD_CLOEXEC);
    UWARP_REQUIRE(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
    const auto channel = event_channel_of(fd);
    UWARP_REQUIRE(channel != nullptr);
    channels_.push_back(std::make_unique<Channel>(Channel{{fd}, channel, {}, {}}));
  }

  void open_node() {
    const int number = static_cast<int>(script_.next32() >> (script_.next() & 31));
    const int fd = open_uverbs_node(number, script_.next() & 1 ? O_RDWR | O_CLOEXEC : O_RDONLY);
    UWARP_REQUIRE((fd >= 0) == is_uverbs_node(number));
    if (fd < 0) return;
    UWARP_REQUIRE(ioctl(fd, script_.next32(), nullptr) == -1);
    close(fd);
  }

  void ask_for_counter() {
    static constexpr const char* kStarts[] = {
        "", "class/infiniband/", "class/infiniband/uwarp_lo/ports/1/counters/",
        "class/infiniband/uwarp_lo/ports/1/counters/port_xmit_data", "/ports/1/counters/"};
    std::string path = kStarts[script_.below(std::size(kStarts))];
    for (size_t left = script_.below(40); left > 0; --left)
      path += static_cast<char>(script_.next());
    const CounterFile file = counter_file(path);
    UWARP_REQUIRE(file.value == nullptr || path.find(file.device) != std::string::npos);
    UWARP_REQUIRE(file.device.find('/') == std::string::npos);
    if (file.value != nullptr) (void)file.value(DeviceTotals{});
  }

  void send(Channel& to, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      const AsyncEventRecord record{0x1000 + ++sent_, script_.next32(), 0};
      to.channel->send(record);
      to.expected.push_back(bytes_of(record));
    }
  }

  void read(Channel& from) {
    std::byte out[kRecordMax + 8]{};
    const size_t length = script_.next() & 1 ? kRecordMax : script_.below(sizeof out);
    const int fd = from.fds[script_.below(from.fds.size())];
    ssize_t got = application_file(fd)->read(fd, {out, length});
    if (got < 0 && !from.expected.empty()) {
      // The record did not fit into the socket before.
      UWARP_REQUIRE(errno == EAGAIN);
      from.channel->records_read();
      got = application_file(fd)->read(fd, {out, length});
    }
    if (from.expected.empty()) {
      UWARP_REQUIRE(got < 0 && errno == EAGAIN);
      return;
    }
    const Bytes next = std::move(from.expected.front());
    from.expected.pop_front();
    UWARP_REQUIRE(got == static_cast<ssize_t>(std::min(length, next.size())));
    UWARP_REQUIRE(std::memcmp(out, next.data(), static_cast<size_t>(got)) == 0);
    last_read_ = next;
  }

  void duplicate(Channel& channel) {
    if (channel.fds.size() >= 3) return;
    const int copy = fcntl(channel.fds[0], F_DUPFD_CLOEXEC, 0);
    UWARP_REQUIRE(copy >= 0);
    application_file_duplicated(channel.fds[0], copy);
    UWARP_REQUIRE(event_channel_of(copy) == channel.channel);
    channel.fds.push_back(copy);
  }

  void close_one(Channel& channel) {
    const int fd = channel.fds.back();
    channel.fds.pop_back();
    application_file_closed(fd);
    close(fd);
    UWARP_REQUIRE(event_channel_of(fd) == nullptr);
    if (!channel.fds.empty()) return;
    std::erase_if(channels_, [&](const auto& each) { return each.get() == &channel; });
  }

  Queue& queue_of(Channel& channel) {
    if (channel.queues.size() < kQueuesMax) {
      const CompletionEventRecord record{++queues_};
      channel.queues.push_back(
          {std::make_unique<CompletionEvents>(channel.channel, record), record});
      return channel.queues.back();
    }
    return channel.queues[script_.below(kQueuesMax)];
  }
  void raise(Channel& channel) {
    Queue& queue = queue_of(channel);
    queue.events->raise();
    if (queue.stopped) return;
    if (!queue.unread) channel.expected.push_back(bytes_of(queue.record));
    queue.again = queue.unread;
    queue.unread = true;
  }
  /// libibverbs makes this call for a record that it has read.
  void record_read(Channel& channel) {
    for (Queue& queue : channel.queues) {
      if (last_read_ != bytes_of(queue.record)) continue;
      last_read_.clear();
      queue.events->record_read();
      queue.unread = queue.again && !queue.stopped;
      queue.again = false;
      if (queue.unread) channel.expected.push_back(bytes_of(queue.record));
      return;
    }
  }
  void stop(Channel& channel) {
    Queue& queue = queue_of(channel);
    queue.events->stop();
    queue.stopped = true;
    queue.unread = queue.again = false;
    std::erase(channel.expected, bytes_of(queue.record));
  }

  Script& script_;
  const bool looked_at_netdevs_ = is_uverbs_node(0);  // may open something that stays open
  const int first_free_ = lowest_free_fd();
  const size_t engine_fds_ = engine_fds();
  std::vector<std::unique_ptr<Channel>> channels_;
  Bytes last_read_;
  uint64_t sent_ = 0;
  uint64_t queues_ = 0;
};

}  // namespace
}  // namespace uwarp

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  uwarp::Script script(bytes, size);
  uwarp::Application(script).run();
  return 0;
}
