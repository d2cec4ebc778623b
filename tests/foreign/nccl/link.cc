// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "link.h"

#include <chrono>
#include <cstring>
#include <thread>

namespace {

constexpr std::chrono::seconds kLongestConnect{60};

ncclResult_t no_profiler(void**, int, void*, int64_t, void*) { return ncclSuccess; }

}  // namespace

void check(ncclResult_t result, const char* what) {
  if (result != ncclSuccess) fail("%s: result %d", what, result);
}

Net::Net() {
  ncclNetCommConfig_t config = {NCCL_NET_TRAFFIC_CLASS_UNDEF};
  check(ncclNetIb.init(&context_, 1, &config, ncclDebugLog, no_profiler), "init");
  check(ncclNetIb.devices(&devices_), "devices");
}

Net::~Net() { check(ncclNetIb.finalize(context_), "finalize"); }

ncclNetProperties_t Net::properties(int device) const {
  ncclNetProperties_t properties = {};
  check(ncclNetIb.getProperties(device, &properties), "getProperties");
  return properties;
}

int Net::join(int one, int other) {
  ncclNetVDeviceProps_t both = {};
  both.ndevs = 2;
  both.devs[0] = one;
  both.devs[1] = other;
  int made = -1;
  check(ncclNetIb.makeVDevice(&made, &both), "makeVDevice");
  return made;
}

Memory::Memory(void* connection, size_t size) : connection_(connection) {
  bytes_.reset(static_cast<uint8_t*>(aligned_alloc(4096, (size + 4095) / 4096 * 4096)));
  if (!bytes_) fail("no memory");
  memset(bytes_.get(), 0, size);
  check(ncclNetIb.regMr(connection_, bytes_.get(), size, NCCL_PTR_HOST, &handle_), "regMr");
}

Memory::~Memory() { check(ncclNetIb.deregMr(connection_, handle_), "deregMr"); }

Link::Link(Net& net, int device, Peer& peer) {
  char own[NCCL_NET_HANDLE_MAXSIZE] = {}, others[NCCL_NET_HANDLE_MAXSIZE];
  void* listener = nullptr;
  check(ncclNetIb.listen(net.context(), device, own, &listener), "listen");
  peer.put(own, sizeof own);
  peer.get(others, sizeof others);
  const auto end = std::chrono::steady_clock::now() + kLongestConnect;
  while (!sender_ || !receiver_) {
    ncclNetDeviceHandle_t* none = nullptr;
    if (!sender_)
      check(ncclNetIb.connect(net.context(), device, others, &sender_, &none), "connect");
    if (!receiver_) check(ncclNetIb.accept(listener, &receiver_, &none), "accept");
    if (std::chrono::steady_clock::now() > end) fail("connecting takes too long");
    std::this_thread::yield();
  }
  check(ncclNetIb.closeListen(listener), "closeListen");
}

Link::~Link() {
  if (sender_) check(close_sender(), "closeSend");
  if (receiver_) check(close_receiver(), "closeRecv");
}

ncclResult_t Link::close_sender() {
  void* closed = sender_;
  sender_ = nullptr;
  return ncclNetIb.closeSend(closed);
}

ncclResult_t Link::close_receiver() {
  void* closed = receiver_;
  receiver_ = nullptr;
  return ncclNetIb.closeRecv(closed);
}

void* Link::send(Memory& memory, size_t offset, size_t size, int tag) {
  void* request = nullptr;
  check(ncclNetIb.isend(sender_, memory.at(offset), size, tag, memory.handle(), nullptr, &request),
        "isend");
  return request;
}

void* Link::receive(Memory& memory, size_t offset, size_t size, int tag) {
  void* request = nullptr;
  void* data = memory.at(offset);
  void* handle = memory.handle();
  check(ncclNetIb.irecv(receiver_, 1, &data, &size, &tag, &handle, nullptr, &request), "irecv");
  return request;
}

bool done(void* request, int* sizes) {
  int is_done = 0;
  check(ncclNetIb.test(request, &is_done, sizes), "test");
  return is_done != 0;
}

void fill(uint8_t* bytes, size_t size, uint64_t number) {
  for (size_t place = 0; place < size; ++place) bytes[place] = byte_of(number, place);
}

void compare(const uint8_t* bytes, size_t size, uint64_t number) {
  for (size_t place = 0; place < size; ++place) {
    if (bytes[place] != byte_of(number, place))
      fail("message %#llx of %zu bytes: byte %zu is %#x and not %#x",
           static_cast<unsigned long long>(number), size, place, bytes[place],
           byte_of(number, place));
  }
}
