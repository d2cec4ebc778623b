// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// ibv_xrcd: an XRC domain of the device, as one context has opened it, and its receiving queue
// pairs, which several may open.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "base/ids.h"
#include "base/mutex.h"
#include "base/spinlock.h"
#include "connect/endpoint.h"
#include "kernel-abi/object_abi.h"
#include "qp/xrc_domain.h"
#include "verbs/device_context.h"
#include "verbs/named.h"

namespace uwarp {

/// One receiving queue pair for all ibv_qp that stand for it. Each of them gets its events.
class SharedEndpoint final : public QpEventListener {
 public:
  void qp_event(QpEvent event) override {
    const Lock guard(lock_);
    for (QpEventListener* each : openers_) each->qp_event(event);
  }

  std::shared_ptr<Endpoint> endpoint;

 private:
  friend class SharedXrcDomain;
  SpinLock lock_;
  std::vector<QpEventListener*> openers_ GUARDED_BY(lock_);
};

/// What all ibv_xrcd of one file have in common.
class SharedXrcDomain : public XrcDomain {
 public:
  /// Adds a new queue pair. `opener` gets its events. Throws std::bad_alloc.
  void add(std::shared_ptr<SharedEndpoint> made, QpEventListener& opener);
  /// The queue pair with this number, which `opener` has a share of from now on; null: there is
  /// none. Throws std::bad_alloc.
  std::shared_ptr<SharedEndpoint> open(uint32_t number, QpEventListener& opener);
  /// `opener` gets no more events. When the last opener has left, the queue pair ends.
  void close(SharedEndpoint& shared, QpEventListener& opener);

 private:
  Mutex mutex_;
  std::map<uint32_t, std::shared_ptr<SharedEndpoint>> endpoints_ GUARDED_BY(mutex_);  // by number
};

struct VerbsXrcd : object_abi::Xrcd, Named<VerbsXrcd, object_abi::Xrcd, ibv_xrcd> {
  VerbsXrcd(DeviceContext& device, std::shared_ptr<SharedXrcDomain> domain)
      : object_abi::Xrcd{}, device(device), domain(std::move(domain)) {}

  DeviceContext& device;
  const std::shared_ptr<SharedXrcDomain> domain;
  std::atomic<uint32_t> users{0};  // shared queues and queue pairs
};

/// 0; EOPNOTSUPP and a log line in a persona without XRC.
int check_xrc(const ibv_context& context);

}  // namespace uwarp
