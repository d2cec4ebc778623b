// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "engine/silent_queue_pair.h"

#include "connect/qp_attributes.h"
#include "engine/engine.h"
#include "qp/qp_config.h"

namespace uwarp {

Result<std::unique_ptr<SilentQueuePair>> SilentQueuePair::create(Engine& engine,
                                                                 const NetDevice& device) {
  auto made = std::make_unique<SilentQueuePair>();
  QpConfig config;
  config.domain = &made->domain_;
  config.send_cq = &made->completions_;
  config.recv_cq = &made->completions_;
  config.regions = &engine.regions();
  config.max_recv_wr = 0;
  config.acknowledged = true;  // the peer may ask what became of its messages
  auto endpoint = Endpoint::create(engine.context(), device, config);
  if (!endpoint) return Error{endpoint.error()};
  made->endpoint_ = std::move(*endpoint);
  QpAttributes init;
  init.state = QpState::kInit;
  if (const int error = made->endpoint_->modify(init, kAttrState | kAttrAccess | kAttrPort))
    return Error{error};
  return made;
}

SilentQueuePair::~SilentQueuePair() {
  if (endpoint_ != nullptr) endpoint_->destroy();
}

}  // namespace uwarp
