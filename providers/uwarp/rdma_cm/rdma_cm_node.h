// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The rdma_cm device node: one open channel, its commands and its fds. Commands are write()s in the
// format of <rdma/rdma_user_cm.h>; they come from the application and may say anything.
#pragma once

#include <rdma/ib_user_sa.h>
#include <rdma/rdma_user_cm.h>
#include <sys/types.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

#include "base/result.h"
#include "base/settings.h"
#include "events/application_files.h"
#include "events/user_memory.h"
#include "net/net_device.h"
#include "rdma_cm/cm_event_queue.h"
#include "rdma_cm/cm_id.h"
#include "rdma_cm/cm_transport.h"

namespace uwarp {

/// Made by open_rdma_cm_node(), and held by the table of the application's files until the last
/// descriptor is closed. last_closed() destroys the ids of the channel that are left, so that no
/// event comes any more; a command that is under way still ends.
class RdmaCmNode final : public ApplicationFile {
  CmIdTable& ids_;
  CmTransport& transport_;
  const Persona persona_;
  const std::shared_ptr<CmEventQueue> queue_;

 public:
  /// `event_fd` is the engine's own fd of the eventfd that the application polls.
  RdmaCmNode(CmIdTable& ids, CmTransport& transport, int event_fd,
             Persona persona = settings().persona);
  RdmaCmNode(const RdmaCmNode&) = delete;
  RdmaCmNode& operator=(const RdmaCmNode&) = delete;

  /// What an fd is asked for when a command names another channel's fd.
  using NodeByFd = std::shared_ptr<RdmaCmNode> (*)(int fd);

  /// Carries out one command. `length`, or -1 and errno. GET_EVENT blocks unless the channel is
  /// O_NONBLOCK, and is then a cancellation point. Errors of the format: EINVAL, ENOSPC (response
  /// area too small), ENOSYS (unknown command), EFAULT; of the id: ENOENT (unknown), EINVAL
  /// (another channel's), ENXIO (its netdev is gone, and the command is not DESTROY_ID).
  ssize_t write(const void* bytes, size_t length, NodeByFd node_by_fd);

  /// Destroys all ids of the channel.
  void last_closed() override;

 private:
  class Command;
  using Handler = int (RdmaCmNode::*)(Command&);
  static Handler handler_of(uint32_t command);

  int create_id(Command& command);
  int destroy_id(Command& command);
  int bind_ip(Command& command);
  int bind(Command& command);
  int resolve_ip(Command& command);
  int resolve_addr(Command& command);
  int resolve_route(Command& command);
  int query_route(Command& command);
  int query(Command& command);
  int connect(Command& command);
  int listen(Command& command);
  int accept(Command& command);
  int reject(Command& command);
  int disconnect(Command& command);
  int init_qp_attr(Command& command);
  int get_event(Command& command);
  int set_option(Command& command);
  int notify(Command& command);
  int join_ip_group(Command& command);
  int join_group(Command& command);
  int leave_group(Command& command);
  int join(Command& command, const rdma_ucm_join_mcast& request, const sockaddr_storage& group);
  int migrate_id(Command& command);
  int write_event(Command& command);

  /// The id if it belongs to this channel; else ENOENT or EINVAL.
  Result<std::shared_ptr<CmId>> find_own(uint32_t number) const;
  /// The same for commands that need the id's device if it has one: else ENXIO.
  Result<std::shared_ptr<CmId>> find(uint32_t number) const;
};

// The process's channels, as the preload sees them.

/// Opens a channel; flags as for open(). -1 and errno.
int open_rdma_cm_node(int flags);
/// write() on a channel's fd. One that a forked child has inherited becomes a new, empty channel
/// then, so that a program may open one and then daemonise.
ssize_t write_rdma_cm_command(int fd, const void* bytes, size_t length);
/// Tells all ids how the netdevs are now. Throws std::bad_alloc: to be called again then.
void rdma_cm_netdevs_changed(const NetDeviceTable& devices);

// One rdma_cm command as it was written: header, payload, response area. The only place that reads
// a command's bytes; copies are bounded by what was written, as the kernel does it.
class RdmaCmNode::Command {
 public:
  /// Larger than every command that exists.
  static constexpr size_t kMaxPayload = 512;

  /// Copies header and payload in. EINVAL, EFAULT.
  int read(const void* bytes, size_t length, NodeByFd by_fd) {
    if (length < sizeof header_) return EINVAL;
    if (const int error = copy_from_user(&header_, bytes, sizeof header_)) return error;
    if (header_.in > length - sizeof header_) return EINVAL;
    node_by_fd = by_fd;
    payload_size_ = std::min<size_t>(header_.in, kMaxPayload);
    return copy_from_user(payload_, static_cast<const char*>(bytes) + sizeof header_,
                          payload_size_);
  }

  uint32_t code() const { return header_.cmd; }
  size_t response_size() const { return header_.out; }

  /// The payload; what an older application did not write is zero.
  template <typename Payload>
  Payload payload() const {
    static_assert(sizeof(Payload) <= kMaxPayload);
    Payload result{};
    std::memcpy(&result, payload_, std::min(sizeof result, payload_size_));
    return result;
  }

  /// Checks, before anything is done, that a response of at least `least` bytes fits.
  int check_response_size(size_t least) const { return response_size() < least ? ENOSPC : 0; }

  /// Writes the response, cut to the room that an older application gives.
  template <typename Response>
  int respond(uint64_t address, const Response& response) const {
    return copy_to_user(address, &response, std::min(sizeof response, response_size()));
  }

  NodeByFd node_by_fd = nullptr;

 private:
  rdma_ucm_cmd_hdr header_{};
  size_t payload_size_ = 0;
  alignas(8) std::byte payload_[kMaxPayload];
};

// Answers to the QUERY commands, made of an id's addresses. Pure.

rdma_ucm_query_route_resp route_response(const CmId::Addresses& addresses);
rdma_ucm_query_addr_resp address_response(const CmId::Addresses& addresses);
/// rdma_ucm_query_path_resp with room for its one path.
struct PathResponse {
  struct {
    uint32_t num_paths;
    uint32_t reserved;
  } head;
  ib_path_rec_data path;
};
static_assert(offsetof(PathResponse, path) == offsetof(rdma_ucm_query_path_resp, path_data));
/// An iWARP connection has no path records.
PathResponse path_response(const CmId::Addresses& addresses);
/// addresses that hold GIDs.
rdma_ucm_query_addr_resp gid_response(const CmId::Addresses& addresses);

}  // namespace uwarp
