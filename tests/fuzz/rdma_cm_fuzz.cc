// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The commands of /dev/infiniband/rdma_cm, written by a faulty application, and a network that may
// do anything. The input is a script of commands on two channels, whose ids, lengths and addresses
// are mostly valid. Checked: a wrong address gives EFAULT and nothing else does; no byte behind the
// response area changes; ids exist from creation to destruction, in their own channel only; at the
// end of an id as many events are reported as were delivered; readiness says whether there is an
// event; closed channels leave no id behind.
#include <netinet/in.h>
#include <poll.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/rdma_user_cm.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "fuzz/script.h"
#include "fuzz/user_addresses.h"
#include "kernel-abi/rdma_cm_abi.h"
#include "rdma_cm/cm_id.h"
#include "rdma_cm/rdma_cm_node.h"
#include "unit/rdma_cm/fake_transport.h"

namespace uwarp {
namespace {

using fuzz::Script;

// Set before the settings are read, so that commands with this address family are reached.
[[maybe_unused]] const int af_ib = setenv("UWARP_AF_IB", "1", 1);

constexpr size_t kChannels = 2;
constexpr size_t kCommandsMax = 64;
constexpr size_t kIdsMax = 24;
constexpr int kNowhere = -1;

/// The fields of a payload that the target fills in correctly.
struct Shape {
  size_t size;
  int response;  // offset, or kNowhere
  int id;
  size_t response_size;
};

#define AT(type, member) static_cast<int>(offsetof(type, member))
constexpr Shape kShapes[] = {
    {sizeof(rdma_ucm_create_id), AT(rdma_ucm_create_id, response), kNowhere,
     sizeof(rdma_ucm_create_id_resp)},
    {sizeof(rdma_ucm_destroy_id), AT(rdma_ucm_destroy_id, response), AT(rdma_ucm_destroy_id, id),
     sizeof(rdma_ucm_destroy_id_resp)},
    {sizeof(rdma_ucm_bind_ip), kNowhere, AT(rdma_ucm_bind_ip, id), 0},
    {sizeof(rdma_ucm_resolve_ip), kNowhere, AT(rdma_ucm_resolve_ip, id), 0},
    {sizeof(rdma_ucm_resolve_route), kNowhere, AT(rdma_ucm_resolve_route, id), 0},
    {sizeof(rdma_ucm_query), AT(rdma_ucm_query, response), AT(rdma_ucm_query, id),
     sizeof(rdma_ucm_query_route_resp)},
    {sizeof(rdma_ucm_connect), kNowhere, AT(rdma_ucm_connect, id), 0},
    {sizeof(rdma_ucm_listen), kNowhere, AT(rdma_ucm_listen, id), 0},
    {sizeof(rdma_ucm_accept), kNowhere, AT(rdma_ucm_accept, id), 0},
    {sizeof(rdma_ucm_reject), kNowhere, AT(rdma_ucm_reject, id), 0},
    {sizeof(rdma_ucm_disconnect), kNowhere, AT(rdma_ucm_disconnect, id), 0},
    {sizeof(rdma_ucm_init_qp_attr), AT(rdma_ucm_init_qp_attr, response),
     AT(rdma_ucm_init_qp_attr, id), sizeof(ib_uverbs_qp_attr)},
    {sizeof(rdma_ucm_get_event), AT(rdma_ucm_get_event, response), kNowhere,
     sizeof(rdma_ucm_event_resp)},
    {16, kNowhere, kNowhere, 0},  // GET_OPTION never existed
    {sizeof(rdma_ucm_set_option), kNowhere, AT(rdma_ucm_set_option, id), 0},
    {sizeof(rdma_ucm_notify), kNowhere, AT(rdma_ucm_notify, id), 0},
    {sizeof(rdma_ucm_join_ip_mcast), kNowhere, AT(rdma_ucm_join_ip_mcast, id), 0},
    {sizeof(rdma_ucm_destroy_id), kNowhere, AT(rdma_ucm_destroy_id, id), 0},
    {sizeof(rdma_ucm_migrate_id), AT(rdma_ucm_migrate_id, response), AT(rdma_ucm_migrate_id, id),
     sizeof(rdma_ucm_migrate_resp)},
    {sizeof(rdma_ucm_query), AT(rdma_ucm_query, response), AT(rdma_ucm_query, id), 1024},
    {sizeof(rdma_ucm_bind), kNowhere, AT(rdma_ucm_bind, id), 0},
    {sizeof(rdma_ucm_resolve_addr), kNowhere, AT(rdma_ucm_resolve_addr, id), 0},
    {sizeof(rdma_ucm_join_mcast), kNowhere, AT(rdma_ucm_join_mcast, id), 0},
    {32, 0, 8, 64},  // RESOLVE_IB_SERVICE does not exist here
    {sizeof(rdma_cm_abi::WriteCmEvent), kNowhere, AT(rdma_cm_abi::WriteCmEvent, id), 0},
};
constexpr size_t kPayloadMax = 600;

fuzz::GuardedPages& pages() {
  static fuzz::GuardedPages made;
  return made;
}

struct Channel {
  int fd = -1;
  std::shared_ptr<RdmaCmNode> node;
};
std::vector<Channel> channels;

std::shared_ptr<RdmaCmNode> node_by_fd(int fd) {
  for (const Channel& channel : channels) {
    if (channel.fd == fd) return channel.node;
  }
  return nullptr;
}

struct KnownId {
  size_t channel;
  uint64_t uid;
  uint32_t delivered = 0;
};

class Application {
 public:
  explicit Application(Script& script)
      : script_(script), persona_((script.next() & 1) != 0 ? Persona::kRoce : Persona::kIwarp) {
    channels.clear();
    for (size_t i = 0; i < kChannels; ++i) channels.push_back(open());
  }
  ~Application() {
    for (Channel& channel : channels) close(channel);
    channels.clear();
    UWARP_REQUIRE(table_.all().empty());
  }

