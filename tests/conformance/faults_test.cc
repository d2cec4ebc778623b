// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// One fault per stream, over a real socket. Each must end in the same way: the Terminate given in
// the table is the last FPDU and has the right headers; then FIN; memory is unchanged; the queue
// pair is in ERR; every request has completed once; one event; the connection ends once. RFC 5040
// 7, RFC 5041 7, RFC 5044 8, RFC 7306 8.
#include <functional>

#include "conformance/socket_peer.h"

namespace uwarp::conformance {
namespace {

using sim::send_message;
using sim::tagged;
using sim::untagged;
using Ulpdus = std::vector<Bytes>;
using P = SocketPeer;

enum class Shows : uint8_t { kNothing, kDdpHeader, kReadRequest };

struct Fault {
  std::string name;
  std::function<Ulpdus(P&)> stream;  // the last ULPDU is the faulty one
  T code;
  QpEvent event;
  Shows shows = Shows::kDdpHeader;
  // Status of the two posted receives of 100 bytes each.
  std::vector<WcStatus> receives = {WcStatus::kWrFlushErr, WcStatus::kWrFlushErr};
  // The device has a Read outstanding, and a fenced Send behind it.
  bool reading = true;
  WcStatus read = WcStatus::kWrFlushErr;
  // The bytes of the device's memory that valid ULPDUs before the fault may change.
  std::pair<size_t, size_t> placed = {0, 0};
  bool extensions = true;
};

constexpr uint64_t kReadId = 3, kSendId = 4;
constexpr size_t kReceiveAt = 100, kReadAt = 1000, kReadSize = 64;
constexpr QpEvent kFatal = QpEvent::kFatal, kAccess = QpEvent::kAccessError,
                  kRequest = QpEvent::kRequestError;
constexpr WcStatus kFlushed = WcStatus::kWrFlushErr, kDone = WcStatus::kSuccess;

Bytes with_byte(Bytes ulpdu, size_t at, uint8_t value) {
  ulpdu[at] = std::byte{value};
  return ulpdu;
}
Bytes write_to(P& p, int64_t offset, size_t payload = 16, bool last = true) {
  return tagged(O::kWrite, p.stag(), p.base() + static_cast<uint64_t>(offset), payload, last);
}
Ulpdus overlapping(O opcode) {
  return {untagged(opcode, 0, 1, 0, 10, false), untagged(opcode, 0, 1, 0, 10, false)};
}
Bytes bad_read(P& p, const std::function<void(ReadRequestHeader&)>& spoil) {
  ReadRequestHeader header = read_of(p);
  spoil(header);
  return sim::read_request(header, 1);
}
ProtectionDomain& foreign_domain() {
  static ProtectionDomain other;
  return other;
}
constexpr uint64_t kNoStream = ~uint64_t{0};
STag token(P& p) {
  const auto request = p.next();
  EXPECT_TRUE(request.has_value());
  return ReadRequestHeader::decode(request->data() + 18).sink_stag;
}
Bytes response(P& p, uint32_t stag_xor, uint64_t to, size_t payload, bool last = true) {
  return tagged(O::kReadResponse, STag{token(p).value ^ stag_xor}, to, payload, last);
}
std::pair<size_t, size_t> at_target(size_t offset, size_t size) {
  return {P::kTarget + offset, size};
}

AtomicRequestHeader fetch_add(P& p) {
  return {.request_id = 7, .remote_stag = p.stag(), .remote_to = p.base() + 8, .add_or_swap = 1};
}
Bytes bad_atomic(P& p, const std::function<void(AtomicRequestHeader&)>& spoil) {
  AtomicRequestHeader header = fetch_add(p);
  spoil(header);
  return sim::atomic_request(header, 1);
}

const Fault kTable[] = {
    // ---- Framing and versions.
    // Proves: 5041-4.4-a 5044-4.1-f
    {"empty ULPDU", [](P&) { return Ulpdus{Bytes{}}; }, T::kDdpLocalCatastrophic, kFatal,
     Shows::kNothing},
    {"ULPDU of one byte", [](P&) { return Ulpdus{Bytes(1, std::byte{0xC1})}; },
     T::kDdpLocalCatastrophic, kFatal, Shows::kNothing},
    {"tagged ULPDU of 13", [](P&) { return Ulpdus{Bytes(13, std::byte{0xC1})}; },
     T::kDdpLocalCatastrophic, kFatal, Shows::kNothing},
    {"untagged ULPDU of 17", [](P&) { return Ulpdus{Bytes(17, std::byte{0x41})}; },
     T::kDdpLocalCatastrophic, kFatal, Shows::kNothing},
    // Proves: 5041-4.1-j
    {"tagged, DDP version 0", [](P& p) { return Ulpdus{with_byte(write_to(p, 0), 0, 0xC0)}; },
     T::kDdpTaggedInvalidVersion, kFatal, Shows::kNothing},
    {"tagged, DDP version 2", [](P& p) { return Ulpdus{with_byte(write_to(p, 0), 0, 0xC2)}; },
     T::kDdpTaggedInvalidVersion, kFatal, Shows::kNothing},
    {"tagged, DDP version 3", [](P& p) { return Ulpdus{with_byte(write_to(p, 0), 0, 0xC3)}; },
     T::kDdpTaggedInvalidVersion, kFatal, Shows::kNothing},
    {"untagged, DDP version 0", [](P&) { return Ulpdus{with_byte(send_message(1, 8), 0, 0x40)}; },
     T::kDdpUntaggedInvalidVersion, kFatal, Shows::kNothing},
    {"untagged, DDP version 2", [](P&) { return Ulpdus{with_byte(send_message(1, 8), 0, 0x42)}; },
     T::kDdpUntaggedInvalidVersion, kFatal, Shows::kNothing},
    {"untagged, DDP version 3", [](P&) { return Ulpdus{with_byte(send_message(1, 8), 0, 0x43)}; },
     T::kDdpUntaggedInvalidVersion, kFatal, Shows::kNothing},
    // Proves: 5041-4.1-k
    {"DDP version changes in a Send",
     [](P&) { return Ulpdus{send_message(1, 8, 0, false), with_byte(send_message(1, 8, 8), 0, 0x40)}; },
     T::kDdpUntaggedInvalidVersion, kFatal, Shows::kNothing, {kFlushed, kFlushed}, true, kFlushed,
     {kReceiveAt, 8}},
    {"DDP version changes in a Write",
     [](P& p) { return Ulpdus{write_to(p, 0, 8, false), with_byte(write_to(p, 8, 8), 0, 0xC0)}; },
     T::kDdpTaggedInvalidVersion, kFatal, Shows::kNothing, {kFlushed, kFlushed}, true, kFlushed,
     at_target(0, 8)},
    // Proves: 5040-4.1-h 5040-7.2-c
    {"RDMAP version 0", [](P&) { return Ulpdus{with_byte(send_message(1, 8), 1, 0x03)}; },
     T::kRdmapInvalidVersion, kRequest},
    {"RDMAP version 2, Send", [](P&) { return Ulpdus{with_byte(send_message(1, 8), 1, 0x83)}; },
     T::kRdmapInvalidVersion, kRequest},
    {"RDMAP version 3, Send", [](P&) { return Ulpdus{with_byte(send_message(1, 8), 1, 0xC3)}; },
     T::kRdmapInvalidVersion, kRequest},
    {"RDMAP version 2, Write", [](P& p) { return Ulpdus{with_byte(write_to(p, 0), 1, 0x80)}; },
     T::kRdmapInvalidVersion, kRequest},
    {"RDMAP version 3, Write", [](P& p) { return Ulpdus{with_byte(write_to(p, 0), 1, 0xC0)}; },
     T::kRdmapInvalidVersion, kRequest},
    {"RDMAP version 2, Read Request",
     [](P& p) { return Ulpdus{with_byte(bad_read(p, [](auto&) {}), 1, 0x81)}; },
     T::kRdmapInvalidVersion, kRequest},
    {"RDMAP version 3, Read Request",
     [](P& p) { return Ulpdus{with_byte(bad_read(p, [](auto&) {}), 1, 0xC1)}; },
     T::kRdmapInvalidVersion, kRequest},
    {"RDMAP version 2, Read Response",
     [](P& p) { return Ulpdus{with_byte(response(p, 0, 0, kReadSize), 1, 0x82)}; },
     T::kRdmapInvalidVersion, kRequest},
    {"RDMAP version 3, Send with Invalidate",
     [](P& p) {
       return Ulpdus{with_byte(untagged(O::kSendInvalidate, 0, 1, 0, 8, true, p.stag()), 1, 0xC4)};
     },
     T::kRdmapInvalidVersion, kRequest},
    {"RDMAP version 2, Terminate",
     [](P&) { return Ulpdus{with_byte(untagged(O::kTerminate, 2, 1, 0, 4), 1, 0x87)}; },
     T::kRdmapInvalidVersion, kRequest},

    // ---- Opcode, T flag, queue.
    // Proves: 5040-4.2-b 5040-7.2-b
    {"opcode 0xC", [](P&) { return Ulpdus{with_byte(send_message(1, 8), 1, 0x4C)}; },
     T::kRdmapUnexpectedOpcode, kRequest},
    {"opcode 0xD", [](P&) { return Ulpdus{with_byte(send_message(1, 8), 1, 0x4D)}; },
     T::kRdmapUnexpectedOpcode, kRequest},
    {"opcode 0xE", [](P&) { return Ulpdus{with_byte(send_message(1, 8), 1, 0x4E)}; },
     T::kRdmapUnexpectedOpcode, kRequest},
    {"opcode 0xF", [](P&) { return Ulpdus{with_byte(send_message(1, 8), 1, 0x4F)}; },
     T::kRdmapUnexpectedOpcode, kRequest},
    {"opcode 0xC, tagged", [](P& p) { return Ulpdus{with_byte(write_to(p, 0), 1, 0x4C)}; },
     T::kRdmapUnexpectedOpcode, kRequest},
    // Proves: 5040-4.1-m
    {"tagged Send", [](P& p) { return Ulpdus{tagged(O::kSend, p.stag(), p.base(), 8)}; },
     T::kRdmapUnexpectedOpcode, kRequest},
    {"untagged Write", [](P&) { return Ulpdus{untagged(O::kWrite, 0, 1, 0, 8)}; },
     T::kRdmapUnexpectedOpcode, kRequest},
    // Proves: 5040-4.1-n 5040-5.2.1-f 5040-5.3-j
    {"Send on queue 1", [](P&) { return Ulpdus{untagged(O::kSend, 1, 1, 0, 8)}; },
     T::kDdpUntaggedInvalidQn, kFatal},
    {"Send on queue 3", [](P&) { return Ulpdus{untagged(O::kSend, 3, 1, 0, 8)}; },
     T::kDdpUntaggedInvalidQn, kFatal},
    {"Read Request on queue 0",
     [](P&) { return Ulpdus{untagged(O::kReadRequest, 0, 1, 0, 28)}; }, T::kDdpUntaggedInvalidQn,
     kFatal},
    {"Read Request on queue 2",
     [](P&) { return Ulpdus{untagged(O::kReadRequest, 2, 1, 0, 28)}; }, T::kDdpUntaggedInvalidQn,
     kFatal},
    {"Terminate on queue 0", [](P&) { return Ulpdus{untagged(O::kTerminate, 0, 1, 0, 4)}; },
     T::kDdpUntaggedInvalidQn, kFatal},
    // Proves: 5041-7.1-u1
    {"Send on queue 4", [](P&) { return Ulpdus{untagged(O::kSend, 4, 1, 0, 8)}; },
     T::kDdpUntaggedInvalidQn, kFatal},
    {"Send on queue 0xFFFFFFFF", [](P&) { return Ulpdus{untagged(O::kSend, ~0u, 1, 0, 8)}; },
     T::kDdpUntaggedInvalidQn, kFatal},

    // ---- MSN.
    // Proves: 5041-4.3-e 5041-4.3-f 5041-7.1-u5
    {"first MSN 0", [](P&) { return Ulpdus{send_message(0, 8)}; }, T::kDdpUntaggedMsnRange, kFatal},
    {"first MSN 2", [](P&) { return Ulpdus{send_message(2, 8)}; }, T::kDdpUntaggedMsnRange, kFatal},
    {"MSN far ahead", [](P&) { return Ulpdus{send_message(0x80000001, 8)}; },
     T::kDdpUntaggedMsnRange, kFatal},
    {"MSN repeated", [](P&) { return Ulpdus{send_message(1, 8), send_message(1, 8)}; },
     T::kDdpUntaggedMsnRange, kFatal, Shows::kDdpHeader, {kDone, kFlushed}, true, kFlushed,
     {kReceiveAt, 8}},
    {"MSN skipped", [](P&) { return Ulpdus{send_message(1, 8), send_message(3, 8)}; },
     T::kDdpUntaggedMsnRange, kFatal, Shows::kDdpHeader, {kDone, kFlushed}, true, kFlushed,
     {kReceiveAt, 8}},
    {"MSN changes in a message",
     [](P&) { return Ulpdus{send_message(1, 8, 0, false), send_message(2, 8, 8)}; },
     T::kDdpUntaggedMsnRange, kFatal, Shows::kDdpHeader, {kFlushed, kFlushed}, true, kFlushed,
     {kReceiveAt, 8}},
    {"first Read Request with MSN 2", [](P& p) { return Ulpdus{sim::read_request(read_of(p), 2)}; },
     T::kDdpUntaggedMsnRange, kFatal},

    // ---- Receives: none posted, MO, length.
    // Proves: 5041-7.1-u2 5041-7.1-u2b 5042-j
    {"Send without a receive",
     [](P&) { return Ulpdus{send_message(1, 8), send_message(2, 8), send_message(3, 8)}; },
     T::kDdpUntaggedNoBuffer, kFatal, Shows::kDdpHeader, {kDone, kDone}, true, kFlushed,
     {kReceiveAt, 8}},
    // Proves: 5041-7.1-u6
    {"empty Send without a receive",
     [](P&) { return Ulpdus{send_message(1, 0), send_message(2, 0), send_message(3, 0)}; },
     T::kDdpUntaggedNoBuffer, kFatal, Shows::kDdpHeader, {kDone, kDone}},
    // Proves: 5041-7.1-u3
    {"MO behind the buffer", [](P&) { return Ulpdus{send_message(1, 8, 108)}; },
     T::kDdpUntaggedInvalidMo, kFatal, Shows::kDdpHeader, {WcStatus::kLocLenErr, kFlushed}},
    {"MO so large that its end wraps", [](P&) { return Ulpdus{send_message(1, 8, 0xFFFFFFFF)}; },
     T::kDdpUntaggedInvalidMo, kFatal, Shows::kDdpHeader, {WcStatus::kLocLenErr, kFlushed}},
    // Proves: 5040-3.2-b 5040-5.3-d 5040-5.3-h
    {"Send longer than its buffer by one", [](P&) { return Ulpdus{send_message(1, 101)}; },
     T::kDdpUntaggedTooLong, kFatal, Shows::kDdpHeader, {WcStatus::kLocLenErr, kFlushed}},
    // Proves: 5041-7.1-u4
    {"second segment past the end",
     [](P&) { return Ulpdus{send_message(1, 60, 0, false), send_message(1, 41, 60)}; },
     T::kDdpUntaggedTooLong, kFatal, Shows::kDdpHeader, {WcStatus::kLocLenErr, kFlushed}, true,
     kFlushed, {kReceiveAt, 60}},
    // uwarp's rule, since TCP keeps segments in order; 5041 7.1 allows any MO inside the buffer.
    // Proves: 5041-5.2-k
    {"hole in a Send", [](P&) { return Ulpdus{send_message(1, 8, 10)}; }, T::kDdpUntaggedInvalidMo,
     kFatal, Shows::kDdpHeader, {WcStatus::kLocLenErr, kFlushed}},
    {"hole behind the first segment",
     [](P&) { return Ulpdus{send_message(1, 10, 0, false), send_message(1, 10, 11)}; },
     T::kDdpUntaggedInvalidMo, kFatal, Shows::kDdpHeader, {WcStatus::kLocLenErr, kFlushed}, true,
     kFlushed, {kReceiveAt, 10}},
    // With an empty last segment at 20, the number of bytes would equal the length of the message.
    {"segment of a Send repeated",
     [](P&) { return Ulpdus{send_message(1, 10, 0, false), send_message(1, 10, 0, false)}; },
     T::kDdpUntaggedInvalidMo, kFatal, Shows::kDdpHeader, {WcStatus::kLocLenErr, kFlushed}, true,
     kFlushed, {kReceiveAt, 10}},
    {"segments of a Send overlap",
     [](P&) { return Ulpdus{send_message(1, 10, 0, false), send_message(1, 10, 9)}; },
     T::kDdpUntaggedInvalidMo, kFatal, Shows::kDdpHeader, {WcStatus::kLocLenErr, kFlushed}, true,
     kFlushed, {kReceiveAt, 10}},
    {"empty segment behind a hole",
     [](P&) { return Ulpdus{send_message(1, 10, 0, false), send_message(1, 0, 11)}; },
     T::kDdpUntaggedInvalidMo, kFatal, Shows::kDdpHeader, {WcStatus::kLocLenErr, kFlushed}, true,
     kFlushed, {kReceiveAt, 10}},
    {"overlap in a Send with Solicited Event", [](P&) { return overlapping(O::kSendSolicited); },
     T::kDdpUntaggedInvalidMo, kFatal, Shows::kDdpHeader, {WcStatus::kLocLenErr, kFlushed}, true,
     kFlushed, {kReceiveAt, 10}},
    {"overlap in a Send with Invalidate", [](P&) { return overlapping(O::kSendInvalidate); },
     T::kDdpUntaggedInvalidMo, kFatal, Shows::kDdpHeader, {WcStatus::kLocLenErr, kFlushed}, true,
     kFlushed, {kReceiveAt, 10}},
    {"overlap in a Send with both",
     [](P&) { return overlapping(O::kSendSolicitedInvalidate); }, T::kDdpUntaggedInvalidMo, kFatal,
     Shows::kDdpHeader, {WcStatus::kLocLenErr, kFlushed}, true, kFlushed, {kReceiveAt, 10}},
    // Proves: 5041-4.3-c
    {"opcode changes in a Send",
     [](P&) {
       return Ulpdus{send_message(1, 8, 0, false), untagged(O::kSendSolicited, 0, 1, 8, 8)};
     },
     T::kRdmapUnexpectedOpcode, kRequest, Shows::kDdpHeader, {kFlushed, kFlushed}, true, kFlushed,
     {kReceiveAt, 8}},

    // ---- Writes.
    // Proves: 5040-3.2-d 5040-5.1-c 5040-4.8-q 5041-7.1-t1 5041-4.2-e 5041-8.3-5 5042-a
    {"Write, unknown STag",
     [](P& p) { return Ulpdus{tagged(O::kWrite, STag{p.stag().value ^ 1}, p.base(), 16)}; },
     T::kDdpTaggedInvalidSTag, kAccess},
    {"Write, STag 0", [](P& p) { return Ulpdus{tagged(O::kWrite, STag{0}, p.base(), 16)}; },
     T::kDdpTaggedInvalidSTag, kAccess},
    {"Write to a region for local use",
     [](P& p) { return Ulpdus{tagged(O::kWrite, p.key_of(kAccessLocalWrite), p.base(), 16)}; },
     T::kDdpTaggedInvalidSTag, kAccess},
    // Proves: 5040-3.2-h 4296-2.1.2-e 5041-8.3-2
    {"Write after deregistration",
     [](P& p) {
       const Bytes write = write_to(p, 0);
       p.remove_target();
       return Ulpdus{write};
     },
     T::kDdpTaggedInvalidSTag, kAccess},
    // Proves: 5041-7.1-t6
    {"second segment of a Write after deregistration",
     [](P& p) {
       p.send(write_to(p, 0, 8, false));
       const volatile std::byte* last = p.dut.memory.data() + P::kTarget + 7;
       EXPECT_TRUE(eventually([&] { return *last == std::byte{0x3C}; }));
       const Bytes second = write_to(p, 8, 8);
       p.remove_target();
       return Ulpdus{second};
     },
     T::kDdpTaggedInvalidSTag, kAccess, Shows::kDdpHeader, {kFlushed, kFlushed}, true, kFlushed,
     at_target(0, 8)},
    {"hole in a Write",
     [](P& p) { return Ulpdus{write_to(p, 0, 8, false), write_to(p, 9, 8)}; },
     T::kDdpTaggedBounds, kAccess, Shows::kDdpHeader, {kFlushed, kFlushed}, true, kFlushed,
     at_target(0, 8)},
    {"segment of a Write repeated",
     [](P& p) { return Ulpdus{write_to(p, 0, 8, false), write_to(p, 0, 8)}; },
     T::kDdpTaggedBounds, kAccess, Shows::kDdpHeader, {kFlushed, kFlushed}, true, kFlushed,
     at_target(0, 8)},
    // Proves: 5041-7.1-t2 4296-2.2.1-b
    {"Write to a read-only region",
     [](P& p) {
       const STag key = p.key_of(kAccessLocalWrite | kAccessRemoteRead);
       return Ulpdus{tagged(O::kWrite, key, p.base(), 16)};
     },
     T::kDdpTaggedInvalidSTag, kAccess},
    {"Write to an unbound window",
     [](P& p) {
       const STag key = p.own_window();
       SendRequest request;
       request.wr_id = P::kBindId;
       request.opcode = SendOpcode::kLocalInvalidate;
       request.imm_or_invalidate = key.value;
       EXPECT_EQ(p.dut.post(request, 0, 0), 0);
       EXPECT_EQ(p.dut.wait_passive().status, WcStatus::kSuccess);
       return Ulpdus{tagged(O::kWrite, key, p.base(), 16)};
     },
     T::kDdpTaggedInvalidSTag, kAccess, Shows::kDdpHeader, {kFlushed, kFlushed}, false},
    // Proves: 5041-7.1-t3
    {"Write below the base", [](P& p) { return Ulpdus{write_to(p, -1)}; }, T::kDdpTaggedBounds,
     kAccess},
    {"Write at the end", [](P& p) { return Ulpdus{write_to(p, P::kTargetSize, 1)}; },
     T::kDdpTaggedBounds, kAccess},
    // Proves: 5041-7.1-t4 5040-8.1.1-3 5040-3.1-h
    {"Write past the end by one", [](P& p) { return Ulpdus{write_to(p, P::kTargetSize - 15)}; },
     T::kDdpTaggedBounds, kAccess},
    {"second segment of a Write past the end",
     [](P& p) {
       return Ulpdus{write_to(p, P::kTargetSize - 16, 8, false),
                     write_to(p, P::kTargetSize - 8, 9)};
     },
     T::kDdpTaggedBounds, kAccess, Shows::kDdpHeader, {kFlushed, kFlushed}, true, kFlushed,
     at_target(P::kTargetSize - 16, 8)},
    // Proves: 5041-7.1-t5
    {"Write whose end wraps",
     [](P& p) { return Ulpdus{tagged(O::kWrite, p.stag(), ~uint64_t{0}, 2)}; },
     T::kDdpTaggedToWrap, kAccess},
    // Proves: 5041-8.2-a 5040-8.1.1-1 5041-8.3.1-a
    {"Write to another domain",
     [](P& p) {
       return Ulpdus{tagged(O::kWrite, p.key_of(sim::kAllAccess, &foreign_domain()), p.base(), 16)};
     },
     T::kDdpTaggedSTagNotOfStream, kAccess},
    // Proves: 5040-8.1.1-2 5041-8.2-b
    {"Write to a window of another queue pair",
     [](P& p) { return Ulpdus{tagged(O::kWrite, p.window_key(kNoStream), p.base(), 16)}; },
     T::kDdpTaggedSTagNotOfStream, kAccess},
    // Proves: 5040-5.1-i
    {"Write that changes its STag",
     [](P& p) {
       return Ulpdus{write_to(p, 0, 8, false),
                     tagged(O::kWrite, p.key_of(sim::kAllAccess), p.base() + 8, 8)};
     },
     T::kDdpTaggedInvalidSTag, kAccess, Shows::kDdpHeader, {kFlushed, kFlushed}, true, kFlushed,
     at_target(0, 8)},

    // ---- Read Requests.
    // Proves: 5040-3.2-f 5040-5.2.1-e 5040-5.2.1-m 5040-7.2-f 4296-3.1-b
    {"Read, unknown STag",
     [](P& p) { return Ulpdus{bad_read(p, [](auto& h) { h.source_stag.value ^= 1; })}; },
     T::kRdmapInvalidSTag, kAccess, Shows::kReadRequest},
    {"Read after deregistration",
     [](P& p) {
       const Bytes read = bad_read(p, [](auto&) {});
       p.remove_target();
       return Ulpdus{read};
     },
     T::kRdmapInvalidSTag, kAccess, Shows::kReadRequest},
    // Proves: 5040-7.2-g 5040-8.1.1-1
    {"Read of another domain",
     [](P& p) {
       const STag key = p.key_of(sim::kAllAccess, &foreign_domain());
       return Ulpdus{bad_read(p, [&](auto& h) { h.source_stag = key; })};
     },
     T::kRdmapSTagNotOfStream, kAccess, Shows::kReadRequest},
    {"Read of a window of another queue pair",
     [](P& p) {
       const STag key = p.window_key(kNoStream);
       return Ulpdus{bad_read(p, [&](auto& h) { h.source_stag = key; })};
     },
     T::kRdmapSTagNotOfStream, kAccess, Shows::kReadRequest},
    // Proves: 5040-7.2-h
    {"Read below the base",
     [](P& p) { return Ulpdus{bad_read(p, [](auto& h) { h.source_to -= 1; })}; },
     T::kRdmapBounds, kAccess, Shows::kReadRequest},
    {"Read at the end",
     [](P& p) {
       return Ulpdus{bad_read(p, [](auto& h) { h.source_to += P::kTargetSize, h.size = 1; })};
     },
     T::kRdmapBounds, kAccess, Shows::kReadRequest},
    // Proves: 5042-d
    {"Read past the end by one",
     [](P& p) {
       return Ulpdus{bad_read(p, [](auto& h) { h.source_to += P::kTargetSize - 63; })};
     },
     T::kRdmapBounds, kAccess, Shows::kReadRequest},
    // Proves: 5040-5.2.1-i
    {"Read across two adjacent regions",
     [](P& p) {
       const MemoryRegion* first = p.add_region(sim::kAllAccess, nullptr, 0, 1000);
       p.add_region(sim::kAllAccess, nullptr, 1000, 1000);
       const STag key{first->key.load()};
       return Ulpdus{bad_read(p, [&](auto& h) { h.source_stag = key, h.source_to += 968; })};
     },
     T::kRdmapBounds, kAccess, Shows::kReadRequest},
    // Proves: 5040-7.2-j
    {"Read whose end wraps",
     [](P& p) {
       return Ulpdus{bad_read(p, [](auto& h) { h.source_to = 0xFFFFFFFFFFFFFFF0, h.size = 0x20; })};
     },
     T::kRdmapToWrap, kAccess, Shows::kReadRequest},
    // Proves: 5040-7.2-k
    {"Read without the right",
     [](P& p) {
       const STag key = p.key_of(kAccessLocalWrite | kAccessRemoteWrite);
       return Ulpdus{bad_read(p, [&](auto& h) { h.source_stag = key; })};
     },
     T::kRdmapAccess, kAccess, Shows::kReadRequest},
    // Proves: 5040-4.4-g
    {"Read Request cut short", [](P&) { return Ulpdus{untagged(O::kReadRequest, 1, 1, 0, 24)}; },
     T::kRdmapOperationUnspecified, kRequest},
    // Proves: 5040-4.2-a
    {"Read Request with four bytes behind it",
     [](P&) { return Ulpdus{untagged(O::kReadRequest, 1, 1, 0, 32)}; }, T::kDdpUntaggedTooLong,
     kFatal},

    // ---- Read Responses.
    // Proves: 5040-5.2.2-j
    {"Read Response without a request",
     [](P& p) { return Ulpdus{tagged(O::kReadResponse, p.stag(), p.base(), 8)}; },
     T::kRdmapUnexpectedOpcode, kRequest, Shows::kDdpHeader, {kFlushed, kFlushed}, false},
    // Proves: 5040-5.2.2-e 5040-5.2.2-h 5042-f
    {"Response with a wrong STag", [](P& p) { return Ulpdus{response(p, 1, 0, kReadSize)}; },
     T::kDdpTaggedInvalidSTag, kRequest, Shows::kDdpHeader, {kFlushed, kFlushed}, true,
     WcStatus::kBadRespErr},
    {"Response with a wrong TO", [](P& p) { return Ulpdus{response(p, 0, 1, kReadSize - 1)}; },
     T::kDdpTaggedBounds, kRequest, Shows::kDdpHeader, {kFlushed, kFlushed}, true,
     WcStatus::kBadRespErr},
    {"Response too long", [](P& p) { return Ulpdus{response(p, 0, 0, kReadSize + 1)}; },
     T::kDdpTaggedBounds, kRequest, Shows::kDdpHeader, {kFlushed, kFlushed}, true,
     WcStatus::kLocLenErr},
    {"Response too short", [](P& p) { return Ulpdus{response(p, 0, 0, kReadSize - 1)}; },
     T::kDdpTaggedBounds, kRequest, Shows::kDdpHeader, {kFlushed, kFlushed}, true,
     WcStatus::kBadRespErr},
    {"hole in a Response",
     [](P& p) {
       const STag sink = token(p);
       return Ulpdus{tagged(O::kReadResponse, sink, 0, 8, false),
                     tagged(O::kReadResponse, sink, 9, kReadSize - 9)};
     },
     T::kDdpTaggedBounds, kRequest, Shows::kDdpHeader, {kFlushed, kFlushed}, true,
     WcStatus::kBadRespErr, {kReadAt, 8}},
    {"segment of a Response repeated",
     [](P& p) {
       const STag sink = token(p);
       return Ulpdus{tagged(O::kReadResponse, sink, 0, 8, false),
                     tagged(O::kReadResponse, sink, 0, kReadSize - 8)};
     },
     T::kDdpTaggedBounds, kRequest, Shows::kDdpHeader, {kFlushed, kFlushed}, true,
     WcStatus::kBadRespErr, {kReadAt, 8}},
    // Proves: 5042-e
    {"Write to the sink of a Read",
     [](P& p) { return Ulpdus{tagged(O::kWrite, token(p), 0, 8)}; }, T::kDdpTaggedInvalidSTag,
     kAccess},

    // ---- Sends with Invalidate.
    // Proves: 5040-5.3-q 5040-5.3-s 5040-7.2-d
    {"invalidating an unknown STag",
     [](P& p) {
       return Ulpdus{untagged(O::kSendInvalidate, 0, 1, 0, 0, true, STag{p.stag().value ^ 1})};
     },
     T::kRdmapCannotInvalidate, kAccess, Shows::kDdpHeader, {WcStatus::kRemInvReqErr, kFlushed}},
    {"invalidating STag 0",
     [](P&) { return Ulpdus{untagged(O::kSendSolicitedInvalidate, 0, 1, 0, 0, true, STag{0})}; },
     T::kRdmapCannotInvalidate, kAccess, Shows::kDdpHeader, {WcStatus::kRemInvReqErr, kFlushed}},
    {"invalidating a region for local use",
     [](P& p) {
       return Ulpdus{
           untagged(O::kSendInvalidate, 0, 1, 0, 0, true, p.key_of(kAccessLocalWrite))};
     },
     T::kRdmapCannotInvalidate, kAccess, Shows::kDdpHeader, {WcStatus::kRemInvReqErr, kFlushed}},
    // Proves: 5040-5.3-o 5040-8.1.1-1
    {"invalidating an STag of another domain",
     [](P& p) {
       return Ulpdus{untagged(O::kSendInvalidate, 0, 1, 0, 0, true,
                              p.key_of(sim::kAllAccess, &foreign_domain()))};
     },
     T::kRdmapCannotInvalidate, kAccess, Shows::kDdpHeader, {WcStatus::kRemInvReqErr, kFlushed}},
    // Proves: 5040-7.2-e 5042-l
    {"invalidating a window of another queue pair",
     [](P& p) {
       return Ulpdus{untagged(O::kSendInvalidate, 0, 1, 0, 0, true, p.window_key(kNoStream))};
     },
     T::kRdmapCannotInvalidate, kAccess, Shows::kDdpHeader, {WcStatus::kRemInvReqErr, kFlushed}},
    {"invalidating a region",
     [](P& p) { return Ulpdus{untagged(O::kSendInvalidate, 0, 1, 0, 0, true, p.stag())}; },
     T::kRdmapCannotInvalidate, kAccess, Shows::kDdpHeader, {WcStatus::kRemInvReqErr, kFlushed}},
    // Proves: 5040-5.3-p 5040-5.3-r 5042-b
    {"Write to an invalidated window",
     [](P& p) {
       const STag key = p.own_window();
       return Ulpdus{untagged(O::kSendInvalidate, 0, 1, 0, 0, true, key),
                     tagged(O::kWrite, key, p.base(), 16)};
     },
     T::kDdpTaggedInvalidSTag, kAccess, Shows::kDdpHeader, {kDone, kFlushed}, false},

    // ---- Atomics. RFC 7306.
    // Proves: 7306-8.2-f 7306-9-a
    {"atomic, unknown STag",
     [](P& p) { return Ulpdus{bad_atomic(p, [](auto& h) { h.remote_stag.value ^= 1; })}; },
     T::kRdmapInvalidSTag, kAccess},
    {"atomic of another domain",
     [](P& p) {
       const STag key = p.key_of(sim::kAllAccess, &foreign_domain());
       return Ulpdus{bad_atomic(p, [&](auto& h) { h.remote_stag = key; })};
     },
     T::kRdmapSTagNotOfStream, kAccess},
    {"atomic through a window of another queue pair",
     [](P& p) {
       const STag key = p.window_key(kNoStream);
       return Ulpdus{bad_atomic(p, [&](auto& h) { h.remote_stag = key; })};
     },
     T::kRdmapSTagNotOfStream, kAccess},
    {"atomic below the base",
     [](P& p) { return Ulpdus{bad_atomic(p, [](auto& h) { h.remote_to -= 16; })}; },
     T::kRdmapBounds, kAccess},
    {"atomic past the end",
     [](P& p) {
       return Ulpdus{bad_atomic(p, [](auto& h) { h.remote_to += P::kTargetSize - 12; })};
     },
     T::kRdmapBounds, kAccess},
    {"atomic whose end wraps",
     [](P& p) { return Ulpdus{bad_atomic(p, [](auto& h) { h.remote_to = ~uint64_t{0} - 6; })}; },
     T::kRdmapToWrap, kAccess},
    {"atomic without the right",
     [](P& p) {
       const STag key = p.key_of(sim::kAllAccess & ~kAccessRemoteAtomic);
       return Ulpdus{bad_atomic(p, [&](auto& h) { h.remote_stag = key; })};
     },
     T::kRdmapAccess, kAccess},
    // Proves: 7306-4-a
    {"Atomic Request of 51 bytes",
     [](P&) { return Ulpdus{untagged(O::kAtomicRequest, 1, 1, 0, 51)}; },
     T::kRdmapOperationUnspecified, kRequest},
    {"Atomic Request of 56 bytes",
     [](P&) { return Ulpdus{untagged(O::kAtomicRequest, 1, 1, 0, 56)}; },
     T::kRdmapOperationUnspecified, kRequest},
    // Proves: 7306-4.1-d 7306-5.2-c 7306-6.3-d 7306-8.2-a
    {"Atomic Request on queue 0",
     [](P&) { return Ulpdus{untagged(O::kAtomicRequest, 0, 1, 0, 52)}; },
     T::kDdpUntaggedInvalidQn, kFatal},
    {"Atomic Request on queue 3",
     [](P&) { return Ulpdus{untagged(O::kAtomicRequest, 3, 1, 0, 52)}; },
     T::kDdpUntaggedInvalidQn, kFatal},
    {"Atomic Response on queue 1",
     [](P&) { return Ulpdus{untagged(O::kAtomicResponse, 1, 1, 0, 12)}; }, T::kDdpUntaggedInvalidQn,
     kFatal},
    {"Immediate Data on queue 1", [](P&) { return Ulpdus{untagged(O::kImmediate, 1, 1, 0, 8)}; },
     T::kDdpUntaggedInvalidQn, kFatal},
    {"tagged Atomic Request",
     [](P& p) { return Ulpdus{tagged(O::kAtomicRequest, p.stag(), 0, 52)}; },
     T::kRdmapUnexpectedOpcode, kRequest},
    {"tagged Atomic Response",
     [](P& p) { return Ulpdus{tagged(O::kAtomicResponse, p.stag(), 0, 12)}; },
     T::kRdmapUnexpectedOpcode, kRequest},
    {"tagged Immediate Data", [](P& p) { return Ulpdus{tagged(O::kImmediate, p.stag(), 0, 8)}; },
     T::kRdmapUnexpectedOpcode, kRequest},
    {"tagged Immediate Data with SE",
     [](P& p) { return Ulpdus{tagged(O::kImmediateSolicited, p.stag(), 0, 8)}; },
     T::kRdmapUnexpectedOpcode, kRequest},
    {"Atomic Request, MSN 2", [](P& p) { return Ulpdus{sim::atomic_request(fetch_add(p), 2)}; },
     T::kDdpUntaggedMsnRange, kFatal},
    {"Atomic Request, MO 4", [](P&) { return Ulpdus{untagged(O::kAtomicRequest, 1, 1, 4, 52)}; },
     T::kDdpUntaggedInvalidMo, kFatal},
    {"Immediate Data, MSN 2", [](P&) { return Ulpdus{untagged(O::kImmediate, 0, 2, 0, 8)}; },
     T::kDdpUntaggedMsnRange, kFatal},
    {"Atomic Response, MSN 2", [](P&) { return Ulpdus{untagged(O::kAtomicResponse, 3, 2, 0, 12)}; },
     T::kDdpUntaggedMsnRange, kFatal},
    {"Atomic Response without a request",
     [](P&) { return Ulpdus{untagged(O::kAtomicResponse, 3, 1, 0, 12)}; },
     T::kRdmapUnexpectedOpcode, kRequest, Shows::kDdpHeader, {kFlushed, kFlushed}, false},
    // Proves: 7306-4.1-a 7306-8.2-c
    {"RDMAP version 0, Immediate Data",
     [](P&) { return Ulpdus{with_byte(untagged(O::kImmediate, 0, 1, 0, 8), 1, 0x08)}; },
     T::kRdmapInvalidVersion, kRequest},
    {"RDMAP version 0, Immediate Data with SE",
     [](P&) { return Ulpdus{with_byte(untagged(O::kImmediateSolicited, 0, 1, 0, 8), 1, 0x09)}; },
     T::kRdmapInvalidVersion, kRequest},
    {"RDMAP version 0, Atomic Request",
     [](P& p) { return Ulpdus{with_byte(sim::atomic_request(fetch_add(p), 1), 1, 0x0A)}; },
     T::kRdmapInvalidVersion, kRequest},
    {"RDMAP version 0, Atomic Response",
     [](P&) { return Ulpdus{with_byte(untagged(O::kAtomicResponse, 3, 1, 0, 12), 1, 0x0B)}; },
     T::kRdmapInvalidVersion, kRequest},
    // Proves: 7306-6.3-b
    {"Immediate Data without a receive",
     [](P&) {
       return Ulpdus{untagged(O::kImmediate, 0, 1, 0, 8), untagged(O::kImmediate, 0, 2, 0, 8),
                     untagged(O::kImmediate, 0, 3, 0, 8)};
     },
     T::kDdpUntaggedNoBuffer, kFatal, Shows::kDdpHeader, {kDone, kDone}},
    {"overlap in Immediate Data",
     [](P&) {
       return Ulpdus{untagged(O::kImmediate, 0, 1, 0, 4, false), untagged(O::kImmediate, 0, 1, 0, 4)};
     },
     T::kRdmapOperationUnspecified, kRequest},

    // ---- Several faults.
    // Proves: 5040-7.1-e
    {"bad Read Request, with a bad Write behind it",
     [](P& p) { return Ulpdus{bad_read(p, [](auto& h) { h.source_stag.value ^= 1; })}; },
     T::kRdmapInvalidSTag, kAccess, Shows::kReadRequest},
};

/// The table, and further faults that differ only in a number.
std::vector<Fault> make_faults() {
  std::vector<Fault> all(std::begin(kTable), std::end(kTable));
  // Proves: 7306-5.1.1-a 7306-5.1.1-b 7306-5.1.1-c 7306-5.1.1-d 7306-5.1.2-d 7306-5.1.2-e
  // Proves: 7306-5.1.2-f 7306-8.2-d 7306-8.2-e
  for (const AtomicOpcode opcode : {AtomicOpcode::kFetchAdd, AtomicOpcode::kCmpSwap}) {
    for (uint64_t offset = 1; offset <= 7; ++offset) {
      all.push_back({"atomic at offset " + std::to_string(offset),
                     [=](P& p) {
                       return Ulpdus{bad_atomic(p, [=](auto& h) {
                         h.opcode = opcode;
                         h.remote_to += offset;
                       })};
                     },
                     T::kRdmapStreamCatastrophic, kRequest});
    }
  }
  // Proves: 7306-5.2.1-k 7306-10-a
  for (uint8_t opcode = 1; opcode <= 15; ++opcode) {
    if (opcode == 2) continue;
    all.push_back({"atomic operation " + std::to_string(opcode),
                   [=](P& p) {
                     return Ulpdus{bad_atomic(
                         p, [=](auto& h) { h.opcode = static_cast<AtomicOpcode>(opcode); })};
                   },
                   T::kRdmapUnexpectedOpcode, kRequest});
  }
  // Proves: 7306-1.1-e 7306-8.2-b
  const std::pair<const char*, Bytes> extensions[] = {
      {"Immediate Data", untagged(O::kImmediate, 0, 1, 0, 8)},
      {"Immediate Data with SE", untagged(O::kImmediateSolicited, 0, 1, 0, 8)},
      {"Atomic Request", untagged(O::kAtomicRequest, 1, 1, 0, 52)},
      {"Atomic Response", untagged(O::kAtomicResponse, 3, 1, 0, 12)}};
  for (const auto& [name, ulpdu] : extensions) {
    all.push_back({std::string(name) + ", switched off",
                   [ulpdu = ulpdu](P&) { return Ulpdus{ulpdu}; }, T::kRdmapUnexpectedOpcode,
                   kRequest});
    all.back().extensions = false;
  }
  // Proves: 7306-6.1-b 7306-6.3-g
  for (const size_t size : {0u, 4u, 7u, 9u, 16u}) {
    all.push_back({"Immediate Data of " + std::to_string(size),
                   [=](P&) { return Ulpdus{untagged(O::kImmediate, 0, 1, 0, size)}; },
                   T::kRdmapOperationUnspecified, kRequest});
  }
  return all;
}
const std::vector<Fault> kFaults = make_faults();

class Faults : public ::testing::TestWithParam<std::tuple<size_t, bool>> {
 protected:
  const Fault& fault() const { return kFaults[std::get<0>(GetParam())]; }

