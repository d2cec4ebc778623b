// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "persona.h"

#include "base/bytes.h"
#include "protocol/mpa/fpdu.h"
#include "protocol/wire/ddp_headers.h"

namespace doctor {

using Said = uwarp::PersonaWrite::Said;

Said persona_in(std::span<const std::byte> fpdus) {
  while (fpdus.size() > uwarp::kFpduLengthSize) {
    const size_t length = uwarp::load_be16(fpdus.data());
    const size_t size = uwarp::fpdu_size(length);
    if (fpdus.size() < size) break;
    if (length == uwarp::TaggedHeader::kWireSize) {
      const auto header = uwarp::TaggedHeader::decode(fpdus.data() + uwarp::kFpduLengthSize);
      const Said said = uwarp::PersonaWrite::decode(header);
      if (header.control.tagged() && said != Said::kNothing) return said;
    }
    fpdus = fpdus.subspan(size);
  }
  return Said::kNothing;
}

}  // namespace doctor
