// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "verbs/queue_pair.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "base/limits.h"
#include "base/log.h"
#include "base/settings.h"
#include "verbs/boundary.h"

namespace uwarp {
namespace {

/// Extensions of ibv_qp_init_attr_ex that are known here; the others belong to other transports.
constexpr uint32_t kKnownInitMask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_XRCD |
                                    IBV_QP_INIT_ATTR_CREATE_FLAGS | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
constexpr uint32_t kAllInitMask = kKnownInitMask | IBV_QP_INIT_ATTR_MAX_TSO_HEADER |
                                  IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH;

/// Creation flags that libibverbs knows.
constexpr uint32_t kAllCreateFlags = IBV_QP_CREATE_BLOCK_SELF_MCAST_LB | IBV_QP_CREATE_SCATTER_FCS |
                                     IBV_QP_CREATE_CVLAN_STRIPPING | IBV_QP_CREATE_SOURCE_QPN |
                                     IBV_QP_CREATE_PCI_WRITE_END_PADDING;

/// A type of queue pair, and what its user can do where there is none.
struct QpType {
  ibv_qp_type type;
  const char* name;
  std::optional<Transport> transport;  // as which it exists
  Persona least;                       // ... in this persona
  const char* advice;
};
constexpr QpType kTypes[] = {
    {IBV_QPT_RC, "RC", Transport::kRc, Persona::kIwarp, ""},
    {IBV_QPT_UC, "UC", Transport::kUc, Persona::kRoce, ""},
    {IBV_QPT_UD, "UD", Transport::kUd, Persona::kRoce, ""},
    {IBV_QPT_RAW_PACKET, "raw packet", std::nullopt, Persona::kRoce,
     "AF_PACKET sockets send and receive whole frames"},
    {IBV_QPT_XRC_SEND, "XRC", Transport::kXrcSend, Persona::kRoce, ""},
    {IBV_QPT_XRC_RECV, "XRC", Transport::kXrcReceive, Persona::kRoce, ""},
    {IBV_QPT_DRIVER, "driver's own", std::nullopt, Persona::kRoce,
     "Set the application to plain verbs"},
};

/// Null: there is no such type.
const QpType* find_type(const ibv_qp_type& type) {
  const auto* const found =
      std::find_if(std::begin(kTypes), std::end(kTypes),
                   [&](const QpType& row) { return raw_value(row.type) == raw_value(type); });
  return found != std::end(kTypes) ? found : nullptr;
}

/// 0; EINVAL (no such type), EOPNOTSUPP (a type that is not in this persona).
int check_type(const ibv_context& context, const ibv_qp_type& type) {
  const QpType* const row = find_type(type);
  if (row == nullptr) return EINVAL;
  const Persona persona = settings().persona;
  if (row->transport && (row->least == Persona::kIwarp || persona == Persona::kRoce)) return 0;
  const std::string refused = std::string(context.device->name) + ": no queue pair of type " +
                              row->name + " in the " +
                              (persona == Persona::kRoce ? "roce" : "iwarp") + " persona. ";
  if (row->transport)
    advise(refused + kAskForRoce);
  else
    log_event("%s%s", refused.c_str(), row->advice);
  return EOPNOTSUPP;
}

/// Finds our objects behind the public ones. EINVAL when one is missing or of another device.
int find_parts(const ibv_context* context, ibv_pd* pd, ibv_xrcd* xrcd, const ibv_qp_init_attr& init,
               QpParts& parts) {
  const auto find = [context]<typename Object>(Object*& part, auto* named) {
    if (named == nullptr) return EINVAL;
    part = &Object::of(named);
    return named->context == context ? 0 : EINVAL;
  };
  if (init.qp_type == IBV_QPT_XRC_RECV) return find(parts.xrcd, xrcd);
  if (const int error = find(parts.pd, pd)) return error;
  if (const int error = find(parts.send_cq, init.send_cq)) return error;
  if (init.qp_type == IBV_QPT_XRC_SEND) return 0;
  if (const int error = find(parts.recv_cq, init.recv_cq)) return error;
  if (init.srq == nullptr) return 0;
  if (const int error = find(parts.srq, init.srq)) return error;
  return parts.srq->opened != nullptr ? EINVAL : 0;  // of an XRC domain
}

/// What is given for what was asked: rings are made as asked, a shared queue has its own limits,
/// some inline data is always possible, and XRC has one direction.
ibv_qp_init_attr granted(const ibv_qp_init_attr& asked) {
  ibv_qp_init_attr init = asked;
  const uint32_t least_inline = std::min(kLeastInline, settings().adapter.max_inline_data);
  init.cap.max_inline_data = std::max(init.cap.max_inline_data, least_inline);
  if (init.qp_type == IBV_QPT_XRC_RECV) init.cap = {};
  if (init.srq != nullptr || init.qp_type == IBV_QPT_XRC_SEND)
    init.cap.max_recv_wr = init.cap.max_recv_sge = 0;
  return init;
}

/// What ibv_wr_* can be asked for.
uint64_t operations_of(const ibv_qp_type& type) {
  const Transport transport = *find_type(type)->transport;
  if (transport == Transport::kUc) return kUnansweredOperations;
  if (transport == Transport::kUd) return kDatagramOperations;
  return settings().adapter.has_atomics() ? kBatchOperations
                                          : kBatchOperations & ~kAtomicOperations;
}

QpConfig config_of(VerbsQp& qp) {
  QpConfig config;
  config.transport = *find_type(qp.init.qp_type)->transport;
  if (qp.parts.xrcd != nullptr) {
    config.xrc = qp.parts.xrcd->domain.get();
    config.domain = &config.xrc->protection_domain();
    config.send_cq = config.recv_cq = &config.xrc->no_completions();
  } else {
    config.domain = &qp.parts.pd->domain;
    config.send_cq = &qp.parts.send_cq->queue;
    config.recv_cq = qp.parts.recv_cq != nullptr ? &qp.parts.recv_cq->queue : config.send_cq;
  }
  if (VerbsSrq* const srq = qp.parts.srq; srq != nullptr) {
    config.srq = &srq->queue;
    config.srq_domain = &srq->domain.domain;
  }
  config.regions = &qp.device.engine().regions();
  config.listener = qp.shared != nullptr ? static_cast<QpEventListener*>(qp.shared.get()) : &qp;
  config.max_send_wr = qp.init.cap.max_send_wr;
  config.max_recv_wr = qp.init.cap.max_recv_wr;
  config.max_send_sge = qp.init.cap.max_send_sge;
  config.max_recv_sge = qp.init.cap.max_recv_sge;
  config.max_inline_bytes = qp.init.cap.max_inline_data;
  const AdapterProfile& profile = settings().adapter;
  config.max_read_sge = profile.max_sge_rd;
  config.max_message_bytes = profile.max_msg_sz;
  config.max_datagram_bytes = std::min(profile.mtu_bytes(), profile.max_msg_sz);
  config.atomics = profile.has_atomics();
  config.acknowledged = settings().acknowledged() && !is_unreliable(config.transport);
  config.immediate_in_last_half = settings().immediate == ImmediateHalf::kLast;
  config.signal_all = qp.init.sq_sig_all != 0;
  if (DeviceFaults* faults = qp.device.faults())
    config.script =
        faults->make_script(config.transport == Transport::kUd ? FaultScript::Of::kDatagrams
                                                               : FaultScript::Of::kConnection);
  return config;
}

/// It is in the iwarp persona, where each queue pair has a domain.
bool is_rnic(const VerbsQp& qp) { return qp.base.context->device->node_type == IBV_NODE_RNIC; }

uint32_t slot_of(StatPage& page, const VerbsCq* cq) {
  return cq != nullptr ? page.index_of(*cq->slot) : kNoSlot;
}

/// Gives it an endpoint. 0 or an errno.
template <typename Endpoint>
int take(VerbsQp& qp, std::shared_ptr<Endpoint>& place, Result<std::shared_ptr<Endpoint>> made) {
  if (!made) return made.error();
  place = std::move(*made);
  StatPage& page = qp.device.engine().stat_page();
  place->name_queues(slot_of(page, qp.parts.send_cq), slot_of(page, qp.parts.recv_cq));
  qp.base.qp_num = place->number().value;
  qp.give_handle(qp.device.base(), qp.base.qp_num);
  return 0;
}

int take_endpoint(VerbsQp& qp) {
  Engine& engine = qp.device.engine();
  if (qp.init.qp_type == IBV_QPT_UD)
    return take(
        qp, qp.datagrams,
        DatagramEndpoint::create(engine.trunks(), qp.device.shared_device(), config_of(qp)));
  if (qp.parts.xrcd != nullptr) qp.shared = std::make_shared<SharedEndpoint>();
  if (const int error = take(qp, qp.endpoint,
                             Endpoint::create(engine.context(), qp.device.device(), config_of(qp))))
    return error;
  if (qp.shared == nullptr) return 0;
  qp.shared->endpoint = qp.endpoint;
  qp.parts.xrcd->domain->add(qp.shared, qp);
  return 0;
}

/// Makes the queue pair and writes the granted capacities back into `init`. `pd` or `xrcd` may be
/// null.
ibv_qp* make_qp(ibv_context* context, ibv_pd* pd, ibv_xrcd* xrcd, ibv_qp_init_attr& init,
                uint64_t operations = 0) {
  const ibv_qp_cap& cap = init.cap;
  const AdapterProfile& most = settings().adapter;
  if (cap.max_send_wr > most.max_qp_wr || cap.max_send_sge > most.max_sge ||
      cap.max_inline_data > most.max_inline_data)
    return fail(EINVAL);
  if (init.srq == nullptr && (cap.max_recv_wr > most.max_qp_wr || cap.max_recv_sge > most.max_sge))
    return fail(EINVAL);
  QpParts parts;
  if (int error = find_parts(context, pd, xrcd, init, parts)) return fail(error);
  DeviceContext& device = DeviceContext::of(context);
  if (const int error = device.refusal()) return fail(error);
  auto qp = std::make_unique<VerbsQp>(device, parts, granted(init), operations);
  if (device.qp_count > most.max_qp) return fail(ENOMEM);
  qp->base.pd = pd;  // as given, also where it has no meaning
  if (const int error = take_endpoint(*qp)) return fail(error);
  qp->device.add(qp.get());
  init.cap = qp->init.cap;
  return &qp.release()->base;
}

}  // namespace

VerbsQp::VerbsQp(DeviceContext& device, const QpParts& parts, const ibv_qp_init_attr& init,
                 uint64_t operations)
    : object_abi::Qp{},
      device(device),
      parts(parts),
      init(init),
      event_reservation(device.async_channel(), kEventKinds),
      batch(operations != 0
                ? std::make_unique<WorkBatch>(operations, this->init.cap.max_inline_data,
                                              parts.pd != nullptr && parts.pd->one_thread())
                : nullptr) {
  base.qp_context = init.qp_context;
  base.send_cq = init.send_cq;
  base.recv_cq = init.recv_cq;
  base.srq = init.srq;
  base.state = IBV_QPS_RESET;
  base.qp_type = init.qp_type;
  pthread_mutex_init(&base.mutex, nullptr);
  pthread_cond_init(&base.cond, nullptr);
  ++device.qp_count;
  if (parts.pd != nullptr) parts.pd->user_made();
  each_part([](auto& part) { part.users.fetch_add(1, std::memory_order_relaxed); });
  if (batch == nullptr) return;
  fill_functions(extended);
  // Where a release does not look for its comp_mask, the word belongs to functions of operations
  // that no queue pair here has.
  for (size_t offset : object_abi::kQpCompMaskOffsets)
    std::memcpy(reserved + offset, &object_abi::kQpCompMaskExtended, sizeof(uint32_t));
}

VerbsQp::~VerbsQp() {
  end();
  --device.qp_count;
  each_part([](auto& part) { part.users.fetch_sub(1, std::memory_order_release); });
  if (parts.pd != nullptr) parts.pd->user_gone();
  pthread_cond_destroy(&base.cond);
  pthread_mutex_destroy(&base.mutex);
}

void VerbsQp::stop() {
  if (std::exchange(stopped_, true)) return;
  if (shared != nullptr && endpoint != nullptr)
    parts.xrcd->domain->close(*shared, *this);
  else if (endpoint != nullptr || datagrams != nullptr)
    any().destroy();
}

void VerbsQp::end() {
  stop();
  endpoint.reset();
  shared.reset();
  datagrams.reset();
}

ibv_qp* create_qp(ibv_pd* pd, ibv_qp_init_attr* init) {
  if (int error = check_type(*pd->context, init->qp_type)) return fail(error);
  return make_qp(pd->context, pd, nullptr, *init);
}

ibv_qp* create_qp_ex(ibv_context* context, ibv_qp_init_attr_ex* extended) {
  if (int error = check_type(*context, extended->qp_type)) return fail(error);
  if ((extended->comp_mask & ~kAllInitMask) != 0) return fail(EINVAL);
  if ((extended->comp_mask & ~kKnownInitMask) != 0) return fail(EOPNOTSUPP);
  if ((extended->comp_mask & IBV_QP_INIT_ATTR_XRCD) && extended->qp_type != IBV_QPT_XRC_RECV)
    return fail(EOPNOTSUPP);
  const auto given = [&](uint32_t bit) { return (extended->comp_mask & bit) != 0; };
  ibv_pd* const pd = given(IBV_QP_INIT_ATTR_PD) ? extended->pd : nullptr;
  ibv_xrcd* const xrcd = given(IBV_QP_INIT_ATTR_XRCD) ? extended->xrcd : nullptr;
  const uint32_t flags = given(IBV_QP_INIT_ATTR_CREATE_FLAGS) ? extended->create_flags : 0;
  if ((flags & ~kAllCreateFlags) != 0) return fail(EINVAL);
  const uint32_t known =
      extended->qp_type == IBV_QPT_UD ? uint32_t{IBV_QP_CREATE_BLOCK_SELF_MCAST_LB} : 0;
  if ((flags & ~known) != 0) return fail(EOPNOTSUPP);
  const uint64_t operations = given(IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) ? extended->send_ops_flags : 0;
  if ((operations & ~operations_of(extended->qp_type)) != 0) return fail(EOPNOTSUPP);
  ibv_qp_init_attr init = {extended->qp_context, extended->send_cq, extended->recv_cq,
                           extended->srq,        extended->cap,     extended->qp_type,
                           extended->sq_sig_all};
  ibv_qp* qp = make_qp(context, pd, xrcd, init, operations);
  if (qp == nullptr) return nullptr;
  extended->cap = init.cap;
  if (flags != 0) VerbsQp::unchecked(qp).datagrams->refuse_own_multicast();
  return qp;
}

int modify_qp(ibv_qp* base, ibv_qp_attr* attr, int mask) {
  VerbsQp& qp = VerbsQp::of(base, AskedBy::kWrite);
  if (const int error = qp.device.refusal()) return error;
  ibv_qp_attr named{};
  merge_attributes(named, *attr, mask);
  if (int error = check_attributes(named, mask)) return error;
  if (int error = qp.any().modify(named, mask)) return error;
  qp.untouched.store(false, std::memory_order_relaxed);
  if ((mask & IBV_QP_DEST_QPN) != 0 && is_rnic(qp)) qp.parts.pd->may_leave_regions = true;
  return 0;
}

int query_qp(ibv_qp* base, ibv_qp_attr* attr, int mask, ibv_qp_init_attr* init) {
  // The kernel's command has no room for what came with rate limits and later.
  if ((mask & ~(IBV_QP_RATE_LIMIT - 1)) != 0) return EOPNOTSUPP;
  VerbsQp& qp = VerbsQp::of(base, AskedBy::kWrite);
  *attr = qp.any().attributes();
  if (qp.untouched.load(std::memory_order_relaxed) && is_rnic(qp))
    attr->qp_state = attr->cur_qp_state = IBV_QPS_INIT;
  attr->cap = qp.init.cap;
  attr->sq_draining = qp.endpoint != nullptr && qp.endpoint->qp().draining();
  *init = qp.init;
  return 0;
}

ibv_qp* open_qp(ibv_context* context, ibv_qp_open_attr* attr) {
  constexpr uint32_t kNeeded = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
  if (const int error = check_xrc(*context)) return fail(error);
  if (attr->comp_mask >= IBV_QP_OPEN_ATTR_RESERVED) return fail(EOPNOTSUPP);
  if ((attr->comp_mask & kNeeded) != kNeeded || raw_value(attr->qp_type) != IBV_QPT_XRC_RECV)
    return fail(EINVAL);
  DeviceContext& device = DeviceContext::of(context);
  if (const int error = device.refusal()) return fail(error);
  QpParts parts;
  parts.xrcd = &VerbsXrcd::of(attr->xrcd, AskedBy::kWrite);
  if (attr->xrcd->context != context) return fail(EINVAL);
  ibv_qp_init_attr init = {};
  if ((attr->comp_mask & IBV_QP_OPEN_ATTR_CONTEXT) != 0) init.qp_context = attr->qp_context;
  init.qp_type = IBV_QPT_XRC_RECV;
  auto qp = std::make_unique<VerbsQp>(device, parts, init, 0);
  qp->shared = parts.xrcd->domain->open(attr->qp_num, *qp);
  if (qp->shared == nullptr) return fail(EINVAL);
  qp->endpoint = qp->shared->endpoint;
  qp->base.qp_num = attr->qp_num;
  qp->give_handle(context, attr->qp_num);
  device.add(qp.get());
  return &qp.release()->base;
}

int destroy_qp(ibv_qp* base) {
  VerbsQp& qp = VerbsQp::of(base);
  if (!qp.device.alive()) return 0;
  if (qp.datagrams != nullptr && qp.device.engine().trunks().groups().has(*qp.datagrams))
    return EBUSY;
  qp.device.remove(&qp);
  // Who was given one of its events may still ask for it, and finds none, as in a kernel.
  qp.take_handle_back();
  qp.stop();
  const uint32_t delivered = qp.device.take_back_events(&qp.base, qp.async_events);
  wait_acknowledged(qp.base, qp.base.events_completed, delivered);
  delete &qp;
  return 0;
}

}  // namespace uwarp