  void post_work(SocketPeer& peer) {
    for (uint64_t id = 1; id <= 2; ++id) ASSERT_EQ(peer.dut.post_recv(id, kReceiveAt, 100), 0);
    if (!fault().reading) return;
    SendRequest read;
    read.wr_id = kReadId;
    read.opcode = SendOpcode::kRead;
    read.remote_address = read.rkey = 5;
    ASSERT_EQ(peer.dut.post(read, kReadAt, kReadSize), 0);
    SendRequest send;
    send.wr_id = kSendId;
    send.flags = kSendFence;
    ASSERT_EQ(peer.dut.post(send, 0, 8), 0);
  }

  void check_terminate(SocketPeer& peer, const std::vector<Bytes>& sent, const Bytes& bad) {
    ASSERT_FALSE(sent.empty());
    const Bytes& last = sent.back();
    ASSERT_GE(last.size(), 22u);
    EXPECT_EQ(last[0], std::byte{0x41});
    EXPECT_EQ(last[1], std::byte{0x47});
    for (size_t i = 2; i < 18; ++i)
      EXPECT_EQ(last[i], static_cast<std::byte>(i == 9 ? 2 : i == 13 ? 1 : 0));
    EXPECT_EQ(load_be16(&last[18]), static_cast<uint16_t>(fault().code))
        << std::hex << load_be16(&last[18]);
    // M, D, R as in figure 10 of RFC 5040; all reserved bits are zero.
    const uint16_t bits[] = {0x0000, 0xC000, 0xE000};
    EXPECT_EQ(load_be16(&last[20]), bits[static_cast<int>(fault().shows)]);
    const size_t header = bad.empty() || (bad[0] & std::byte{0x80}) != std::byte{0} ? 14 : 18;
    Bytes expected(last.begin(), last.begin() + 22);
    if (fault().shows != Shows::kNothing) {
      expected.resize(24);
      store_be16(&expected[22], static_cast<uint16_t>(bad.size()));
      expected.insert(expected.end(), bad.begin(), bad.begin() + static_cast<ptrdiff_t>(header));
    }
    if (fault().shows == Shows::kReadRequest)
      expected.insert(expected.end(), bad.begin() + 18, bad.begin() + 46);
    EXPECT_EQ(last, expected);
    EXPECT_TRUE(peer.orderly());
  }

