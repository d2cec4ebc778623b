// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// The C boundary: no exception leaves a verb, and a verb that succeeds leaves errno as it was.
// Turns exceptions that finding and creating objects can raise into the errno that the verb
// reports. Forced unwinding (thread cancellation) passes through.
#pragma once

#include <cerrno>
#include <exception>
#include <new>
#include <system_error>

#include "base/bytes.h"
#include "base/kept_errno.h"
#include "verbs/named.h"

namespace uwarp {

/// The errno that stands for an exception: one of the standard library, or NoSuchObject.
inline int errno_of(const std::exception& exception) {
  const auto* missing = dynamic_cast<const NoSuchObject*>(&exception);
  if (missing != nullptr) return missing->error;
  const auto* system = dynamic_cast<const std::system_error*>(&exception);
  if (system != nullptr && system->code().value() > 0) return system->code().value();
  return ENOMEM;
}

/// Runs a verb that returns a pointer: null and errno instead of an exception.
template <typename Body>
auto* pointer_verb(Body&& body) {
  KeptErrno kept;
  decltype(body()) made = nullptr;
  try {
    made = body();
    if (made == nullptr) kept.failed(errno);
  } catch (const std::exception& exception) {
    kept.failed(errno_of(exception));
  }
  return made;
}

/// Runs a verb that returns 0 or an errno. A failure sets errno too: programs call perror().
template <typename Body>
int errno_verb(Body&& body) {
  KeptErrno kept;
  int error;
  try {
    error = body();
  } catch (const std::exception& exception) {
    error = errno_of(exception);
  }
  if (error != 0) [[unlikely]]
    kept.failed(error);
  return error;
}

/// Runs a verb that has no way to say that memory is missing: `nothing` stands for a result, as
/// where it was called a moment too early. What it could not do is still to be done at the next
/// call. One that returns nothing at all needs no `nothing`.
template <typename Body>
auto quiet_verb(Body&& body, decltype(body()) nothing) {
  const KeptErrno kept;
  try {
    return body();
  } catch (const std::exception&) {
    return nothing;
  }
}
template <typename Body>
void quiet_verb(Body&& body) {
  const KeptErrno kept;
  try {
    body();
  } catch (const std::exception&) {
  }
}

/// Null with errno set, as pointer verbs fail.
inline std::nullptr_t fail(int error) {
  errno = error;
  return nullptr;
}

}  // namespace uwarp
