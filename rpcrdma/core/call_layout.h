// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// How a server puts a call together: which bytes of the received message and of the client's Read
// chunks belong where in the whole call. Sans-IO. RFC 8166 3.4.4, 3.4.5, 3.5.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/header.h"

namespace rpcrdma::core {

struct CallLayout {
  struct Copy {
    size_t from;  ///< offset in what follows the transport header
    size_t length;
    size_t to;  ///< offset in the call
    bool operator==(const Copy&) const = default;
  };
  struct Read {
    Segment source;
    size_t to;
    bool operator==(const Read&) const = default;
  };
  struct Padding {
    size_t to;
    size_t length;
    bool operator==(const Padding&) const = default;
  };
  size_t size = 0;  ///< of the whole call
  std::vector<Copy> copies;
  std::vector<Read> reads;
  std::vector<Padding> paddings;  ///< zeros

  bool operator==(const CallLayout&) const = default;
};

/// `inline_size`: bytes behind the header. Nothing: the chunks do not make a message, or one of
/// more than `size_max` bytes; the answer to that is ERR_CHUNK.
std::optional<CallLayout> lay_out_call(const Header& header, size_t inline_size, size_t size_max);

}  // namespace rpcrdma::core
