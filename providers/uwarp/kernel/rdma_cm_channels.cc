// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// The process's rdma_cm channels by fd. Several fds may be one channel (dup); the last one closed
// ends it.
#include <fcntl.h>
#include <sys/eventfd.h>

#include <cerrno>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "base/fork.h"
#include "base/process_own.h"
#include "kernel/cm_id.h"
#include "kernel/open_listeners.h"
#include "kernel/raw_fds.h"
#include "kernel/rdma_cm_node.h"
#include "os/engine_fds.h"

namespace uwarp {
namespace {

struct Channels {
  std::mutex lock;  ///< a leaf
  std::unordered_map<int, std::shared_ptr<RdmaCmNode>> by_fd;
  std::unordered_map<const RdmaCmNode*, int> fd_counts;
  CmIdTable ids;
};

ProcessOwn<Channels> channels;

std::shared_ptr<RdmaCmNode> node_of(int fd) {
  Channels& all = channels.get();
  const std::lock_guard guard(all.lock);
  const auto it = all.by_fd.find(fd);
  return it == all.by_fd.end() ? nullptr : it->second;
}

/// Makes the channel of an eventfd that the application has as `fd`. False and errno.
bool add_channel(int fd) {
  HeldFd own(duplicate_for_engine(fd), close_engine_fd);
  if (own.get() < 0) return false;
  // An old channel of this number was closed behind the preload's back.
  rdma_cm_node_closed(fd);
  Channels& all = channels.get();
  auto node = std::make_shared<RdmaCmNode>(all.ids, engine_transport(), own.get());
  own.take();
  const std::lock_guard guard(all.lock);
  all.fd_counts[node.get()] = 1;
  all.by_fd[fd] = std::move(node);
  return true;
}

/// An fd that this process inherited: behind the same number comes an eventfd of its own, because
/// the count of the old one is shared with the parent.
std::shared_ptr<RdmaCmNode> revive(int fd) {
  const int status = raw_fcntl(fd, F_GETFL);
  const int fd_flags = raw_fcntl(fd, F_GETFD);
  if (status < 0 || fd_flags < 0) return nullptr;
  const int fresh = raw_eventfd(0, (status & O_NONBLOCK) ? EFD_NONBLOCK : 0);
  if (fresh < 0) return nullptr;
  say_channel_without_listeners();
  const bool placed = raw_dup3(fresh, fd, (fd_flags & FD_CLOEXEC) ? O_CLOEXEC : 0) >= 0;
  raw_close(fresh);
  return placed && add_channel(fd) ? node_of(fd) : nullptr;
}

}  // namespace

int open_rdma_cm_node(int flags) {
  HeldFd fd(raw_eventfd(0, ((flags & O_NONBLOCK) ? EFD_NONBLOCK : 0) |
                               ((flags & O_CLOEXEC) ? EFD_CLOEXEC : 0)),
            close_quietly);
  if (fd.get() < 0 || !add_channel(fd.get())) return -1;
  mark_for_application(fd.get(), UWARP_FD_RDMA_CM);
  return fd.take();
}

ssize_t write_rdma_cm_command(int fd, const void* bytes, size_t length) {
  auto node = node_of(fd);
  if (node == nullptr && fork_generation() != 0) node = revive(fd);
  if (node == nullptr) {
    errno = EBADF;
    return -1;
  }
  return node->write(bytes, length, node_of);
}

void rdma_cm_node_closed(int fd) {
  Channels& all = channels.get();
  std::shared_ptr<RdmaCmNode> node;
  {
    const std::lock_guard guard(all.lock);
    const auto it = all.by_fd.find(fd);
    if (it == all.by_fd.end()) return;
    node = std::move(it->second);
    all.by_fd.erase(it);
    if (--all.fd_counts[node.get()] != 0) return;
    all.fd_counts.erase(node.get());
  }
  node->close();
}

void rdma_cm_node_duplicated(int fd, int copy) {
  Channels& all = channels.get();
  const std::lock_guard guard(all.lock);
  const auto it = all.by_fd.find(fd);
  if (it == all.by_fd.end()) return;
  auto node = it->second;
  all.by_fd[copy] = node;
  ++all.fd_counts[node.get()];
}

void rdma_cm_netdevs_changed(const NetDeviceTable& devices) {
  Channels* all = channels.find();
  if (all == nullptr) return;
  for (const auto& id : all->ids.all()) id->netdevs_changed(devices);
}

}  // namespace uwarp
