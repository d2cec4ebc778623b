// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// Result<T, E>: a value or an error, for functions that must not throw. E is an errno value
// unless stated. (std::expected is not in the oldest compiler we support.)
#pragma once

#include <cassert>
#include <type_traits>
#include <utility>
#include <variant>

namespace uwarp {

/// Wraps an error on its way into a Result: `return Error{EINVAL};`
template <typename E = int>
struct Error {
  E value;
};
template <typename E>
Error(E) -> Error<E>;

template <typename T, typename E = int>
class [[nodiscard]] Result {
 public:
  // Implicit, for `return value;` and `return Error{errno};`. The checks do not see `requires`.
  // NOLINTBEGIN(google-explicit-constructor,bugprone-forwarding-reference-overload)
  template <typename U = T>
  requires(!std::is_same_v<std::remove_cvref_t<U>, Result> && std::is_constructible_v<T, U&&>)
      Result(U&& value)
      : state_(std::in_place_index<0>, std::forward<U>(value)) {}
  template <typename F>
  Result(Error<F> error) : state_(std::in_place_index<1>, static_cast<E>(error.value)) {}
  // NOLINTEND(google-explicit-constructor,bugprone-forwarding-reference-overload)

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  T& value() & { return *checked(); }
  const T& value() const& { return *const_cast<Result*>(this)->checked(); }
  T&& value() && { return std::move(*checked()); }
  T& operator*() & { return *checked(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*checked()); }
  T* operator->() { return checked(); }
  const T* operator->() const { return &value(); }

  /// Only when !ok().
  const E& error() const {
    assert(!ok());
    return *std::get_if<1>(&state_);
  }

 private:
  T* checked() {
    assert(ok());
    return std::get_if<0>(&state_);
  }

  std::variant<T, E> state_;
};

/// Success, or an error; there is no value.
template <typename E>
class [[nodiscard]] Result<void, E> {
 public:
  Result() = default;
  template <typename F>
  // NOLINTNEXTLINE(google-explicit-constructor): as above
  Result(Error<F> error) : error_(static_cast<E>(error.value)), failed_(true) {}

  bool ok() const { return !failed_; }
  explicit operator bool() const { return ok(); }
  const E& error() const {
    assert(failed_);
    return error_;
  }

 private:
  E error_{};
  bool failed_ = false;
};

}  // namespace uwarp