  void run() {
    for (size_t i = 0; i < kCommandsMax && !script_.done(); ++i) {
      const uint8_t kind = script_.next();
      if (kind < 0xC0) {
        command(kind % std::size(kShapes));
      } else {
        network(kind & 0x0F);
      }
      if (transport_.connection != nullptr) connections_.push_back(transport_.connection);
      transport_.connection = nullptr;
      check_readiness();
    }
  }

 private:
  Channel open() {
    const int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return {fd, std::make_shared<RdmaCmNode>(table_, transport_, dup(fd), persona_)};
  }
  void close(Channel& channel) {
    channel.node->last_closed();
    ::close(channel.fd);
    const auto index = static_cast<size_t>(&channel - channels.data());
    std::erase_if(known_, [&](const auto& id) { return id.second.channel == index; });
  }
  bool readable(const Channel& channel) const {
    pollfd wait{channel.fd, POLLIN, 0};
    return poll(&wait, 1, 0) == 1;
  }

  uint32_t pick_id() {
    const uint8_t choice = script_.next();
    if (choice == 0xFF) return script_.next32();
    if (choice >= 0xF0 || known_.empty()) return choice & 0x0F;
    auto it = known_.begin();
    std::advance(it, choice % known_.size());
    return it->first;
  }

  void put_address(void* at, bool six) {
    sockaddr_storage out{};
    static constexpr const char* kAddresses[] = {
        "127.0.0.1", "0.0.0.0", "::1", "::", "::ffff:127.0.0.1", "203.0.113.1", "127.0.0.2"};
    const uint8_t choice = script_.next();
    const uint16_t port = choice & 0x40 ? script_.next16() : 7174;
    if ((choice & 0x0F) == 0x0F) {
      out.ss_family = kAfIb;
    } else {
      const auto ip = *IpAddress::from_string(kAddresses[(choice & 0x0F) % std::size(kAddresses)]);
      ip.to_sockaddr(out, port);
    }
    // Otherwise the raw bytes stay.
    if ((choice & 0x80) == 0) std::memcpy(at, &out, six ? sizeof(sockaddr_in6) : sizeof out);
  }

