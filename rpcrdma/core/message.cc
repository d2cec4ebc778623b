// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
#include "core/message.h"

#include <array>
#include <cstring>

#include "core/rounding.h"
#include "core/xdr.h"

namespace rpcrdma::core {

namespace {

constexpr unsigned kKnownFlags = RPCRDMA_PIECE_DDP | RPCRDMA_PIECE_CONTINUED;
/// Lengths of segments have 32 bits.
constexpr size_t kSizeMax = UINT32_MAX / 2;

size_t padding(size_t length) { return round_up(length) - length; }

}  // namespace

std::optional<Message> Message::of(std::span<const rpcrdma_piece> pieces) {
  Message message;
  message.pieces_ = pieces;
  for (const rpcrdma_piece& piece : pieces)
    if (!message.add(piece)) return std::nullopt;
  if (pieces.empty()) return std::nullopt;
  if ((pieces.back().flags & RPCRDMA_PIECE_DDP) != 0) message.size_ = round_up(message.size_);
  // The items cannot be in front of what every message begins with.
  if (pieces.front().flags != 0 || message.size_ < kSizeMin) return std::nullopt;
  std::array<std::byte, sizeof(uint32_t)> start{};
  if (pieces.front().length < start.size()) return std::nullopt;
  std::memcpy(start.data(), pieces.front().base, start.size());
  if (!XdrReader(start).u32(message.xid_)) return std::nullopt;
  return message;
}

bool Message::add(const rpcrdma_piece& piece) {
  const bool is_item = (piece.flags & RPCRDMA_PIECE_DDP) != 0;
  const bool continued = (piece.flags & RPCRDMA_PIECE_CONTINUED) != 0;
  if ((piece.flags & ~kKnownFlags) != 0 || (piece.base == nullptr && piece.length != 0))
    return false;
  if (piece.length > kSizeMax || size_ + piece.length > kSizeMax) return false;
  const rpcrdma_piece* before = &piece == pieces_.data() ? nullptr : &piece - 1;
  const bool after_item = before != nullptr && (before->flags & RPCRDMA_PIECE_DDP) != 0;
  if (continued) {
    if (!is_item || !after_item) return false;
    Item& item = items_.back();
    item.pieces = {item.pieces.data(), item.pieces.size() + 1};
    item.length += piece.length;
  } else {
    if (after_item) size_ = round_up(size_);
    if (is_item) {
      if (size_ % kXdrUnit != 0) return false;
      items_.push_back({{&piece, 1}, piece.length, size_});
    }
  }
  size_ += piece.length;
  return true;
}

size_t Message::size(size_t left_out) const {
  size_t size = size_;
  for (size_t i = 0; i < left_out; ++i) size -= round_up(items_[i].length);
  return size;
}

void Message::copy(std::span<std::byte> room, size_t left_out) const {
  std::byte* to = room.data();
  size_t items = 0;
  const auto pad = [&to](size_t length) {
    std::memset(to, 0, padding(length));
    to += padding(length);
  };
  for (const rpcrdma_piece& piece : pieces_) {
    const bool is_item = (piece.flags & RPCRDMA_PIECE_DDP) != 0;
    if (is_item && (piece.flags & RPCRDMA_PIECE_CONTINUED) == 0) ++items;
    if (is_item && items <= left_out) continue;
    if (piece.length != 0) std::memcpy(to, piece.base, piece.length);
    to += piece.length;
    const bool item_ends = is_item && &piece == &items_[items - 1].pieces.back();
    if (item_ends) pad(items_[items - 1].length);
  }
}

}  // namespace rpcrdma::core
