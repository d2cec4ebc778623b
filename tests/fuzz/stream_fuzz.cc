// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The whole receive path with a live queue pair behind it. The input is a script: two octets of
// options, then FPDUs whose headers are half right by construction, so that the fuzzer gets behind
// the first check. Invariants: no octet outside the registered memory changes, every posted receive
// completes at most once, and a failed stream takes nothing more.
#include <cstdlib>

#include "sim/raw_peer.h"

namespace {

using namespace uwarp;
using namespace uwarp::sim;

void require(bool condition) {
  if (!condition) abort();
}

class Script {
 public:
  Script(const uint8_t* bytes, size_t size) : at_(bytes), left_(size) {}
  bool done() const { return left_ == 0; }
  uint8_t next() {
    if (left_ == 0) return 0;
    --left_;
    return *at_++;
  }
  uint32_t next32() {
    uint32_t value = 0;
    for (int i = 0; i < 4; ++i) value = value << 8 | next();
    return value;
  }

 private:
  const uint8_t* at_;
  size_t left_;
};

Bytes next_ulpdu(Script& script, RawPeer& peer, uint32_t& send_msn, uint32_t& read_msn) {
  const uint8_t kind = script.next();
  const auto opcode = static_cast<RdmapOpcode>(script.next() & 0x0F);
  const size_t payload = script.next() * ((kind & 0x40) ? 97u : 1u);
  const bool last = (kind & 0x20) == 0;
  switch (kind & 0x07) {
    case 0:
      return tagged(RdmapOpcode::kWrite, peer.stag(), peer.base() + script.next(), payload, last);
    case 1:
      return untagged(RdmapOpcode::kSend, 0, last ? send_msn++ : send_msn, script.next(), payload,
                      last);
    case 2: {
      ReadRequestHeader header{.sink_stag = STag{script.next32()}, .sink_to = script.next(),
                               .size = script.next32() & 0x3FFFF, .source_stag = peer.stag(),
                               .source_to = peer.base() + script.next()};
      return read_request(header, read_msn++);
    }
    case 3:
      return tagged(opcode, STag{script.next32()}, script.next(), payload, last);
    case 4:
      return untagged(opcode, script.next() & 0x07, script.next(), script.next32(), payload, last);
    case 5: {  // raw octets as a ULPDU
      Bytes ulpdu(payload);
      for (auto& octet : ulpdu) octet = std::byte{script.next()};
      return ulpdu;
    }
    case 6:  // a Read Response, most likely with a wrong token
      return tagged(RdmapOpcode::kReadResponse, STag{script.next32()}, 0, payload, last);
    default: {
      Bytes ulpdu = untagged(RdmapOpcode::kTerminate, 2, 1, 0, payload);
      for (size_t i = UntaggedHeader::kWireSize; i < ulpdu.size(); ++i)
        ulpdu[i] = std::byte{script.next()};
      return ulpdu;
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  Script script(bytes, size);
  const uint8_t options = script.next();
  const size_t chunk = script.next();
  StreamConfig config;
  config.crc = options & 1;
  config.wait_for_first_fpdu = options & 2;
  config.answer_magic = options & 4;
  config.magic_stag = STag{0x01010101};
  RawPeer peer(config);
  GuardedMemory buffer(5000);
  MemoryRegion* region = *peer.regions.add(peer.dut.domain, buffer.data(), buffer.size(),
                                           buffer.address(), kAccessLocalWrite);
  const Sge sges[] = {{buffer.address(), 1000, region->lkey.load()},
                      {buffer.address() + 1001, 3000, region->lkey.load()}};
  const uint64_t posted = options >> 5;
  for (uint64_t id = 0; id < posted; ++id) peer.dut.qp->post_recv(id, sges);
  const Sge sink{buffer.address() + 4100, 64, region->lkey.load()};
  if (options & 8) peer.dut.post(SendOpcode::kRead, 1, {&sink, 1}, 1, 2);
  peer.settle();
  uint32_t send_msn = 1, read_msn = 1;
  while (!script.done()) {
    const Bytes ulpdu = next_ulpdu(script, peer, send_msn, read_msn);
    peer.feed(frame(ulpdu, config.crc), chunk);
    peer.out.clear();
    if (peer.dut.qp->receive_held()) break;
  }
  peer.dut.qp->end_stream(StreamEnd::kReset);
  require(peer.memory.intact() && buffer.intact());
  require(buffer.data()[1000] == std::byte{0});
  const auto receives = peer.dut.receives();
  require(receives.size() == posted);
  for (size_t i = 0; i < receives.size(); ++i) require(receives[i].wr_id == i);
  require(peer.dut.sends().size() == ((options & 8) ? 1u : 0u));
  require(peer.dut.qp->state() == QpState::kErr);
  return 0;
}