  template <typename T>
  void edit(auto change) {
    T value;
    std::memcpy(&value, payload_.data(), sizeof value);
    change(value);
    std::memcpy(payload_.data(), &value, sizeof value);
  }

  void put_right(uint32_t code) {
    switch (code) {
      case RDMA_USER_CM_CMD_CREATE_ID:
        return edit<rdma_ucm_create_id>([&](auto& it) {
          it.uid = uid_;
          if ((it.ps & 7) != 0) it.ps = (it.ps & 7) == 1 ? RDMA_PS_UDP : RDMA_PS_TCP;
        });
      case RDMA_USER_CM_CMD_BIND_IP:
        return edit<rdma_ucm_bind_ip>([&](auto& it) { put_address(&it.addr, true); });
      case RDMA_USER_CM_CMD_RESOLVE_IP:
        return edit<rdma_ucm_resolve_ip>([&](auto& it) {
          if (it.timeout_ms & 1) put_address(&it.src_addr, true);
          put_address(&it.dst_addr, true);
        });
      case RDMA_USER_CM_CMD_BIND:
        return edit<rdma_ucm_bind>([&](auto& it) {
          put_address(&it.addr, false);
          if (it.reserved > 0x20) return;
          it.reserved = 0;
          it.addr_size = size_of(&it.addr);
        });
      case RDMA_USER_CM_CMD_RESOLVE_ADDR:
        return edit<rdma_ucm_resolve_addr>([&](auto& it) {
          if (it.timeout_ms & 1) put_address(&it.src_addr, false);
          put_address(&it.dst_addr, false);
          if (it.reserved > 0x20) return;
          it.reserved = 0;
          it.src_size = it.timeout_ms & 1 ? size_of(&it.src_addr) : 0;
          it.dst_size = size_of(&it.dst_addr);
        });
      case RDMA_USER_CM_CMD_QUERY:
        return edit<rdma_ucm_query>([](auto& it) { it.option &= 3; });
      case RDMA_USER_CM_CMD_CONNECT:
        return edit<rdma_ucm_connect>(
            [](auto& it) { it.conn_param.valid = (it.conn_param.qp_num & 1) ^ 1; });
      case RDMA_USER_CM_CMD_ACCEPT:
        return edit<rdma_ucm_accept>([&](auto& it) {
          it.uid = uid_;
          it.conn_param.valid = (it.conn_param.qp_num & 1) ^ 1;
        });
      case RDMA_USER_CM_CMD_INIT_QP_ATTR:
        return edit<rdma_ucm_init_qp_attr>([](auto& it) { it.qp_state &= 7; });
      case RDMA_USER_CM_CMD_SET_OPTION:
        return edit<rdma_ucm_set_option>([&](auto& it) {
          it.level &= 0x80000001;
          it.optname &= 0x80000007;
          if (it.optlen > 0x20) it.optlen = it.optname == 1 || it.optname == 2 ? 4 : 1;
          address_is_bad_ = script_.next() >= 0xE0;
          it.optval = address_is_bad_ ? fuzz::bad_address(script_, pages()) : option_.address();
        });
      case RDMA_USER_CM_CMD_MIGRATE_ID:
        return edit<rdma_ucm_migrate_id>([&](auto& it) {
          if (it.fd < 0x1000000) it.fd = static_cast<uint32_t>(channels[it.fd % kChannels].fd);
        });
      case rdma_cm_abi::kWriteCmEvent:
        return edit<rdma_cm_abi::WriteCmEvent>([](auto& it) {
          if (it.event < 0x1000000) it.event = 18 + (it.event & 1);
        });
      default:
        return;
    }
  }
  static uint16_t size_of(const void* address) {
    sockaddr_storage storage;
    std::memcpy(&storage, address, sizeof storage);
    return static_cast<uint16_t>(size_of_address(storage));
  }

