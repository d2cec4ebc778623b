// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The wire codec for Python: headers with all their fields, start-up frames, and the frame around
// a segment. As in the codec nothing is checked but that a value fits its field, so that a test can
// say what no correct implementation says.
#include <pybind11/pybind11.h>

#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include "base/crc32c.h"
#include "protocol/mpa/fpdu.h"
#include "protocol/wire/ddp_headers.h"
#include "protocol/wire/mpa_start_frame.h"
#include "protocol/wire/rdmap_headers.h"

namespace py = pybind11;

namespace uwarp {
namespace {

std::span<const std::byte> span_of(const py::bytes& bytes) {
  return std::as_bytes(std::span(std::string_view(bytes)));
}

py::bytes python_bytes(std::span<const std::byte> data) {
  return py::bytes(reinterpret_cast<const char*>(data.data()), data.size());
}

// ---- Fields as Python numbers, whatever type they have in the codec

template <typename T>
concept Number = std::is_integral_v<T> || std::is_enum_v<T>;

template <Number T>
uint64_t number(T value) {
  return static_cast<uint64_t>(value);
}
template <typename T>
requires requires(T wrapped) { wrapped.value; }
uint64_t number(T wrapped) { return wrapped.value; }

template <Number T>
void assign(T& field, uint64_t value) {
  field = static_cast<T>(value);
}
template <typename T>
requires requires(T wrapped) { wrapped.value; }
void assign(T& wrapped, uint64_t value) {
  wrapped.value = static_cast<decltype(wrapped.value)>(value);
}

template <typename Header, typename T>
void add_field(py::class_<Header>& type, const char* name, T Header::*field) {
  type.def_property(
      name, [field](const Header& header) { return number(header.*field); },
      [field, name](Header& header, uint64_t value) {
        assign(header.*field, value);
        if (number(header.*field) != value)
          throw py::value_error(std::string(name) + " does not fit its field");
      });
}

// ---- Headers of a fixed size

template <typename Header>
py::class_<Header> add_header(py::module_& module, const char* name) {
  py::class_<Header> type(module, name);
  type.def(py::init<>());
  type.def_property_readonly_static("SIZE", [](const py::object&) { return Header::kWireSize; });
  type.def("encode", [](const Header& header) {
    std::string wire(Header::kWireSize, '\0');
    header.encode(reinterpret_cast<std::byte*>(wire.data()));
    return py::bytes(wire);
  });
  type.def_static("decode", [](const py::bytes& wire) {
    const auto bytes = span_of(wire);
    if (bytes.size() < Header::kWireSize) throw py::value_error("too short");
    return Header::decode(bytes.data());
  });
  return type;
}

void add_ddp(py::module_& module) {
  auto tagged = add_header<TaggedHeader>(module, "TaggedHeader");
  add_field(tagged, "control", &TaggedHeader::control);
  add_field(tagged, "rsvd_ulp", &TaggedHeader::rsvd_ulp);
  add_field(tagged, "stag", &TaggedHeader::stag);
  add_field(tagged, "to", &TaggedHeader::to);

  auto untagged = add_header<UntaggedHeader>(module, "UntaggedHeader");
  add_field(untagged, "control", &UntaggedHeader::control);
  add_field(untagged, "rsvd_ulp", &UntaggedHeader::rsvd_ulp);
  add_field(untagged, "invalidate_stag", &UntaggedHeader::invalidate_stag);
  add_field(untagged, "qn", &UntaggedHeader::qn);
  add_field(untagged, "msn", &UntaggedHeader::msn);
  add_field(untagged, "mo", &UntaggedHeader::mo);

  module.def("ddp_control",
             [](bool is_tagged, bool last) { return number(DdpControl::make(is_tagged, last)); });
  module.attr("TAGGED") = DdpControl::TaggedBit::kMask;
  module.attr("LAST") = DdpControl::LastBit::kMask;
  module.attr("DDP_RESERVED") = DdpControl::ReservedField::kMask;
  module.attr("DDP_VERSION") = DdpControl::VersionField::kMask;
}

void add_rdmap(py::module_& module) {
  auto read = add_header<ReadRequestHeader>(module, "ReadRequestHeader");
  add_field(read, "sink_stag", &ReadRequestHeader::sink_stag);
  add_field(read, "sink_to", &ReadRequestHeader::sink_to);
  add_field(read, "size", &ReadRequestHeader::size);
  add_field(read, "source_stag", &ReadRequestHeader::source_stag);
  add_field(read, "source_to", &ReadRequestHeader::source_to);

  auto atomic = add_header<AtomicRequestHeader>(module, "AtomicRequestHeader");
  add_field(atomic, "opcode", &AtomicRequestHeader::opcode);
  add_field(atomic, "request_id", &AtomicRequestHeader::request_id);
  add_field(atomic, "remote_stag", &AtomicRequestHeader::remote_stag);
  add_field(atomic, "remote_to", &AtomicRequestHeader::remote_to);
  add_field(atomic, "add_or_swap", &AtomicRequestHeader::add_or_swap);
  add_field(atomic, "add_or_swap_mask", &AtomicRequestHeader::add_or_swap_mask);
  add_field(atomic, "compare", &AtomicRequestHeader::compare);
  add_field(atomic, "compare_mask", &AtomicRequestHeader::compare_mask);

  auto response = add_header<AtomicResponseHeader>(module, "AtomicResponseHeader");
  add_field(response, "request_id", &AtomicResponseHeader::request_id);
  add_field(response, "original_value", &AtomicResponseHeader::original_value);

  module.def("rdmap_control",
             [](uint8_t opcode) { return make_rdmap_control(static_cast<RdmapOpcode>(opcode)); });
  module.attr("RDMAP_VERSION") = RdmapControl::VersionField::kMask;
  module.attr("RDMAP_RESERVED") = RdmapControl::ReservedField::kMask;
  module.attr("RDMAP_OPCODE") = RdmapControl::OpcodeField::kMask;
  module.attr("SEND_IMMEDIATE_SOLICITED") = RdmapControl::SolicitedBit::kMask;

  py::class_<RdmapOpcodeTraits> traits_type(module, "OpcodeTraits");
  traits_type.def_readonly("name", &RdmapOpcodeTraits::name)
      .def_readonly("defined", &RdmapOpcodeTraits::defined)
      .def_readonly("tagged", &RdmapOpcodeTraits::tagged)
      .def_readonly("header_size", &RdmapOpcodeTraits::header_size)
      .def_readonly("has_payload", &RdmapOpcodeTraits::has_payload)
      .def_readonly("invalidates", &RdmapOpcodeTraits::invalidates)
      .def_readonly("solicited", &RdmapOpcodeTraits::solicited)
      .def_property_readonly("queue", [](const RdmapOpcodeTraits& of) { return number(of.queue); });
  module.def("traits", [](uint8_t opcode) { return traits(static_cast<RdmapOpcode>(opcode)); });

  const std::pair<const char*, RdmapOpcode> opcodes[] = {
      {"WRITE", RdmapOpcode::kWrite},
      {"READ_REQUEST", RdmapOpcode::kReadRequest},
      {"READ_RESPONSE", RdmapOpcode::kReadResponse},
      {"SEND", RdmapOpcode::kSend},
      {"SEND_INVALIDATE", RdmapOpcode::kSendInvalidate},
      {"SEND_SOLICITED", RdmapOpcode::kSendSolicited},
      {"SEND_SOLICITED_INVALIDATE", RdmapOpcode::kSendSolicitedInvalidate},
      {"TERMINATE", RdmapOpcode::kTerminate},
      {"IMMEDIATE", RdmapOpcode::kImmediate},
      {"IMMEDIATE_SOLICITED", RdmapOpcode::kImmediateSolicited},
      {"ATOMIC_REQUEST", RdmapOpcode::kAtomicRequest},
      {"ATOMIC_RESPONSE", RdmapOpcode::kAtomicResponse},
      {"SEND_IMMEDIATE", RdmapOpcode::kSendImmediate},
  };
  for (const auto& [name, value] : opcodes) module.attr(name) = number(value);
  module.attr("FETCH_ADD") = number(AtomicOpcode::kFetchAdd);
  module.attr("CMP_SWAP") = number(AtomicOpcode::kCmpSwap);
}

void add_terminate(py::module_& module) {
  py::class_<TerminateHeader> type(module, "TerminateHeader");
  type.def(py::init<>());
  add_field(type, "code", &TerminateHeader::code);
  add_field(type, "ddp_segment_length", &TerminateHeader::ddp_segment_length);
  type.def_readwrite("has_length", &TerminateHeader::has_length)
      .def_readwrite("has_ddp_header", &TerminateHeader::has_ddp_header)
      .def_readwrite("has_rdmap_header", &TerminateHeader::has_rdmap_header)
      .def_readonly("truncated", &TerminateHeader::truncated)
      .def_property_readonly("layer",
                             [](const TerminateHeader& header) { return layer(header.code); })
      .def_property_readonly("etype",
                             [](const TerminateHeader& header) { return etype(header.code); })
      .def_property_readonly("error",
                             [](const TerminateHeader& header) { return code(header.code); })
      .def_property_readonly("text",
                             [](const TerminateHeader& header) { return describe(header.code); })
      .def_property_readonly(
          "ddp_header",
          [](const TerminateHeader& header) {
            return python_bytes(std::span(header.ddp_header).first(header.ddp_header_size));
          })
      .def_property_readonly("rdmap_header",
                             [](const TerminateHeader& header) {
                               return python_bytes(header.has_rdmap_header
                                                       ? std::span(header.rdmap_header)
                                                       : std::span<const std::byte>());
                             })
      .def("encode",
           [](const TerminateHeader& header) {
             std::string wire(header.encoded_size(), '\0');
             header.encode(reinterpret_cast<std::byte*>(wire.data()));
             return py::bytes(wire);
           })
      .def_static("decode",
                  [](const py::bytes& wire) {
                    const auto header = TerminateHeader::decode(span_of(wire));
                    if (!header) throw py::value_error("too short");
                    return *header;
                  })
      .def("blame", [](TerminateHeader& header, const py::bytes& ulpdu, bool read_request) {
        const auto segment = span_of(ulpdu);
        if (segment.empty()) throw py::value_error("too short");
        const DdpControl control{static_cast<uint8_t>(segment[0])};
        size_t needed = ddp_header_size(control);
        if (read_request) needed = UntaggedHeader::kWireSize + ReadRequestHeader::kWireSize;
        if (segment.size() < needed) throw py::value_error("too short");
        header.copy_ddp_header(segment.data(), static_cast<uint16_t>(segment.size()));
        if (read_request) header.copy_read_request(&segment[UntaggedHeader::kWireSize]);
      });
}

void add_mpa(py::module_& module) {
  py::class_<MpaStartFrame> type(module, "MpaStartFrame");
  type.def(py::init<>());
  add_field(type, "revision", &MpaStartFrame::revision);
  add_field(type, "ird", &MpaStartFrame::ird);
  add_field(type, "ord", &MpaStartFrame::ord);
  type.def_readwrite("is_reply", &MpaStartFrame::is_reply)
      .def_readwrite("markers", &MpaStartFrame::markers)
      .def_readwrite("crc", &MpaStartFrame::crc)
      .def_readwrite("reject", &MpaStartFrame::reject)
      .def_readwrite("enhanced", &MpaStartFrame::enhanced)
      .def_readwrite("peer_to_peer", &MpaStartFrame::peer_to_peer)
      .def_readwrite("rtr_send", &MpaStartFrame::rtr_send)
      .def_readwrite("rtr_write", &MpaStartFrame::rtr_write)
      .def_readwrite("rtr_read", &MpaStartFrame::rtr_read)
      .def_property(
          "private_data",
          [](const MpaStartFrame& frame) { return python_bytes(frame.private_data.bytes()); },
          [](MpaStartFrame& frame, const py::bytes& data) {
            if (!frame.private_data.assign(span_of(data))) throw py::value_error("too long");
          })
      .def("encode",
           [](const MpaStartFrame& frame) {
             std::array<std::byte, MpaStartFrame::kSizeMax> room;
             const size_t size = frame.encode(room);
             if (size == 0) throw py::value_error("too long");
             return python_bytes(std::span(room).first(size));
           })
      .def_static("decode", [](const py::bytes& wire, bool reply) {
        MpaStartFrame frame;
        const StartFrameDecode step = decode_start_frame(span_of(wire), reply, frame);
        if (step.status != StartFrameDecode::Status::kFrame ||
            step.consumed != span_of(wire).size())
          throw py::value_error("not exactly one good frame");
        return frame;
      });
  module.attr("START_FRAME_SIZE") = MpaStartFrame::kFixedSize;
  module.attr("DEPTH_NOT_NEGOTIATED") = kDepthNotNegotiated;

  module.def("crc32c", [](const py::bytes& data) {
    return crc32c(span_of(data).data(), span_of(data).size());
  });
  module.def("fpdu_size", [](size_t ulpdu_length) { return fpdu_size(ulpdu_length); });
  module.def("fpdu_pad", [](size_t ulpdu_length) { return fpdu_pad(ulpdu_length); });
  module.def("fpdu", [](const py::bytes& ulpdu, bool crc) {
    const auto segment = span_of(ulpdu);
    if (segment.size() > kUlpduMax) throw py::value_error("too long");
    std::string wire(fpdu_size(segment.size()), '\0');
    auto* at = reinterpret_cast<std::byte*>(wire.data());
    store_be16(at, static_cast<uint16_t>(segment.size()));
    if (!segment.empty()) std::memcpy(at + kFpduLengthSize, segment.data(), segment.size());
    std::byte* trailer = at + kFpduLengthSize + segment.size();
    write_fpdu_trailer(trailer, segment.size(), 0);
    if (crc) {
      const uint32_t value = crc32c(at, wire.size() - kFpduCrcSize);
      write_fpdu_trailer(trailer, segment.size(), value);
    }
    return py::bytes(wire);
  });
  module.def("verify_crc", [](const py::bytes& fpdu) { return verify_fpdu_crc(span_of(fpdu)); });
}

}  // namespace
}  // namespace uwarp

PYBIND11_MODULE(uwarp_wire, module) {
  module.doc() = "The wire codec of uwarp";
  uwarp::add_ddp(module);
  uwarp::add_rdmap(module);
  uwarp::add_terminate(module);
  uwarp::add_mpa(module);
}
