// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Where calls from outside come in (verbs/, host/, provider.cc): no exception leaves such a call,
// and one that succeeds leaves errno as it was, although system calls inside the library set it.
// Forced unwinding (thread cancellation) passes through the typed catch clauses.
#pragma once

#include <cerrno>
#include <exception>
#include <system_error>

namespace uwarp {

/// Sets errno back to what it was when the scope ends, or to the reason why the call failed.
class ErrnoGuard {
 public:
  ErrnoGuard() : place_(errno), value_(place_) {}
  ~ErrnoGuard() { place_ = value_; }
  ErrnoGuard(const ErrnoGuard&) = delete;
  ErrnoGuard& operator=(const ErrnoGuard&) = delete;

  void failed(int reason) { value_ = reason; }

 private:
  int& place_;  // the thread stays the same, so it is looked up once
  int value_;
};

/// An errno that is thrown.
struct ThrownErrno : std::exception {
  explicit ThrownErrno(int error) : error(error) {}
  const int error;
};

/// The errno that stands for an exception: one of the standard library, or ThrownErrno.
inline int errno_of(const std::exception& exception) {
  const auto* thrown = dynamic_cast<const ThrownErrno*>(&exception);
  if (thrown != nullptr) return thrown->error;
  const auto* system = dynamic_cast<const std::system_error*>(&exception);
  if (system != nullptr && system->code().value() > 0) return system->code().value();
  return ENOMEM;
}

/// Runs a `call` that says by the result `failed` (null, -1) and errno that it could not do its
/// work. So does an exception.
template <typename Call, typename Value>
Value guarded(Call&& call, Value failed) {
  ErrnoGuard kept;
  Value result = failed;
  try {
    result = call();
    if (result == failed) kept.failed(errno);
  } catch (const std::exception& exception) {
    kept.failed(errno_of(exception));
  }
  return result;
}

/// Runs a `call` that has no way to say that memory is missing: its result is then 0, or there is
/// none at all. What it could not do is still to be done at the next call.
template <typename Call>
auto guarded(Call&& call) {
  const ErrnoGuard kept;
  try {
    return call();
  } catch (const std::exception&) {
    return decltype(call())();
  }
}

/// Runs a `call` that returns 0 or an errno. A failure sets errno too: programs call perror().
template <typename Call>
int guarded_errno(Call&& call) {
  ErrnoGuard kept;
  int error;
  try {
    error = call();
  } catch (const std::exception& exception) {
    error = errno_of(exception);
  }
  if (error != 0) [[unlikely]]
    kept.failed(error);
  return error;
}

}  // namespace uwarp
