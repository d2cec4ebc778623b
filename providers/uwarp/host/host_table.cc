// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "host/host_table.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <mutex>

#include "base/c_boundary.h"
#include "base/process_own.h"
#include "base/settings.h"
#include "engine/engine.h"
#include "events/event_channel.h"
#include "events/raw_fds.h"
#include "host/uverbs_node.h"
#include "net/net_watch.h"
#include "os/clock.h"
#include "rdma_cm/cm_transport.h"
#include "rdma_cm/rdma_cm_node.h"
#include "sysfs/counter_files.h"
#include "sysfs/sysfs_tree.h"

// The table of functions that the preload calls. A thread's cancellation passes through the
// blocking write.

namespace uwarp {
namespace {

struct TreeState {
  SysfsTree tree{settings().host_sysfs};
  CachedDeviceScan scan;  ///< one listing of devices asks twice
};

constinit ProcessOwn<TreeState> process_tree;
constinit std::once_flag exit_once;

TreeState& tree_state() {
  if (TreeState* found = process_tree.find()) return *found;
  TreeState& state = process_tree.get();
  std::call_once(exit_once, [] { std::atexit([] { process_tree.destroy(); }); });
  return state;
}

const char* sysfs_root(const char* wanted) {
  return guarded(
      [&] {
        TreeState& state = tree_state();
        return state.tree.root(wanted, *state.scan.devices());
      },
      static_cast<const char*>(nullptr));
}

const char* sysfs_root_cached(const char* wanted) {
  const char* root =
      guarded([&] { return tree_state().tree.existing_root(); }, static_cast<const char*>(nullptr));
  return root != nullptr ? root : sysfs_root(wanted);
}

int open_counter(const char* path, int flags) {
  return guarded([&] { return open_counter_file(path, flags); }, -1);
}

void refresh(int fd) {
  guarded([&] {
    if (const auto file = application_file(fd)) file->refresh(fd);
  });
}

int has_devices() {
  return guarded([] { return net_devices()->empty() ? 0 : 1; });
}

int has_uverbs(int number) {
  return guarded([&] { return is_uverbs_node(number) ? 1 : 0; });
}

int has_rdma_cm() {
  return guarded(
      [] { return settings().cm == CmOwner::kUwarp && !net_devices()->empty() ? 1 : 0; });
}

int open_uverbs(int number, int flags) {
  return guarded([&] { return open_uverbs_node(number, flags); }, -1);
}

int open_rdma_cm(int flags) {
  return guarded([&] { return open_rdma_cm_node(flags); }, -1);
}

ssize_t write_command(int fd, uwarp_fd_kind kind, const void* bytes, size_t length) {
  return guarded(
      [&]() -> ssize_t {
        if (kind == UWARP_FD_RDMA_CM) return write_rdma_cm_command(fd, bytes, length);
        return write_uverbs_command(bytes, length);
      },
      ssize_t{-1});
}

ssize_t read_file(int fd, void* bytes, size_t length) {
  return guarded(
      [&] {
        const auto file = application_file(fd);
        return file != nullptr ? file->read(fd, {static_cast<std::byte*>(bytes), length})
                               : ::read(fd, bytes, length);
      },
      ssize_t{-1});
}

class CallerAwaits final : public Awaited {
 public:
  using Call = int (*)(void*, int64_t);
  CallerAwaits(Call call, void* argument, std::span<const pollfd> fds, int64_t timeout_ns,
               const sigset_t* mask)
      : call_(call), argument_(argument), fds_(fds) {
    signals = mask;
    if (timeout_ns >= 0) deadline_ns = now_ns() + static_cast<uint64_t>(timeout_ns);
    restarts = false;
  }
  bool arrived() override { return arrived_within(0); }
  /// So the last look has found, which may have taken it away.
  bool has_arrived() const { return result_ != 0; }
  /// Sleeps in the call until it arrives; false when the time is over.
  bool sleep() {
    if (deadline_ns == kNever) return arrived_within(-1);
    const uint64_t now = now_ns();
    return arrived_within(static_cast<int64_t>(deadline_ns > now ? deadline_ns - now : 0));
  }
  std::span<const pollfd> fds() const override { return fds_; }
  /// Why the call has failed, or 0.
  int error() const { return error_; }

 private:
  static constexpr uint64_t kNever = ~uint64_t{0};  // as in Awaited

  bool arrived_within(int64_t timeout_ns) {
    result_ = call_(argument_, timeout_ns);
    if (result_ < 0) error_ = errno;
    return has_arrived();
  }

  const Call call_;
  void* const argument_;
  const std::span<const pollfd> fds_;
  int result_ = 0;
  int error_ = 0;
};

int serve_until(int (*call)(void*, int64_t), void* argument, const pollfd* fds, size_t count,
                int64_t timeout_ns, const sigset_t* signals) {
  ErrnoGuard kept;
  try {
    Engine* engine = Engine::current();
    if (engine == nullptr) return EBUSY;
    const ChannelWait wait({fds, count});
    CallerAwaits awaited(call, argument, {fds, count}, timeout_ns, signals);
    int error = engine->progress().drive(awaited);
    const bool over = error == EINTR || error == ETIMEDOUT;
    // Another thread serves, or has taken what came.
    if (!over && !awaited.has_arrived() && (error != 0 || !awaited.arrived())) {
      const Progress::Waiter waiter(engine->progress());
      error = awaited.sleep() ? 0 : ETIMEDOUT;
    }
    if (awaited.error() != 0) kept.failed(awaited.error());
    return error;
  } catch (const std::exception&) {
    return EBUSY;
  }
}

void closing(int fd) {
  guarded([&] { application_file_closed(fd); });
}

void duplicated(int fd, int copy) {
  guarded([&] { application_file_duplicated(fd, copy); });
}

void becoming_daemon() { guarded(say_daemon_loses_listeners); }
void leading_session() { guarded(say_session_without_listeners); }

constexpr uwarp_host_table kTable = {
    UWARP_HOST_TABLE_VERSION,
    use_preload,
    sysfs_root,
    sysfs_root_cached,
    open_counter,
    refresh,
    has_devices,
    has_uverbs,
    has_rdma_cm,
    open_uverbs,
    open_rdma_cm,
    write_command,
    read_file,
    serve_until,
    closing,
    duplicated,
    becoming_daemon,
    leading_session,
};

}  // namespace

void update_sysfs_tree(const NetDeviceTable& devices) {
  guarded([&] {
    TreeState* state = process_tree.find();
    if (state != nullptr && state->tree.existing_root() != nullptr)
      (void)state->tree.root({}, devices);
  });
}

}  // namespace uwarp

extern "C" __attribute__((visibility("default"))) const uwarp_host_table* uwarp_host() {
  return &uwarp::kTable;
}
