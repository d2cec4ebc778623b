// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// ibv_cq_ex: completions one at a time, each shown by functions, with the time at which it came.
// The device's clock is CLOCK_MONOTONIC in nanoseconds.
#include <time.h>

#include <cerrno>

#include "base/mutex.h"
#include "os/clock.h"
#include "verbs/boundary.h"
#include "verbs/completion.h"

namespace uwarp {
namespace {

constexpr uint64_t kTimes = uint64_t{IBV_WC_EX_WITH_COMPLETION_TIMESTAMP} |
                            uint64_t{IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK};
constexpr uint32_t kKnownFlags =
    IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;

CompletionTime read_clocks() {
  const uint64_t wall_ns = wall_clock_ns();
  return {now_ns(), wall_ns};
}

VerbsCq& cq_of(ibv_cq_ex* cq) { return VerbsCq::unchecked(ibv_cq_ex_to_cq(cq)); }

/// Shows the next completion. ENOENT: there is none; EIO: overrun.
int show_next(VerbsCq& cq) {
  const int found = cq.queue.poll_timed(cq.shown, cq.shown_time);
  if (found == 0) return ENOENT;
  if (found < 0) return EIO;
  cq.extended.wr_id = cq.shown.wr_id;
  cq.extended.status = static_cast<ibv_wc_status>(cq.shown.status);
  return 0;
}

int start_poll(ibv_cq_ex* base, ibv_poll_cq_attr* attr) {
  if (attr->comp_mask != 0) return EINVAL;
  int result = ENOENT;  // also without memory, as if it were called a moment too early
  guarded([&]() NO_THREAD_SAFETY_ANALYSIS {
    VerbsCq& cq = cq_of(base);
    const bool alive = cq.engine.alive();
    if (alive) [[likely]]
      Poller::transmit_waiting(cq.queue);
    Lock poll(cq.poll_mutex, std::defer_lock);
    if (!cq.single_threaded) poll.lock();
    result = show_next(cq);
    if (result == ENOENT && alive) {
      // A thread that polls an empty queue drives the sockets; others may poll meanwhile.
      if (!cq.single_threaded) poll.unlock();
      cq.engine.poller().poll(cq.queue);
      if (!cq.single_threaded) poll.lock();
      result = show_next(cq);
    }
    if (result == 0) poll.release();  // until end_poll()
  });
  return result;
}

int next_poll(ibv_cq_ex* base) { return show_next(cq_of(base)); }

void end_poll(ibv_cq_ex* base) NO_THREAD_SAFETY_ANALYSIS {
  VerbsCq& cq = cq_of(base);
  if (!cq.single_threaded) cq.poll_mutex.unlock();
}

template <typename Value, auto Field>
Value read(ibv_cq_ex* cq) {
  return static_cast<Value>(cq_of(cq).shown.*Field);
}
uint64_t read_completion_ts(ibv_cq_ex* cq) { return cq_of(cq).shown_time.raw_ns; }
uint64_t read_completion_wallclock_ns(ibv_cq_ex* cq) { return cq_of(cq).shown_time.wall_ns; }

/// VLAN tags, flow tags and tag matching: no packet has them. They read as 0, because programs ask
/// for all fields at once.
uint16_t read_no_tag(ibv_cq_ex*) { return 0; }
uint32_t read_no_flow(ibv_cq_ex*) { return 0; }
void read_no_matching(ibv_cq_ex*, ibv_wc_tm_info* info) { *info = {}; }

/// Fields that cost nothing are there whether they were asked for or not.
void fill_functions(ibv_cq_ex& cq, uint64_t fields) {
  cq.start_poll = start_poll;
  cq.next_poll = next_poll;
  cq.end_poll = end_poll;
  cq.read_opcode = read<ibv_wc_opcode, &WorkCompletion::opcode>;
  cq.read_vendor_err = read<uint32_t, &WorkCompletion::vendor_err>;
  cq.read_byte_len = read<uint32_t, &WorkCompletion::byte_len>;
  cq.read_imm_data = read<__be32, &WorkCompletion::imm_or_invalidated>;
  cq.read_qp_num = read<uint32_t, &WorkCompletion::qp_num>;
  cq.read_src_qp = read<uint32_t, &WorkCompletion::src_qp>;
  cq.read_wc_flags = read<unsigned, &WorkCompletion::wc_flags>;
  cq.read_slid = read<uint32_t, &WorkCompletion::slid>;
  cq.read_sl = read<uint8_t, &WorkCompletion::sl>;
  cq.read_dlid_path_bits = read<uint8_t, &WorkCompletion::dlid_path_bits>;
  cq.read_cvlan = read_no_tag;
  cq.read_flow_tag = read_no_flow;
  cq.read_tm_info = read_no_matching;
  if (fields & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP) cq.read_completion_ts = read_completion_ts;
  if (fields & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK)
    cq.read_completion_wallclock_ns = read_completion_wallclock_ns;
}

}  // namespace

ibv_cq_ex* create_cq_ex(ibv_context* context, ibv_cq_init_attr_ex* init) {
  constexpr uint32_t kKnownMask = IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD;
  if ((init->comp_mask & ~kKnownMask) != 0) return fail(EINVAL);
  if ((init->wc_flags & ~uint64_t{IBV_CREATE_CQ_SUP_WC_FLAGS}) != 0) return fail(EOPNOTSUPP);
  const bool named = (init->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS) != 0;
  const uint32_t flags = named ? init->flags : 0;
  if ((flags & ~kKnownFlags) != 0) return fail(EINVAL);
  CompletionQueueOptions options;
  if ((init->wc_flags & kTimes) != 0) options.clock = read_clocks;
  VerbsPd* parent = nullptr;
  if ((init->comp_mask & IBV_CQ_INIT_ATTR_MASK_PD) != 0) {
    if (init->parent_domain == nullptr) return fail(EINVAL);
    parent = &VerbsPd::of(init->parent_domain);
    if (!parent->is_parent() || init->parent_domain->context != context) return fail(EINVAL);
  }
  options.single_threaded = (flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED) != 0 ||
                            (parent != nullptr && parent->one_thread());
  options.ignore_overrun = (flags & IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN) != 0;
  VerbsCq* cq = make_cq(context, init->cqe, init->channel, init->comp_vector, options);
  if (cq == nullptr) return nullptr;
  if (parent != nullptr) parent->object_made();
  cq->parent = parent;
  fill_functions(cq->extended, init->wc_flags);
  return &cq->extended;
}

}  // namespace uwarp
