// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The commands of a channel. No frame here may catch everything or be noexcept: a thread may be
// cancelled inside GET_EVENT.
#include "rdma_cm/rdma_cm_node.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <memory>

#include "base/fork.h"
#include "base/process_own.h"
#include "events/raw_fds.h"
#include "kernel-abi/rdma_cm_abi.h"
#include "os/engine_fds.h"
#include "rdma_cm/cm_address.h"
#include "rdma_cm/cm_id.h"
#include "rdma_cm/cm_transport.h"

namespace uwarp {

namespace {

// An option's value is an int at most; of a longer one it matters that it can be read.
constexpr uint32_t kMaxOptionBytes = 16;
/// What the kernel can allocate at once.
constexpr uint32_t kMostOptionBytes = 4u << 20;

// Reasons for REJECT beside none, of InfiniBand's connection manager: by the application; ECE.
constexpr uint8_t kRejectConsumer = 28, kRejectVendorOption = 35;

/// An address of exactly so many bytes.
bool is_address(const void* bytes, size_t length, sockaddr_storage& out) {
  return read_address(bytes, length, out) && length == size_of_address(out);
}

/// A multicast group may be named by its GID.
IpAddress group_of(const sockaddr_storage& address) {
  if (address.ss_family != kAfIb) return ip_of(address);
  SockaddrIb ib;
  std::memcpy(&ib, &address, sizeof ib);
  return IpAddress::from_gid(ib.address);
}

}  // namespace

RdmaCmNode::RdmaCmNode(CmIdTable& ids, CmTransport& transport, int event_fd, Persona persona)
    : ids_(ids),
      transport_(transport),
      persona_(persona),
      queue_(std::make_shared<CmEventQueue>(event_fd)) {}

RdmaCmNode::Handler RdmaCmNode::handler_of(uint32_t command) {
  static constexpr Handler kHandlers[] = {
      &RdmaCmNode::create_id,      // 0
      &RdmaCmNode::destroy_id,     // 1
      &RdmaCmNode::bind_ip,        // 2
      &RdmaCmNode::resolve_ip,     // 3
      &RdmaCmNode::resolve_route,  // 4
      &RdmaCmNode::query_route,    // 5
      &RdmaCmNode::connect,        // 6
      &RdmaCmNode::listen,         // 7
      &RdmaCmNode::accept,         // 8
      &RdmaCmNode::reject,         // 9
      &RdmaCmNode::disconnect,     // 10
      &RdmaCmNode::init_qp_attr,   // 11
      &RdmaCmNode::get_event,      // 12
      nullptr,                     // 13 GET_OPTION: never existed
      &RdmaCmNode::set_option,     // 14
      &RdmaCmNode::notify,         // 15
      &RdmaCmNode::join_ip_group,  // 16
      &RdmaCmNode::leave_group,    // 17
      &RdmaCmNode::migrate_id,     // 18
      &RdmaCmNode::query,          // 19
      &RdmaCmNode::bind,           // 20
      &RdmaCmNode::resolve_addr,   // 21
      &RdmaCmNode::join_group,     // 22
      nullptr,                     // 23 RESOLVE_IB_SERVICE: asks a subnet manager
      &RdmaCmNode::write_event,    // 24
  };
  return command < std::size(kHandlers) ? kHandlers[command] : nullptr;
}

ssize_t RdmaCmNode::write(const void* bytes, size_t length, NodeByFd node_by_fd) {
  Command command;
  int error = command.read(bytes, length, node_by_fd);
  if (error == 0) {
    const Handler handler = handler_of(command.code());
    error = handler == nullptr ? ENOSYS : (this->*handler)(command);
  }
  if (error == 0) return static_cast<ssize_t>(length);
  errno = error;
  return -1;
}

void RdmaCmNode::last_closed() {
  // As a rule the application has destroyed them.
  if (!queue_->has_sources()) return;
  for (const auto& id : ids_.all()) {
    if (!queue_->takes_from(*id->events())) continue;
    ids_.remove(id->number());
    id->destroy();
  }
}

Result<std::shared_ptr<CmId>> RdmaCmNode::find_own(uint32_t number) const {
  auto id = ids_.find(number);
  if (id == nullptr) return Error{ENOENT};
  if (!queue_->takes_from(*id->events())) return Error{EINVAL};
  return id;
}

Result<std::shared_ptr<CmId>> RdmaCmNode::find(uint32_t number) const {
  auto id = find_own(number);
  if (id && (*id)->state() == CmIdState::kRemoved) return Error{ENXIO};
  return id;
}

int RdmaCmNode::create_id(Command& command) {
  const auto request = command.payload<rdma_ucm_create_id>();
  if (const int error = command.check_response_size(sizeof(rdma_ucm_create_id_resp))) return error;
  const auto service = CmService::of(request.ps, request.qp_type);
  if (!service) return EINVAL;
  const auto id = ids_.create([&](uint32_t number) {
    auto made = std::make_shared<CmId>(ids_, transport_, number, request.uid, *service, persona_);
    CmEventQueue::open(*made->events(), queue_);
    return made;
  });
  if (id == nullptr) return ENOMEM;
  const rdma_ucm_create_id_resp response{id->number()};
  const int error = command.respond(request.response, response);
  if (error == 0) return 0;
  ids_.remove(id->number());
  id->destroy();
  return error;
}

int RdmaCmNode::destroy_id(Command& command) {
  const auto request = command.payload<rdma_ucm_destroy_id>();
  if (const int error = command.check_response_size(sizeof(rdma_ucm_destroy_id_resp))) return error;
  if (const auto own = find_own(request.id); !own) return own.error();
  const auto id = ids_.remove(request.id);
  if (id == nullptr) return ENOENT;
  const rdma_ucm_destroy_id_resp response{id->destroy()};
  return command.respond(request.response, response);
}

int RdmaCmNode::bind_ip(Command& command) {
  const auto request = command.payload<rdma_ucm_bind_ip>();
  sockaddr_storage address;
  if (!read_address(&request.addr, sizeof request.addr, address)) return EINVAL;
  const auto id = find(request.id);
  return id ? (*id)->bind(address) : id.error();
}

int RdmaCmNode::bind(Command& command) {
  const auto request = command.payload<rdma_ucm_bind>();
  sockaddr_storage address;
  if (request.reserved != 0 || !is_address(&request.addr, request.addr_size, address)) {
    return EINVAL;
  }
  const auto id = find(request.id);
  return id ? (*id)->bind(address) : id.error();
}

int RdmaCmNode::resolve_ip(Command& command) {
  const auto request = command.payload<rdma_ucm_resolve_ip>();
  sockaddr_storage source{}, destination;
  if (request.src_addr.sin6_family != AF_UNSPEC &&
      !read_address(&request.src_addr, sizeof request.src_addr, source)) {
    return EINVAL;
  }
  if (!read_address(&request.dst_addr, sizeof request.dst_addr, destination)) return EINVAL;
  const auto id = find(request.id);
  return id ? (*id)->resolve_address(source, destination, request.timeout_ms) : id.error();
}

int RdmaCmNode::resolve_addr(Command& command) {
  const auto request = command.payload<rdma_ucm_resolve_addr>();
  sockaddr_storage source{}, destination;
  if (request.reserved != 0 ||
      (request.src_size != 0 && !is_address(&request.src_addr, request.src_size, source)) ||
      !is_address(&request.dst_addr, request.dst_size, destination)) {
    return EINVAL;
  }
  const auto id = find(request.id);
  return id ? (*id)->resolve_address(source, destination, request.timeout_ms) : id.error();
}

int RdmaCmNode::resolve_route(Command& command) {
  const auto request = command.payload<rdma_ucm_resolve_route>();
  const auto id = find(request.id);
  return id ? (*id)->resolve_route() : id.error();
}

int RdmaCmNode::query_route(Command& command) {
  const auto request = command.payload<rdma_ucm_query>();
  // The tail came later than the rest; older applications have no room for it.
  if (const int error =
          command.check_response_size(offsetof(rdma_ucm_query_route_resp, ibdev_index)))
    return error;
  const auto id = find(request.id);
  if (!id) return id.error();
  return command.respond(request.response, route_response((*id)->addresses()));
}

int RdmaCmNode::query(Command& command) {
  const auto request = command.payload<rdma_ucm_query>();
  constexpr size_t kLeast = offsetof(rdma_ucm_query_addr_resp, ibdev_index);
  const auto id = find(request.id);
  if (!id) return id.error();
  const auto answer = [&](size_t least, const auto& response) {
    const int error = command.check_response_size(least);
    return error != 0 ? error : command.respond(request.response, response);
  };
  const CmId::Addresses addresses = (*id)->addresses();
  switch (request.option) {
    case RDMA_USER_CM_QUERY_ADDR:
      return answer(kLeast, address_response(addresses));
    case RDMA_USER_CM_QUERY_GID:
      return answer(kLeast, gid_response(addresses));
    case RDMA_USER_CM_QUERY_PATH:
      return answer(sizeof(rdma_ucm_query_path_resp), path_response(addresses));
    default:
      return ENOSYS;
  }
}

int RdmaCmNode::connect(Command& command) {
  const auto request = command.payload<rdma_ucm_connect>();
  const auto id = find(request.id);
  return id ? (*id)->connect(request.conn_param) : id.error();
}

int RdmaCmNode::listen(Command& command) {
  const auto request = command.payload<rdma_ucm_listen>();
  const auto id = find(request.id);
  return id ? (*id)->listen(static_cast<int>(request.backlog)) : id.error();
}

int RdmaCmNode::accept(Command& command) {
  const auto request = command.payload<rdma_ucm_accept>();
  const auto id = find(request.id);
  return id ? (*id)->accept(request.uid, request.conn_param) : id.error();
}

int RdmaCmNode::reject(Command& command) {
  const auto request = command.payload<rdma_ucm_reject>();
  const uint8_t reason = request.reason;
  if (reason != 0 && reason != kRejectConsumer && reason != kRejectVendorOption) return EINVAL;
  const auto id = find(request.id);
  if (!id) return id.error();
  return (*id)->reject(std::as_bytes(std::span(request.private_data, request.private_data_len)));
}

int RdmaCmNode::disconnect(Command& command) {
  const auto request = command.payload<rdma_ucm_disconnect>();
  const auto id = find(request.id);
  return id ? (*id)->disconnect() : id.error();
}

int RdmaCmNode::init_qp_attr(Command& command) {
  const auto request = command.payload<rdma_ucm_init_qp_attr>();
  ib_uverbs_qp_attr response{};
  if (const int error = command.check_response_size(sizeof response)) return error;
  const auto id = find(request.id);
  const int error = id ? (*id)->qp_attributes(request.qp_state, response) : id.error();
  return error != 0 ? error : command.respond(request.response, response);
}

int RdmaCmNode::get_event(Command& command) {
  const auto request = command.payload<rdma_ucm_get_event>();
  // The last two fields came later.
  if (const int error = command.check_response_size(offsetof(rdma_ucm_event_resp, reserved)))
    return error;
  CmEventReservation taken;
  if (const int error = queue_->take(taken)) return error;
  const int error = command.respond(request.response, taken.front().event.response);
  if (error != 0) queue_->put_back(std::move(taken));
  return error;
}

int RdmaCmNode::set_option(Command& command) {
  const auto request = command.payload<rdma_ucm_set_option>();
  if (request.optlen > kMostOptionBytes) return EINVAL;
  std::byte value[kMaxOptionBytes];
  const auto id = find(request.id);
  if (!id) return id.error();
  const uint32_t length = std::min(request.optlen, kMaxOptionBytes);
  const auto* const from = reinterpret_cast<const void*>(request.optval);
  if (const int error = copy_from_user(value, from, length)) return error;
  return (*id)->set_option(request.level, request.optname, {value, length});
}

int RdmaCmNode::notify(Command& command) {
  const auto request = command.payload<rdma_ucm_notify>();
  const auto id = find(request.id);
  return id ? (*id)->notify(request.event) : id.error();
}

int RdmaCmNode::join_ip_group(Command& command) {
  const auto request = command.payload<rdma_ucm_join_ip_mcast>();
  sockaddr_storage group;
  if (!read_address(&request.addr, sizeof request.addr, group)) return EINVAL;
  rdma_ucm_join_mcast asked{};
  asked.response = request.response;
  asked.uid = request.uid;
  asked.id = request.id;
  return join(command, asked, group);
}

int RdmaCmNode::join_group(Command& command) {
  const auto request = command.payload<rdma_ucm_join_mcast>();
  sockaddr_storage group;
  if (!is_address(&request.addr, request.addr_size, group)) return EINVAL;
  return join(command, request, group);
}

int RdmaCmNode::join(Command& command, const rdma_ucm_join_mcast& request,
                     const sockaddr_storage& group) {
  rdma_ucm_create_id_resp response{};
  if (const int error = command.check_response_size(sizeof response)) return error;
  const auto id = find(request.id);
  if (!id) return id.error();
  if (const int error =
          (*id)->join_group(group_of(group), request.uid, request.join_flags, response.id))
    return error;
  const int error = command.respond(request.response, response);
  if (error != 0) (void)(*id)->leave_group(response.id);
  return error;
}

int RdmaCmNode::leave_group(Command& command) {
  const auto request = command.payload<rdma_ucm_destroy_id>();
  if (const int error = command.check_response_size(sizeof(rdma_ucm_destroy_id_resp))) return error;
  for (const auto& id : ids_.all()) {
    if (!queue_->takes_from(*id->events())) continue;
    if (const auto reported = id->leave_group(request.id))
      return command.respond(request.response, rdma_ucm_destroy_id_resp{*reported});
  }
  return ENOENT;
}

int RdmaCmNode::migrate_id(Command& command) {
  const auto request = command.payload<rdma_ucm_migrate_id>();
  if (const int error = command.check_response_size(sizeof(rdma_ucm_migrate_resp))) return error;
  // `fd` is the channel on which the id is now; this one is where it goes.
  const auto from = command.node_by_fd(static_cast<int>(request.fd));
  if (from == nullptr) return EINVAL;
  const auto id = from->find(request.id);
  if (!id) return id.error();
  const rdma_ucm_migrate_resp response{CmEventQueue::move(*(*id)->events(), queue_)};
  return command.respond(request.response, response);
}

int RdmaCmNode::write_event(Command& command) {
  const auto request = command.payload<rdma_cm_abi::WriteCmEvent>();
  const auto type = static_cast<CmEventType>(request.event);
  if (type != CmEventType::kUser && type != CmEventType::kInternal) return EINVAL;
  const auto id = find(request.id);
  return id ? (*id)->write_event(type, request.status, request.argument) : id.error();
}

// Query responses. An id without a device (a wildcard) has GUID 0 and port 0: librdmacm takes that
// as "no device"; with a device the port must be at least 1, because it indexes a table.

namespace {

/// No index: librdmacm then finds the device by its GUID.
constexpr uint32_t kNoDeviceIndex = 0xffffffff;

template <typename Response>
void fill_device(Response& response, const CmId::Addresses& addresses) {
  response.ibdev_index = kNoDeviceIndex;
  if (addresses.device == nullptr) return;
  response.node_guid = addresses.device->guid_be;
  response.port_num = 1;
}

/// Old structures have room for an IPv6 address only.
sockaddr_in6 short_address(const sockaddr_storage& address) {
  sockaddr_in6 out{};
  if (address.ss_family == kAfIb) return out;
  std::memcpy(&out, &address, sizeof out);
  return out;
}

SockaddrIb ib_address(const sockaddr_storage& address) {
  SockaddrIb out{};
  out.family = kAfIb;
  out.pkey = htons(kDefaultPkey);
  copy_gid(out.address, address);
  if (address.ss_family == kAfIb) std::memcpy(&out, &address, sizeof out);
  return out;
}

}  // namespace

rdma_ucm_query_route_resp route_response(const CmId::Addresses& addresses) {
  rdma_ucm_query_route_resp response{};
  fill_device(response, addresses);
  response.src_addr = short_address(addresses.local);
  response.dst_addr = short_address(addresses.remote);
  // The first record is where librdmacm looks for the GIDs, also when there are no paths.
  if (addresses.has_path) {
    response.num_paths = 1;
    response.ib_route[0] = path_record(addresses);
  }
  copy_gid(response.ib_route[0].sgid, addresses.local);
  copy_gid(response.ib_route[0].dgid, addresses.remote);
  return response;
}

rdma_ucm_query_addr_resp address_response(const CmId::Addresses& addresses) {
  rdma_ucm_query_addr_resp response{};
  fill_device(response, addresses);
  response.pkey = htons(kDefaultPkey);
  response.src_size = static_cast<uint16_t>(size_of_address(addresses.local));
  response.dst_size = static_cast<uint16_t>(size_of_address(addresses.remote));
  std::memcpy(&response.src_addr, &addresses.local, response.src_size);
  std::memcpy(&response.dst_addr, &addresses.remote, response.dst_size);
  return response;
}

PathResponse path_response(const CmId::Addresses& addresses) {
  PathResponse response{};
  if (!addresses.has_path) return response;
  response.head.num_paths = 1;
  response.path = packed_path(addresses);
  return response;
}

rdma_ucm_query_addr_resp gid_response(const CmId::Addresses& addresses) {
  rdma_ucm_query_addr_resp response{};
  fill_device(response, addresses);
  response.pkey = htons(kDefaultPkey);
  const SockaddrIb local = ib_address(addresses.local);
  const SockaddrIb remote = ib_address(addresses.remote);
  response.src_size = sizeof local;
  response.dst_size = sizeof remote;
  std::memcpy(&response.src_addr, &local, sizeof local);
  std::memcpy(&response.dst_addr, &remote, sizeof remote);
  return response;
}

// The process's rdma_cm channels.

namespace {

ProcessOwn<CmIdTable> process_ids;

std::shared_ptr<RdmaCmNode> node_of(int fd) {
  return std::dynamic_pointer_cast<RdmaCmNode>(application_file(fd));
}

/// Makes the channel of an eventfd that the application has as `fd`. False and errno.
bool add_channel(int fd) {
  OwnedFd own(duplicate_for_engine(fd), close_engine_fd);
  if (own.get() < 0) return false;
  auto node = std::make_shared<RdmaCmNode>(process_ids.get(), engine_transport(), own.get());
  own.take();
  give_to_application(fd, UWARP_FD_RDMA_CM, std::move(node));
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
  OwnedFd fd(raw_eventfd(0, ((flags & O_NONBLOCK) ? EFD_NONBLOCK : 0) |
                                ((flags & O_CLOEXEC) ? EFD_CLOEXEC : 0)),
             close_quietly);
  if (fd.get() < 0 || !add_channel(fd.get())) return -1;
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

void rdma_cm_netdevs_changed(const NetDeviceTable& devices) {
  CmIdTable* ids = process_ids.find();
  if (ids == nullptr) return;
  for (const auto& id : ids->all()) id->netdevs_changed(devices);
}

}  // namespace uwarp