  void check_memory(SocketPeer& peer, const std::vector<std::byte>& before) {
    const auto [from, size] = fault().placed;
    for (size_t i = 0; i < before.size(); ++i) {
      if (i >= from && i < from + size) continue;
      ASSERT_EQ(peer.dut.memory[i], before[i]) << i;
    }
  }
};

// Proves: 5040-3.1-g 5040-4.8-a 5040-4.8-b 5040-4.8-d 5040-4.8-e 5040-4.8-f 5040-4.8-g 5040-4.8-i
// Proves: 5040-4.8-j 5040-4.8-l 5040-4.8-m 5040-4.8-p 5040-5.4-a 5040-5.4-b 5040-5.4-j
// Proves: 5040-6.2-b 5040-6.2.1-a 5040-7-a 5040-7-b 5040-7.1-a 5040-7.1-c 5040-7.1-d 5040-7.2-a
// Proves: 5041-3-8 5041-6.2-a 5041-6.2-b 5041-6.2.2-c 5041-6.2.2-d 5041-6.2.2-e 5041-6.2.2-f
// Proves: 5041-7.1-a 5041-7.1-b 5041-7.1-c 5041-7.1-d 5041-7.2-a 5041-8.1-a 5042-o 4296-3.2-a
// Proves: 5044-8-b 7306-8.1-b 5040-4.8-c
TEST_P(Faults, EndTheStreamAsTheTableSays) {
  SCOPED_TRACE(fault().name);
  SocketPeer peer({.crc = std::get<1>(GetParam()), .extensions = fault().extensions});
  // The test's own work request comes first, so that its changes are in the copy of the memory.
  post_work(peer);
  const std::vector<std::byte> before = peer.dut.memory;
  const Ulpdus ulpdus = fault().stream(peer);
  Bytes burst = peer.framed(ulpdus);
  // Messages behind the fault have no effect and get no second Terminate.
  if (peer.target != nullptr) {
    const Bytes behind =
        peer.framed({write_to(peer, 4000), tagged(O::kWrite, STag{1}, 0, 8), ulpdus.back()});
    burst.insert(burst.end(), behind.begin(), behind.end());
  }
  peer.write(burst);
  const std::vector<Bytes> sent = peer.all();
  check_terminate(peer, sent, ulpdus.back());
  EXPECT_TRUE(peer.ended());
  EXPECT_EQ(peer.dut.state(), QpState::kErr);
  const auto done = peer.completions(fault().reading ? 4 : 2);
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(done.at(i + 1).status, fault().receives[i]) << i;
  if (fault().reading) {
    EXPECT_EQ(done.at(kReadId).status, fault().read);
    EXPECT_EQ(done.at(kSendId).status, kFlushed);
  }
  check_memory(peer, before);
  EXPECT_EQ(peer.dut.events(), std::vector{fault().event});
  EXPECT_EQ(peer.owner->failed + peer.owner->rejected, 0);
}

INSTANTIATE_TEST_SUITE_P(Table, Faults,
                         ::testing::Combine(::testing::Range(size_t{0}, kFaults.size()),
                                            ::testing::Bool()));

}  // namespace
}  // namespace uwarp::conformance
