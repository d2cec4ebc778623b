// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// A connection of net_ib in each direction between two processes, and memory to send from and
// receive into.
#pragma once
#include <cstdint>
#include <memory>

#include "net.h"
#include "peer.h"

// What net_ib is asked to do must be done.
void check(ncclResult_t result, const char* what);

// net_ib, initialized, and its devices.
class Net {
 public:
  Net();
  Net(const Net&) = delete;
  Net& operator=(const Net&) = delete;
  ~Net();

  void* context() const { return context_; }
  int devices() const { return devices_; }
  ncclNetProperties_t properties(int device) const;
  // A device that is made of two.
  int join(int one, int other);

 private:
  void* context_ = nullptr;
  int devices_ = 0;
};

struct Free {
  void operator()(uint8_t* memory) const { free(memory); }
};

// Memory that is registered with one side of a link.
class Memory {
 public:
  Memory(void* connection, size_t size);
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory();

  uint8_t* at(size_t offset) { return bytes_.get() + offset; }
  void* handle() const { return handle_; }

 private:
  void* connection_;
  std::unique_ptr<uint8_t, Free> bytes_;
  void* handle_ = nullptr;
};

class Link {
 public:
  Link(Net& net, int device, Peer& peer);
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;
  ~Link();

  void* sender() const { return sender_; }
  void* receiver() const { return receiver_; }

  // The request, or nothing if the peer has no such receive yet.
  void* send(Memory& memory, size_t offset, size_t size, int tag = 0);
  // The request.
  void* receive(Memory& memory, size_t offset, size_t size, int tag = 0);

  // What net_ib answers to them when they are closed with requests outstanding.
  ncclResult_t close_sender();
  ncclResult_t close_receiver();

 private:
  void* sender_ = nullptr;
  void* receiver_ = nullptr;
};

// Whether the request is done; then its size is there, if there is a place for it.
bool done(void* request, int* sizes = nullptr);

// The byte at this place of message `number`.
inline uint8_t byte_of(uint64_t number, size_t place) {
  const uint64_t mixed = (number * 0x9e3779b97f4a7c15u + place / 8) * 0xd6e8feb86659fd93u;
  return static_cast<uint8_t>((mixed ^ mixed >> 32) >> place % 8 * 8);
}

void fill(uint8_t* bytes, size_t size, uint64_t number);
// Fails if a byte is not that of the message.
void compare(const uint8_t* bytes, size_t size, uint64_t number);
