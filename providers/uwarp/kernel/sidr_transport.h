// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
//
// The half of engine_transport() that serves ids of datagrams.
#pragma once

#include <memory>

#include "kernel/cm_transport.h"

namespace uwarp {

Result<std::shared_ptr<CmListener>> listen_for_sidr(TcpSocket bound, uint16_t port_space,
                                                    std::weak_ptr<CmListenerOwner> owner);
/// `bound` may be empty; see CmTransport::connect().
Result<std::shared_ptr<CmConnection>> query_by_sidr(TcpSocket bound,
                                                    CmTransport::ConnectRequest request,
                                                    std::weak_ptr<ConnectionOwner> owner);

}  // namespace uwarp