  /// Makes the bytes of a command and writes them to a channel.
  void command(uint32_t code) {
    if (code == RDMA_USER_CM_CMD_CREATE_ID && known_.size() >= kIdsMax) return;
    const Shape& shape = kShapes[code];
    const uint8_t how = script_.next();
    const size_t channel = how & 1;
    ++uid_;
    payload_.assign(kPayloadMax, std::byte{0});
    script_.fill(std::span(payload_).first(script_.next() % (kPayloadMax / 2)));
    address_is_bad_ = false;
    put_right(code);
    uint32_t id = 0;
    if (shape.id != kNowhere) {
      id = pick_id();
      std::memcpy(&payload_[static_cast<size_t>(shape.id)], &id, sizeof id);
    }
    fuzz::ResponseArea on_stack;
    static fuzz::ResponseArea elsewhere;
    elsewhere.refresh();
    fuzz::ResponseArea& area = (how & 2) != 0 ? on_stack : elsewhere;
    if (shape.response != kNowhere) {
      uint64_t address = area.address();
      if ((how & 0x0C) == 0x0C) {
        address_is_bad_ = true;
        address = fuzz::bad_address(script_, pages());
      }
      std::memcpy(&payload_[static_cast<size_t>(shape.response)], &address, sizeof address);
    }
    size_t length = shape.size;
    size_t in = shape.size;
    size_t out = shape.response_size;
    if ((how & 0x30) == 0x30) in = length = script_.next16() % kPayloadMax;
    if ((how & 0x30) == 0x20) out = script_.next16();
    if ((how & 0xC0) == 0xC0) in = script_.next16();
    // An older application writes less. The addresses in the rest are then zero, which is a bad
    // address.
    if (in < shape.size) address_is_bad_ = true;
    if (code >= RDMA_USER_CM_CMD_JOIN_MCAST) address_is_bad_ = true;
    write(channel, code, {payload_.data(), length}, in, out, area, id);
  }

  void write(size_t channel, uint32_t code, std::span<const std::byte> payload, size_t in,
             size_t out, const fuzz::ResponseArea& area, uint32_t id) {
    const rdma_ucm_cmd_hdr header{code, static_cast<uint16_t>(in), static_cast<uint16_t>(out)};
    const size_t length = sizeof header + payload.size();
    // The command ends where readable memory ends: one more byte is EFAULT.
    std::byte* bytes = pages().last(length);
    std::memcpy(bytes, &header, sizeof header);
    std::copy(payload.begin(), payload.end(), bytes + sizeof header);
    size_t given = length;
    if (script_.next() == 0xFF) {
      given += script_.next();
      address_is_bad_ = true;
    }
    const Channel& to = channels[channel];
    errno = 0;
    const ssize_t result = to.node->write(bytes, given, node_by_fd);
    const int error = result < 0 ? errno : 0;
    UWARP_REQUIRE(result == (error == 0 ? static_cast<ssize_t>(given) : -1));
    UWARP_REQUIRE(error != EFAULT || address_is_bad_);
    UWARP_REQUIRE(error >= 0 && error < 134);
    UWARP_REQUIRE(area.untouched_from(std::min(out, fuzz::ResponseArea::kSize)));
    note(channel, code, in, error, area, id);
  }

