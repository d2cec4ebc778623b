// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The memory that one call lays open to the server, and how it is closed again: through windows of
// type 2, which either side can invalidate, or by registration for the length of the call.
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "core/chunk_lists.h"
#include "verbs/connection.h"

namespace rpcrdma::verbs {

/// A memory window and its handle of the present or the last binding.
struct Window {
  ibv_mw* mw;
  uint32_t handle;
};

/// The windows of a connection. They go after its queue pair does.
class WindowPool {
 public:
  explicit WindowPool(std::shared_ptr<Domain> domain) : domain_(std::move(domain)) {}
  ~WindowPool();
  WindowPool(const WindowPool&) = delete;
  WindowPool& operator=(const WindowPool&) = delete;

  /// Unbound, with the handle for its next binding. Null: the device has no more.
  Window* take();
  void put_back(Window* window) { spare_.push_back(window); }

 private:
  std::shared_ptr<Domain> domain_;
  std::vector<std::unique_ptr<Window>> all_;
  std::vector<Window*> spare_;
};

class Exposures {
 public:
  enum class Right { kRead, kWrite };

  /// `windows` null: by registration.
  Exposures(Connection& connection, WindowPool* windows)
      : connection_(connection), windows_(windows) {}
  /// The memory must be closed, or the queue pair be gone.
  ~Exposures();
  Exposures(const Exposures&) = delete;
  Exposures& operator=(const Exposures&) = delete;

  /// Makes memory accessible, and posts what must come before the Send that names it. `memory` is a
  /// registration around it, or null. Nothing: it cannot be registered.
  std::optional<core::Segment> open(const void* base, size_t length, Right right,
                                    const rpcrdma_memory* memory);
  /// The server invalidated this handle. False: it is none of these.
  bool invalidated(uint32_t handle);
  /// Closes what is open still. Calls `closed` when that is done, with false when the connection
  /// ended instead, which closes everything too. Returns the number of windows that needed it; 0:
  /// all is closed, and nothing is called.
  unsigned close(Work::Done closed);

 private:
  struct Exposure {
    ibv_mr* own = nullptr;  ///< registered for this call
    Window* window = nullptr;
    uint32_t handle = 0;
    bool open = true;
  };

  Connection& connection_;
  WindowPool* windows_;
  std::vector<Exposure> exposures_;
};

}  // namespace rpcrdma::verbs
