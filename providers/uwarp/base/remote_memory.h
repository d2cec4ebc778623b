// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Reads and Writes that need no thread of the peer, because its process is on this host: what the
// queue pair asks of the carrier that can do them, and what it tells the carrier of its own memory.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace uwarp {

/// Reads or Writes by one key, in the order in which they were posted.
class RemoteCopy {
 public:
  static constexpr size_t kMostRequests = 64;
  static constexpr size_t kMostPieces = 256;
  struct Request {
    uint64_t offset;  // tagged, of the peer's region
    uint64_t bytes;   // at least 1
  };

  RemoteCopy(uint32_t key, bool read) : key_(key), reads_(read) {}
  uint32_t key() const { return key_; }
  /// Out of the peer's memory; else into it.
  bool reads() const { return reads_; }
  uint64_t bytes() const { return bytes_; }
  std::span<const Request> requests() const { return {requests_, request_count_}; }
  std::span<const iovec> local() const { return {local_, local_count_}; }

  /// Where the local pieces of the next request are put, `most` of them; then add() follows.
  iovec* space() { return local_ + local_count_; }
  bool has_space(size_t most) const {
    return request_count_ != kMostRequests && kMostPieces - local_count_ >= most;
  }
  void add(uint64_t offset, uint64_t bytes, size_t pieces) {
    requests_[request_count_++] = {offset, bytes};
    local_count_ += pieces;
    bytes_ += bytes;
  }

 private:
  const uint32_t key_;
  const bool reads_;
  uint64_t bytes_ = 0;
  size_t request_count_ = 0;
  size_t local_count_ = 0;
  Request requests_[kMostRequests];
  iovec local_[kMostPieces];
};

/// The peer's memory. Under the transmit side of the queue pair.
class RemoteMemory {
 public:
  virtual ~RemoteMemory() = default;
  /// The peer lets us reach some of it. It may change at any time.
  virtual bool reachable() const = 0;
  /// The peer has placed and completed all that has been sent to it.
  virtual bool settled() const = 0;
  /// Makes the carrier tell, as it tells of room, once that is so. False: it is so by now, or will
  /// never be.
  virtual bool await_settled() = 0;
  /// Many bytes take less time to copy than by the carrier.
  virtual bool suits_bulk() const = 0;
  /// A thread of the peer looks for what is sent, so that a small message is there soon.
  virtual bool attended() const = 0;
  /// Copies the first of the requests; returns how many of them are done, from the first on. Of the
  /// next one some bytes may have been copied. 0 where the peer's key does not permit it, or its
  /// memory or ours is not there: the peer says why when it is asked.
  virtual size_t copy(const RemoteCopy& copy) = 0;
};

/// Our memory, for the peer: shut until it is opened. Any thread, one at a time.
class RemoteGate {
 public:
  virtual ~RemoteGate() = default;
  /// The peer may reach regions of the protection domain that `domain` names, with these rights
  /// (Access) at most.
  virtual void open(const void* domain, uint32_t access) = 0;
  /// The peer begins no more copies; one may be under way.
  virtual void shut() = 0;
};

}  // namespace uwarp