  /// Records what a command did to ids and events.
  void note(size_t channel, uint32_t code, size_t in, int error, const fuzz::ResponseArea& area,
            uint32_t id) {
    const auto known = known_.find(id);
    const bool whole = in >= kShapes[code].size;  // otherwise the id may have been cut off
    if (names_id_of_channel(code) && whole && known != known_.end() && !wild_.contains(id)) {
      UWARP_REQUIRE(error != ENOENT);
      UWARP_REQUIRE(error != 0 || known->second.channel == channel);
    }
    switch (code) {
      case RDMA_USER_CM_CMD_CREATE_ID:
        if (error == 0 && address_is_bad_) return forget();
        if (error == 0) {
          const auto made = area.as<rdma_ucm_create_id_resp>().id;
          UWARP_REQUIRE(!known_.contains(made));
          known_[made] = {channel, uid_};
        }
        return;
      case RDMA_USER_CM_CMD_DESTROY_ID:
        // A bad response address is found after the id has been destroyed.
        if (error != 0 && error != EFAULT) return;
        if (!whole) return forget();
        if (known == known_.end()) return (void)wild_.insert(id);
        if (error == 0 && !address_is_bad_ && !wild_.contains(id)) {
          UWARP_REQUIRE(area.as<rdma_ucm_destroy_id_resp>().events_reported ==
                        known->second.delivered);
        }
        if (known->second.channel == channel) known_.erase(known);
        return;
      case RDMA_USER_CM_CMD_MIGRATE_ID:
        if (error != 0 && error != EFAULT) return;
        if (!whole) return forget();
        if (known == known_.end()) return (void)wild_.insert(id);
        if (error == 0 && !address_is_bad_ && !wild_.contains(id)) {
          UWARP_REQUIRE(area.as<rdma_ucm_migrate_resp>().events_reported ==
                        known->second.delivered);
        }
        known->second.channel = channel;
        // The bad address may have been found before the id was moved.
        if (error != 0) wild_.insert(id);
        return;
      case RDMA_USER_CM_CMD_ACCEPT:
        if (!whole) return forget();
        if (known == known_.end() || tells_readiness()) return;
        if (error == 0) known->second.uid = uid_;
        if (error != 0) wild_.insert(id);  // the id may have the new uid already
        return;
      case RDMA_USER_CM_CMD_GET_EVENT:
        if (error == 0 && !address_is_bad_) return delivered(channel, area);
        if (error == 0) return forget();  // the event was written to an address that is not checked
        return;
      default:
        return;
    }
  }

  /// False where the number in the command may be right although it is no id of this channel:
  /// MIGRATE_ID takes an id of any channel, LEAVE_MCAST the number of a membership.
  static bool names_id_of_channel(uint32_t code) {
    return kShapes[code].id != kNowhere && code != RDMA_USER_CM_CMD_MIGRATE_ID &&
           code != RDMA_USER_CM_CMD_LEAVE_MCAST;
  }

  void delivered(size_t channel, const fuzz::ResponseArea& area) {
    const auto event = area.as<rdma_ucm_event_resp>();
    uint32_t source = event.id;
    if (event.event == static_cast<uint32_t>(CmEventType::kConnectRequest)) {
      if (!wild_.contains(event.id)) known_[event.id] = {channel, 0};
      const auto listener = std::find_if(known_.begin(), known_.end(), [&](const auto& each) {
        return each.second.uid == event.uid && event.uid != 0;
      });
      if (listener == known_.end()) return;
      source = listener->first;
    }
    if (wild_.contains(source)) return;
    const auto known = known_.find(source);
    if (known == known_.end() && strangers_) return;
    UWARP_REQUIRE(known != known_.end());
    UWARP_REQUIRE(known->second.channel == channel);
    UWARP_REQUIRE(known->second.uid == event.uid);
    ++known->second.delivered;
  }

  /// A command was carried out on an id that cannot be known here.
  void forget() {
    for (const auto& [id, known] : known_) wild_.insert(id);
    strangers_ = true;
  }
  /// ACCEPT by the active side of the roce persona: it gives the id no new uid.
  bool tells_readiness() const {
    rdma_ucm_accept request;
    std::memcpy(&request, payload_.data(), sizeof request);
    return persona_ == Persona::kRoce && request.conn_param.valid == 0;
  }

  void check_readiness() {
    for (const Channel& channel : channels) {
      // GET_EVENT with a bad address: if there is an event, it is put back.
      struct {
        rdma_ucm_cmd_hdr header{RDMA_USER_CM_CMD_GET_EVENT, sizeof(rdma_ucm_get_event),
                                sizeof(rdma_ucm_event_resp)};
        rdma_ucm_get_event payload{0};
      } peek;
      errno = 0;
      const ssize_t result = channel.node->write(&peek, sizeof peek, node_by_fd);
      UWARP_REQUIRE(result == -1);
      UWARP_REQUIRE(errno == (readable(channel) ? EFAULT : EAGAIN));
    }
  }

