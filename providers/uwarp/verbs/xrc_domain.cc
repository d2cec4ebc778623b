// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "verbs/xrc_domain.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "base/log.h"
#include "base/mutex.h"
#include "base/serial_numbers.h"
#include "base/settings.h"
#include "verbs/boundary.h"

namespace uwarp {
namespace {

using DomainPtr = std::shared_ptr<SharedXrcDomain>;

/// The domain of the file behind `fd`, as the kernel's uverbs finds it. EBADF; EAGAIN: there is
/// none and O_CREAT is not set; EINVAL: there is one and O_EXCL is set.
int find_domain(DeviceContext& device, int fd, int flags, DomainPtr& found) {
  struct stat file;
  if (fstat(fd, &file) != 0) return EBADF;
  Engine::XrcDomains& domains = device.engine().xrc_domains();
  const Lock guard(domains.mutex);
  std::erase_if(domains.by_file, [](const auto& each) { return each.second.expired(); });
  auto& entry = domains.by_file[{device.device().verbs_name, file.st_dev, file.st_ino}];
  found = std::static_pointer_cast<SharedXrcDomain>(entry.lock());
  if (found == nullptr && (flags & O_CREAT) == 0) return EAGAIN;
  if (found != nullptr && (flags & O_EXCL) != 0) return EINVAL;
  if (found == nullptr) entry = found = std::make_shared<SharedXrcDomain>();
  return 0;
}

}  // namespace

void SharedXrcDomain::add(std::shared_ptr<SharedEndpoint> made, QpEventListener& opener) {
  const Lock guard(mutex_);
  {
    const Lock openers(made->lock_);
    made->openers_.push_back(&opener);
  }
  const uint32_t number = made->endpoint->number().value;
  endpoints_.insert_or_assign(number, std::move(made));
}

std::shared_ptr<SharedEndpoint> SharedXrcDomain::open(uint32_t number, QpEventListener& opener) {
  const Lock guard(mutex_);
  const auto found = endpoints_.find(number);
  if (found == endpoints_.end()) return nullptr;
  const Lock openers(found->second->lock_);
  found->second->openers_.push_back(&opener);
  return found->second;
}

void SharedXrcDomain::close(SharedEndpoint& shared, QpEventListener& opener) {
  std::shared_ptr<SharedEndpoint> last;
  {
    const Lock guard(mutex_);
    const Lock openers(shared.lock_);
    std::erase(shared.openers_, &opener);
    if (!shared.openers_.empty()) return;
    const auto found = endpoints_.find(shared.endpoint->number().value);
    if (found != endpoints_.end()) last = std::move(endpoints_.extract(found).mapped());
  }
  shared.endpoint->destroy();
}

int check_xrc(const ibv_context& context) {
  if (settings().persona == Persona::kRoce) return 0;
  advise(std::string(context.device->name) + ": no XRC in the iwarp persona. " + kAskForRoce);
  return EOPNOTSUPP;
}

ibv_xrcd* open_xrcd(ibv_context* context, ibv_xrcd_init_attr* init) {
  constexpr uint32_t kNeeded = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
  static constinit SerialNumbers<uint32_t> handles;
  if (const int error = check_xrc(*context)) return fail(error);
  if (init->comp_mask >= IBV_XRCD_INIT_ATTR_RESERVED) return fail(EOPNOTSUPP);
  if ((init->comp_mask & kNeeded) != kNeeded) return fail(EINVAL);
  DeviceContext& device = DeviceContext::of(context);
  if (const int error = device.refusal()) return fail(error);
  DomainPtr domain;
  if (init->fd == -1)
    domain = std::make_shared<SharedXrcDomain>();
  else if (const int error = find_domain(device, init->fd, init->oflags, domain))
    return fail(error);
  auto xrcd = std::make_unique<VerbsXrcd>(device, std::move(domain));
  xrcd->give_handle(context, handles.next());
  return &xrcd.release()->base;
}

int close_xrcd(ibv_xrcd* base) {
  VerbsXrcd& xrcd = VerbsXrcd::of(base);
  if (xrcd.device.alive() && xrcd.users.load(std::memory_order_acquire) != 0) return EBUSY;
  delete &xrcd;
  return 0;
}

}  // namespace uwarp
