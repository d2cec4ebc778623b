// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Puts the payload of the segment under way where it belongs: by copying, or by describing the
// place for the receive call. Receive side. RFC 5041 5.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>

#include "qp/receive/inbound_answers.h"
#include "qp/receive/inbound_messages.h"
#include "qp/receive/inbound_writes.h"
#include "qp/receive/segment_run.h"

namespace uwarp {

class PayloadPlacer {
 public:
  /// The last bytes of a segment are always copied: those of a Write are stored after all others,
  /// because applications poll them.
  static constexpr uint32_t kTailBytes = 8;

  PayloadPlacer(InboundStream& in, InboundWrites& writes, InboundMessages& messages,
                InboundAnswers& answers)
      : in_(in), writes_(writes), messages_(messages), answers_(answers) {}

  /// The kernel may write the payload. Not through a window: unbinding must not have to wait for a
  /// receive call. Not into memory that may not be there: the failed call would not say which of
  /// the segment's bytes have come.
  bool direct() const;
  /// Describes the place of all that is missing but for the tail. `size` is what that holds.
  size_t describe(iovec* out, size_t& size);
  /// Describes the announced segments behind the rest of the one under way. Each goes to its place
  /// except for its tail, which is staged at `staged` with trailer and next header. Opens the run,
  /// and returns how many iovecs of `out` are in use. The headers are checked when all of it has
  /// come, and must name these places.
  [[gnu::noinline]] size_t describe_run(SegmentRun& run, uint32_t trailer, std::byte* staged,
                                        iovec* out, size_t count);
  /// Copies the next bytes of the payload. False: that failed the stream.
  bool place(const std::byte* from, uint32_t size);
  /// Copies bytes out again that have been put where the next ones belong.
  bool take_back(std::byte* to, size_t size);

 private:
  bool is_write() const { return in_.segment.opcode == RdmapOpcode::kWrite; }
  bool is_answer() const { return in_.segment.opcode == RdmapOpcode::kReadResponse; }
  BufferList& list() { return is_answer() ? answers_.sink() : messages_.sink(); }
  const BufferList& list() const { return is_answer() ? answers_.sink() : messages_.sink(); }
  bool find_behind(uint64_t offset, uint64_t size, RemotePlace& place) const;
  [[gnu::noinline, gnu::cold]] void fail();

  InboundStream& in_;
  InboundWrites& writes_;
  InboundMessages& messages_;
  InboundAnswers& answers_;
};

}  // namespace uwarp