  void network(uint8_t what) {
    switch (what) {
      case 0:
      case 1:
        return request();
      case 2:
      case 3:
      case 4:
      case 5:
        return connection_event(what);
      case 6:
        transport_.bind_error = script_.next() & 1 ? EADDRINUSE : 0;
        return;
      case 7:
        transport_.listen_error = script_.next() & 1 ? EADDRINUSE : 0;
        return;
      case 8:
        transport_.connect_error = script_.next() & 1 ? EINVAL : 0;
        return;
      case 9:
        if (script_.next() & 1) {
          transport_.inside_connect = [](FakeConnection& made) {
            if (const auto owner = made.owner.lock()) owner->connection_established({}, {}, {});
          };
        } else {
          transport_.inside_connect = nullptr;
        }
        return;
      case 10: {
        Channel& channel = channels[script_.next() % kChannels];
        close(channel);
        // Connection requests that the application has not yet seen were dropped with the channel.
        channel = open();
        return;
      }
      case 11:
        transport_.neighbour_is_asked_for = script_.next() & 1;
        return;
      case 12:
        if (const auto listener = transport_.neighbour.lock())
          listener->neighbour_known(script_.next() & 1 ? 0 : -ETIMEDOUT);
        return;
      case 13:
        for (const auto& id : table_.all()) id->netdevs_changed(NetDeviceTable({}));
        return;
      default:
        return;
    }
  }
  ConnectParameters parameters() {
    ConnectParameters made;
    made.responder_resources = script_.next16();
    made.initiator_depth = script_.next16();
    made.qkey = made.initiator_depth & 1 ? kCmQkey : 0;
    made.private_data.resize(script_.next16() % 600);
    if (!made.private_data.empty()) made.private_data[0] = std::byte{script_.next()};
    return made;
  }
  sockaddr_storage network_address() {
    sockaddr_storage address{};
    put_address(&address, false);
    return address;
  }
  void request() {
    if (transport_.listener == nullptr) return;
    if (transport_.listener->owner.expired()) return;
    auto connection = std::make_shared<FakeConnection>();
    IpAddress::from_string("127.0.0.1")->to_sockaddr(connection->local, 7174);
    if (script_.next() >= 0xF0) connection->local = network_address();
    connection->remote = network_address();
    connection->request = parameters();
    if (script_.next() >= 0xF0)
      connection->accept_result = script_.next() & 1 ? EINVAL : ECONNRESET;
    if (transport_.listener->request(connection)) connections_.push_back(connection);
  }
  void connection_event(uint8_t what) {
    if (connections_.empty()) return;
    const auto connection = connections_[script_.below(connections_.size())];
    const auto owner = connection->owner.lock();
    if (owner == nullptr) return;
    const ConnectParameters peer = parameters();
    if (what == 2) owner->connection_established({}, network_address(), peer);
    if (what == 3) owner->connection_rejected({}, script_.next(), peer.private_data);
    if (what == 4) owner->connection_failed({}, script_.next() & 1 ? -ETIMEDOUT : -ECONNREFUSED);
    if (what == 5) owner->connection_ended({});
  }

  Script& script_;
  const Persona persona_;
  CmIdTable table_;
  FakeTransport transport_;
  std::vector<std::shared_ptr<FakeConnection>> connections_;
  std::map<uint32_t, KnownId> known_;
  /// Ids that the application used without having got them. What is recorded of these is
  /// unreliable.
  std::set<uint32_t> wild_;
  bool strangers_ = false;  // ids may exist that are not recorded
  std::vector<std::byte> payload_;
  fuzz::ResponseArea option_;
  uint64_t uid_ = 1000;
  bool address_is_bad_ = false;
};

}  // namespace
}  // namespace uwarp

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  uwarp::Script script(bytes, size);
  uwarp::Application(script).run();
  return 0;
}
