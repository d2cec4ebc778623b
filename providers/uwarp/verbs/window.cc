// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "verbs/window.h"

#include <cerrno>
#include <memory>

#include "verbs/boundary.h"
#include "verbs/queue_pair.h"
#include "verbs/region.h"

namespace uwarp {
namespace {

/// Rights for peers and what offsets count from; LOCAL_WRITE is often named beside them and means
/// nothing here.
constexpr unsigned kBindAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                 IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |
                                 IBV_ACCESS_ZERO_BASED;
constexpr uint32_t kKeyByte = 0xff;  // the part of a window's key that an application chooses

}  // namespace

ibv_mw* alloc_mw(ibv_pd* base, ibv_mw_type type) {
  return pointer_verb([&]() -> ibv_mw* {
    VerbsPd& pd = VerbsPd::of(base);
    if (const int error = pd.device.refusal()) return fail(error);
    const unsigned number = raw_value(type);
    if (number != IBV_MW_TYPE_1 && number != IBV_MW_TYPE_2) return fail(EINVAL);
    RegionTable& table = pd.device.engine().regions();
    auto window = table.add_window(
        pd.domain, number == IBV_MW_TYPE_1 ? RegionKind::kWindowType1 : RegionKind::kWindowType2);
    if (!window) return fail(window.error());
    auto* mw = new (std::nothrow) VerbsMw(pd, **window);
    if (mw == nullptr) {
      table.release_window(**window);
      return fail(ENOMEM);
    }
    pd.object_made();
    mw->give_handle(pd.context, (*window)->slot);
    mw->pd = &pd;
    mw->rkey = table.window_key(**window);
    mw->type = type;
    return mw;
  });
}

int dealloc_mw(ibv_mw* base) {
  return errno_verb([&] {
    const std::unique_ptr<VerbsMw> mw(&VerbsMw::of(base));
    if (!mw->domain.device.alive()) return 0;
    mw->domain.device.engine().regions().release_window(mw->window);
    mw->domain.object_gone();
    return 0;
  });
}

int bind_request(const ibv_mw& mw, uint32_t key, const ibv_mw_bind_info& bind, SendRequest& out) {
  if ((bind.mw_access_flags & ~kBindAccess) != 0) return EINVAL;
  if (bind.length != 0) {
    if (bind.mr == nullptr || VerbsMr::unchecked(bind.mr).type == object_abi::kMrTypeNull)
      return EINVAL;
    out.bind_lkey = bind.mr->lkey;
  }
  out.opcode = SendOpcode::kBindWindow;
  out.rkey = (mw.rkey & ~kKeyByte) | (key & kKeyByte);
  out.remote_address = bind.addr;
  out.bind_length_bytes = bind.length;
  out.bind_access = bind.mw_access_flags;
  return 0;
}

// Type 1: the key is ours to choose, and told before the binding is done.
int bind_mw(ibv_qp* base, ibv_mw* mw, ibv_mw_bind* bind) {
  return errno_verb([&] {
    VerbsQp& qp = VerbsQp::unchecked(base);
    if (!qp.device.alive()) return ENODEV;
    if (qp.endpoint == nullptr) return EINVAL;
    if ((bind->send_flags & ~unsigned{IBV_SEND_FENCE | IBV_SEND_SIGNALED}) != 0) return EINVAL;
    SendRequest request;
    const uint32_t key = ibv_inc_rkey(mw->rkey);
    if (int error = bind_request(*mw, key, bind->bind_info, request)) return error;
    request.wr_id = bind->wr_id;
    request.flags = static_cast<uint8_t>(bind->send_flags);
    if (int error = QueuePairPoster(*qp.endpoint).post(request)) return error;
    mw->rkey = key;
    return 0;
  });
}

}  // namespace uwarp
