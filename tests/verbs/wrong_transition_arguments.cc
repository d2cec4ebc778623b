// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Rows about ibv_modify_qp(): each attribute out of range, and each bit of the mask in each
// transition.
#include <span>
#include <utility>

#include "verbs/wrong_arguments.h"

namespace wrong_arguments {
namespace {

/// Every bit that ibv_qp_attr_mask has.
constexpr int kAllBits =
    IBV_QP_STATE | IBV_QP_CUR_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY | IBV_QP_ACCESS_FLAGS |
    IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_TIMEOUT |
    IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_RQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC |
    IBV_QP_ALT_PATH | IBV_QP_MIN_RNR_TIMER | IBV_QP_SQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
    IBV_QP_PATH_MIG_STATE | IBV_QP_CAP | IBV_QP_DEST_QPN | IBV_QP_RATE_LIMIT;
/// What is refused for a reason of its own.
constexpr int kNever = IBV_QP_ALT_PATH | IBV_QP_CAP | IBV_QP_RATE_LIMIT;

// The table of the InfiniBand specification (11.2.4.2), for reliable connections and datagrams.
constexpr int kInit = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
constexpr int kRtr = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
constexpr int kRts =
    IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
constexpr int kRunning =
    IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | IBV_QP_PATH_MIG_STATE;
constexpr int kDrained = kRunning | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_AV | IBV_QP_TIMEOUT |
                         IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC |
                         IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_EN_SQD_ASYNC_NOTIFY;

struct Step {
  ibv_qp_state from, to;
  int required, optional;
};
constexpr Step kReliable[] = {
    {IBV_QPS_RESET, IBV_QPS_INIT, kInit, 0},
    {IBV_QPS_INIT, IBV_QPS_INIT, 0, kInit},
    {IBV_QPS_INIT, IBV_QPS_RTR, kRtr, IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX},
    {IBV_QPS_RTR, IBV_QPS_RTS, kRts, kRunning},
    {IBV_QPS_RTS, IBV_QPS_RTS, 0, kRunning},
    {IBV_QPS_RTS, IBV_QPS_SQD, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY},
    {IBV_QPS_SQD, IBV_QPS_SQD, 0, kDrained},
    {IBV_QPS_SQD, IBV_QPS_RTS, 0, kRunning},
};
constexpr int kInitDatagram = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
constexpr int kRunningDatagram = IBV_QP_CUR_STATE | IBV_QP_QKEY;
constexpr Step kDatagrams[] = {
    {IBV_QPS_RESET, IBV_QPS_INIT, kInitDatagram, 0},
    {IBV_QPS_INIT, IBV_QPS_INIT, 0, kInitDatagram},
    {IBV_QPS_INIT, IBV_QPS_RTR, 0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY},
    {IBV_QPS_RTR, IBV_QPS_RTS, IBV_QP_SQ_PSN, kRunningDatagram},
    {IBV_QPS_RTS, IBV_QPS_RTS, 0, kRunningDatagram},
    {IBV_QPS_RTS, IBV_QPS_SQD, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY},
    {IBV_QPS_SQD, IBV_QPS_SQD, 0, IBV_QP_QKEY | IBV_QP_PKEY_INDEX | IBV_QP_EN_SQD_ASYNC_NOTIFY},
    {IBV_QPS_SQD, IBV_QPS_RTS, 0, kRunningDatagram},
};

/// Attributes that are right wherever they are named.
ibv_qp_attr right(Ground& g, const Step& step) {
  ibv_qp_attr attr = {};
  attr.qp_state = step.to;
  attr.cur_qp_state = step.from;
  attr.port_num = 1;
  attr.path_mtu = IBV_MTU_1024;
  attr.dest_qp_num = g.qp->qp_num;
  attr.rq_psn = attr.sq_psn = 1;
  attr.max_rd_atomic = attr.max_dest_rd_atomic = 4;
  attr.min_rnr_timer = 12;
  attr.timeout = 18;
  attr.retry_cnt = attr.rnr_retry = 7;
  attr.qkey = 0x1234;
  attr.qp_access_flags = IBV_ACCESS_REMOTE_READ;
  attr.path_mig_state = IBV_MIG_MIGRATED;
  attr.ah_attr = g.address();
  return attr;
}

int take(Ground& g, ibv_qp* qp, const Step& step) {
  ibv_qp_attr attr = right(g, step);
  return ibv_modify_qp(qp, &attr, IBV_QP_STATE | step.required);
}

/// A queue pair in the state in which step `index` of the table begins. Its peer would be the one
/// of `g`, which answers no call before it is in RTR.
Qp before(Ground& g, ibv_qp_type type, std::span<const Step> table, size_t index) {
  Qp qp = g.queue_pair(type);
  for (size_t i = 0; i < index && i < 6; ++i) {
    if (table[i].from == table[i].to || table[i].from == table[index].from) continue;
    EXPECT_EQ(take(g, qp.get(), table[i]), 0);
  }
  return qp;
}

/// EINVAL, if that is the answer to the step with each of these bits in turn, or the first other
/// one. The step can still be taken.
int answer_to_each(Ground& g, ibv_qp_type type, std::span<const Step> table, size_t index, int bits,
                   const std::function<int(int bit)>& mask_with) {
  const Step& step = table[index];
  const Qp qp = before(g, type, table, index);
  for (int bit = 1; bit <= IBV_QP_RATE_LIMIT; bit <<= 1) {
    if ((bits & bit) == 0) continue;
    ibv_qp_attr attr = right(g, step);
    const int answer = ibv_modify_qp(qp.get(), &attr, mask_with(bit));
    if (answer != EINVAL) return answer;
  }
  EXPECT_EQ(take(g, qp.get(), step), 0);
  return EINVAL;
}

int each_missing(Ground& g, ibv_qp_type type, std::span<const Step> table, size_t index) {
  const Step& step = table[index];
  // Of an RNIC it is librdmacm that names no P_Key.
  const int bits = g.roce() ? step.required : step.required & ~IBV_QP_PKEY_INDEX;
  return answer_to_each(g, type, table, index, bits,
                        [&](int bit) { return IBV_QP_STATE | (step.required & ~bit); });
}

int each_too_many(Ground& g, ibv_qp_type type, std::span<const Step> table, size_t index) {
  const Step& step = table[index];
  const int bits = kAllBits & ~(IBV_QP_STATE | step.required | step.optional | kNever);
  return answer_to_each(g, type, table, index, bits,
                        [&](int bit) { return IBV_QP_STATE | step.required | bit; });
}

// Steps of kReliable by name.
enum : size_t { kToInit, kInInit, kToRtr, kToRts, kInRts, kToSqd, kInSqd, kBackToRts };

/// Takes the step with further bits and other values, and then another one.
int step_with(Ground& g, size_t index, int more, const std::function<void(ibv_qp_attr&)>& spoil,
              size_t next = kBackToRts) {
  const Step& step = kReliable[index];
  const Qp qp = before(g, IBV_QPT_RC, kReliable, index);
  ibv_qp_attr attr = right(g, step);
  spoil(attr);
  const int result = ibv_modify_qp(qp.get(), &attr, IBV_QP_STATE | step.required | more);
  if (result != 0) {
    EXPECT_EQ(take(g, qp.get(), step), 0);
  }
  return next == kBackToRts ? result : take(g, qp.get(), kReliable[next]);
}

/// A mask alone, where step `index` begins.
int mask_alone(Ground& g, size_t index, int mask) {
  const Qp qp = before(g, IBV_QPT_RC, kReliable, index);
  ibv_qp_attr attr = right(g, kReliable[index]);
  return ibv_modify_qp(qp.get(), &attr, mask);
}

/// To a state, with all that it needs, where step `index` begins.
int to(Ground& g, size_t index, ibv_qp_state state, int mask = 0) {
  const Qp qp = before(g, IBV_QPT_RC, kReliable, index);
  ibv_qp_attr attr = right(g, kReliable[index]);
  attr.qp_state = state;
  return ibv_modify_qp(qp.get(), &attr, IBV_QP_STATE | mask);
}

int from_error(Ground& g, ibv_qp_state state, int mask = 0) {
  const Qp qp = before(g, IBV_QPT_RC, kReliable, kToRtr);
  EXPECT_EQ(to_state(qp.get(), IBV_QPS_ERR), 0);
  ibv_qp_attr attr = right(g, kReliable[kToRtr]);
  attr.qp_state = state;
  return ibv_modify_qp(qp.get(), &attr, IBV_QP_STATE | mask);
}

const char* const kTable = "core: ib_modify_qp_is_ok. siw has no such table";
const char* const kAsRnic = "core: ib_modify_qp_is_ok. siw: ok";

/// EOPNOTSUPP, where there is no such type.
int if_there_is(Ground& g, ibv_qp_type type, const std::function<int()>& ask) {
  const Qp qp = g.queue_pair(type);
  return qp == nullptr ? errno : ask();
}

/// A row for each transition: what may not be missing, and what may not be there.
void add_masks(Rows& rows, ibv_qp_type type, std::span<const Step> table,
               std::span<const char* const> names) {
  const Answer answer = type == IBV_QPT_RC ? Answer(EINVAL) : Answer(EOPNOTSUPP, EINVAL);
  for (size_t i = 0; i < table.size(); ++i) {
    const auto add = [&](const char* wrong, const char* rule, auto ask) {
      rows.push_back({"ibv_modify_qp", names[i], wrong, answer, rule, [=](Ground& g) {
                        return if_there_is(g, type, [&] { return ask(g, type, table, i); });
                      }});
    };
    if (table[i].required != 0)
      add("each required bit of the mask, missing", "manual page; core: ib_modify_qp_is_ok",
          each_missing);
    add("each bit that is neither required nor optional", kTable, each_too_many);
  }
}

constexpr const char* kReliableNames[] = {
    "RC, RESET to INIT", "RC, INIT to INIT", "RC, INIT to RTR", "RC, RTR to RTS",
    "RC, RTS to RTS",    "RC, RTS to SQD",   "RC, SQD to SQD",  "RC, SQD to RTS"};
constexpr const char* kDatagramNames[] = {
    "UD, RESET to INIT", "UD, INIT to INIT", "UD, INIT to RTR", "UD, RTR to RTS",
    "UD, RTS to RTS",    "UD, RTS to SQD",   "UD, SQD to SQD",  "UD, SQD to RTS"};

/// Attributes out of range.
void add_values(Rows& rows) {
  const auto add = [&](const char* argument, const char* wrong, Answer answer, const char* rule,
                       size_t step, auto spoil, int more = 0) {
    rows.push_back({"ibv_modify_qp", argument, wrong, answer, rule,
                    [=](Ground& g) { return step_with(g, step, more, spoil); }});
  };
  using Attr = ibv_qp_attr;
  const char* const port = "uverbs: modify_qp";
  add("port_num", "0", EINVAL, port, kToInit, [](Attr& a) { a.port_num = 0; });
  add("port_num", "2", EINVAL, port, kToInit, [](Attr& a) { a.port_num = 2; });
  add("port_num", "255", EINVAL, port, kToInit, [](Attr& a) { a.port_num = 255; });
  add("pkey_index", "1, where there is one key", EINVAL, "mlx5; rxe and siw do not look", kToInit,
      [](Attr& a) { a.pkey_index = 1; });
  add("pkey_index", "65535", EINVAL, "mlx5; rxe and siw do not look", kToInit,
      [](Attr& a) { a.pkey_index = 65535; });
  add("qp_access_flags", "all ones", 0, "mlx5, rxe, siw: bits without a meaning are ignored",
      kToInit, [](Attr& a) { a.qp_access_flags = ~0u; });
  add("ah_attr.port_num", "0", EINVAL, port, kToRtr, [](Attr& a) { a.ah_attr.port_num = 0; });
  add("ah_attr.port_num", "2", EINVAL, port, kToRtr, [](Attr& a) { a.ah_attr.port_num = 2; });
  add("ah_attr.is_global", "0", EINVAL, "core: rdma_check_ah_attr", kToRtr,
      [](Attr& a) { a.ah_attr.is_global = 0; });
  add("ah_attr.grh.sgid_index", "15, where there is no GID", ENODATA, "core: rdma_get_gid_attr",
      kToRtr, [](Attr& a) { a.ah_attr.grh.sgid_index = 15; });
  add("ah_attr.grh.sgid_index", "16, the length of the table", EINVAL, "core: rdma_get_gid_attr",
      kToRtr, [](Attr& a) { a.ah_attr.grh.sgid_index = 16; });
  add("ah_attr.grh.sgid_index", "255", EINVAL, "core: rdma_get_gid_attr", kToRtr,
      [](Attr& a) { a.ah_attr.grh.sgid_index = 255; });
  add("ah_attr.grh.dgid", "zeros", EINVAL, "core: ib_resolve_eth_dmac finds no way", kToRtr,
      [](Attr& a) { a.ah_attr.grh.dgid = {}; });
  add("path_mtu", "0", EINVAL, "mlx5", kToRtr, [](Attr& a) { a.path_mtu = number<ibv_mtu>(0); });
  add("path_mtu", "6", EINVAL, "mlx5, rxe", kToRtr,
      [](Attr& a) { a.path_mtu = number<ibv_mtu>(6); });
  add("path_mtu", "the largest number", EINVAL, "mlx5, rxe", kToRtr,
      [](Attr& a) { a.path_mtu = number<ibv_mtu>(~0u); });
  add("dest_qp_num", "2^24", EINVAL, "ours: drivers take 24 bits of it, which name another one",
      kToRtr, [](Attr& a) { a.dest_qp_num = 1u << 24; });
  add("dest_qp_num", "the largest number", EINVAL, "ours, as above", kToRtr,
      [](Attr& a) { a.dest_qp_num = ~0u; });
  add("rq_psn", "2^24", 0, "core: 24 bits of it count, with a warning", kToRtr,
      [](Attr& a) { a.rq_psn = 1u << 24; });
  add("max_dest_rd_atomic", "max_qp_rd_atom + 1", EINVAL, "mlx5", kToRtr,
      [](Attr& a) { a.max_dest_rd_atomic = 129; });
  add("max_dest_rd_atomic", "255", EINVAL, "mlx5", kToRtr,
      [](Attr& a) { a.max_dest_rd_atomic = 255; });
  add("min_rnr_timer", "32", 0, "mlx5, rxe: five bits of it count", kToRtr,
      [](Attr& a) { a.min_rnr_timer = 32; });
  add("min_rnr_timer", "255", 0, "mlx5, rxe: five bits of it count", kToRtr,
      [](Attr& a) { a.min_rnr_timer = 255; });
  add("timeout", "32", EINVAL, "rxe", kToRts, [](Attr& a) { a.timeout = 32; });
  add("timeout", "255", EINVAL, "rxe", kToRts, [](Attr& a) { a.timeout = 255; });
  add("retry_cnt", "8", EINVAL, "ours: mlx5 takes three bits of it, which are 0", kToRts,
      [](Attr& a) { a.retry_cnt = 8; });
  add("retry_cnt", "255", EINVAL, "ours, as above", kToRts, [](Attr& a) { a.retry_cnt = 255; });
  add("rnr_retry", "8", EINVAL, "ours: mlx5 takes three bits of it, which are 0", kToRts,
      [](Attr& a) { a.rnr_retry = 8; });
  add("rnr_retry", "255", EINVAL, "ours, as above", kToRts, [](Attr& a) { a.rnr_retry = 255; });
  add("sq_psn", "2^24", 0, "core: 24 bits of it count, with a warning", kToRts,
      [](Attr& a) { a.sq_psn = 1u << 24; });
  add("max_rd_atomic", "max_qp_rd_atom + 1", EINVAL, "mlx5, rxe", kToRts,
      [](Attr& a) { a.max_rd_atomic = 129; });
  add("max_rd_atomic", "255", EINVAL, "mlx5, rxe", kToRts, [](Attr& a) { a.max_rd_atomic = 255; });
  add(
      "path_mig_state", "ARMED", EINVAL,
      "ours: rxe ignores it, and there is no other path to migrate to", kToRts,
      [](Attr& a) { a.path_mig_state = IBV_MIG_ARMED; }, IBV_QP_PATH_MIG_STATE);
  add(
      "path_mig_state", "the largest number", EINVAL, "ours: rxe ignores it", kToRts,
      [](Attr& a) { a.path_mig_state = number<ibv_mig_state>(~0u); }, IBV_QP_PATH_MIG_STATE);
  add(
      "cur_qp_state", "another one than it has", EINVAL, "core: ib_modify_qp_is_ok, of that state",
      kToRts, [](Attr& a) { a.cur_qp_state = IBV_QPS_SQD; }, IBV_QP_CUR_STATE);
  add(
      "cur_qp_state", "the largest number", EINVAL, "uverbs: modify_qp", kToRts,
      [](Attr& a) { a.cur_qp_state = number<ibv_qp_state>(~0u); }, IBV_QP_CUR_STATE);
}

void add_states(Rows& rows) {
  const auto add = [&](const char* argument, const char* wrong, Answer answer, const char* rule,
                       std::function<int(Ground&)> ask) {
    rows.push_back({"ibv_modify_qp", argument, wrong, answer, rule, std::move(ask)});
  };
  add("qp_state", "7", EINVAL, "uverbs: modify_qp",
      [](Ground& g) { return to(g, kToInit, number<ibv_qp_state>(7), kInit); });
  add("qp_state", "the largest number", EINVAL, "uverbs: modify_qp",
      [](Ground& g) { return to(g, kToInit, number<ibv_qp_state>(~0u), kInit); });
  add("qp_state", "RTR from RESET", EINVAL, kTable,
      [](Ground& g) { return to(g, kToInit, IBV_QPS_RTR, kRtr); });
  add("qp_state", "RTS from RESET", EINVAL, kTable,
      [](Ground& g) { return to(g, kToInit, IBV_QPS_RTS, kRts); });
  add("qp_state", "RTS from INIT", EINVAL, kTable,
      [](Ground& g) { return to(g, kToRtr, IBV_QPS_RTS, kRts); });
  add("qp_state", "INIT from RTR", EINVAL, kTable,
      [](Ground& g) { return to(g, kToRts, IBV_QPS_INIT, kInit); });
  add("qp_state", "INIT from RTS", EINVAL, kTable,
      [](Ground& g) { return to(g, kInRts, IBV_QPS_INIT, kInit); });
  add("qp_state", "RTR from RTS", EINVAL, kTable,
      [](Ground& g) { return to(g, kInRts, IBV_QPS_RTR, kRtr); });
  add("qp_state", "RTR from SQD", EINVAL, kTable,
      [](Ground& g) { return to(g, kInSqd, IBV_QPS_RTR, kRtr); });
  add("qp_state", "SQE from RTS", EINVAL, kTable,
      [](Ground& g) { return to(g, kInRts, IBV_QPS_SQE); });
  add("qp_state", "INIT from ERR", EINVAL, kTable,
      [](Ground& g) { return from_error(g, IBV_QPS_INIT, kInit); });
  add("qp_state", "RTS from ERR", EINVAL, kTable,
      [](Ground& g) { return from_error(g, IBV_QPS_RTS, kRts); });
  add("qp_state", "RTR from RTR", {0, EINVAL}, kAsRnic,
      [](Ground& g) { return to(g, kToRts, IBV_QPS_RTR, kRtr); });
  add("qp_state", "SQD from RESET", {0, EINVAL}, kAsRnic,
      [](Ground& g) { return to(g, kToInit, IBV_QPS_SQD); });
  add("qp_state", "SQD from INIT", {0, EINVAL},
      "core: ib_modify_qp_is_ok. siw: ok, and librdmacm's rdma_disconnect begins with it",
      [](Ground& g) { return to(g, kToRtr, IBV_QPS_SQD); });
  add("qp_state", "SQD from RTR", {0, EINVAL}, kAsRnic,
      [](Ground& g) { return to(g, kToRts, IBV_QPS_SQD); });
  add("qp_state", "SQD from ERR", {0, EINVAL}, kAsRnic,
      [](Ground& g) { return from_error(g, IBV_QPS_SQD); });
  add("qp_state", "ERR from RESET", {0, EINVAL}, kAsRnic,
      [](Ground& g) { return to(g, kToInit, IBV_QPS_ERR); });
  add("attr_mask", "to ERR, with any other bit", {0, EINVAL}, kAsRnic,
      [](Ground& g) { return to(g, kInRts, IBV_QPS_ERR, IBV_QP_MIN_RNR_TIMER); });
  add("attr_mask", "to RESET, with any other bit", {0, EINVAL}, kAsRnic,
      [](Ground& g) { return to(g, kInRts, IBV_QPS_RESET, IBV_QP_PORT); });
  add("attr_mask", "to INIT, without PKEY_INDEX", {0, EINVAL},
      "manual page; core: ib_modify_qp_is_ok. siw: ok, and librdmacm names none for RNICs",
      [](Ground& g) { return to(g, kToInit, IBV_QPS_INIT, kInit & ~IBV_QP_PKEY_INDEX); });
  add("attr_mask", "INIT again with ACCESS_FLAGS and PORT, then RTR", 0,
      "core: ib_modify_qp_is_ok; not to be taken for librdmacm's INIT", [](Ground& g) {
        return step_with(
            g, kInInit, IBV_QP_ACCESS_FLAGS | IBV_QP_PORT, [](ibv_qp_attr&) {}, kToRtr);
      });
  add("attr_mask", "0", 0, "core: nothing is asked",
      [](Ground& g) { return mask_alone(g, kInRts, 0); });
  add("attr_mask", "PORT alone, in RTS", {0, EINVAL},
      "core: ib_modify_qp_is_ok. siw: ok, and librdmacm names it for RNICs",
      [](Ground& g) { return mask_alone(g, kInRts, IBV_QP_PORT); });
  add("attr_mask", "MIN_RNR_TIMER alone, in INIT", {0, EINVAL}, kAsRnic,
      [](Ground& g) { return mask_alone(g, kInInit, IBV_QP_MIN_RNR_TIMER); });
  add("attr_mask", "MIN_RNR_TIMER alone, in RTS", 0, "core: ib_modify_qp_is_ok",
      [](Ground& g) { return mask_alone(g, kInRts, IBV_QP_MIN_RNR_TIMER); });
  add("attr_mask", "ALT_PATH", EINVAL, "core: alternate paths are InfiniBand's",
      [](Ground& g) { return mask_alone(g, kInRts, IBV_QP_ALT_PATH); });
  add("attr_mask", "CAP", EINVAL, "core: ib_modify_qp_is_ok",
      [](Ground& g) { return mask_alone(g, kInRts, IBV_QP_CAP); });
  add("attr_mask", "RATE_LIMIT", EOPNOTSUPP, "libibverbs, of rxe and siw",
      [](Ground& g) { return mask_alone(g, kInRts, IBV_QP_RATE_LIMIT); });
  add("attr_mask", "bit 21, which has no name", EOPNOTSUPP, "uverbs: modify_qp",
      [](Ground& g) { return mask_alone(g, kInRts, 1 << 21); });
  add("attr_mask", "the highest bit", EOPNOTSUPP, "libibverbs",
      [](Ground& g) { return mask_alone(g, kInRts, static_cast<int>(1u << 31)); });
}

}  // namespace

Rows of_transitions() {
  Rows rows;
  add_states(rows);
  add_values(rows);
  add_masks(rows, IBV_QPT_RC, kReliable, kReliableNames);
  add_masks(rows, IBV_QPT_UD, kDatagrams, kDatagramNames);
  return rows;
}

}  // namespace wrong_arguments
