#pragma once

#include <concepts>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>

#include "engine/base/error.h"

namespace millrace {

template <class T>
class result;

namespace detail {

template <class T>
constexpr bool is_result = false;
template <class T>
constexpr bool is_result<result<T>> = true;

}  // namespace detail

// A T or an error: for expected failures. Converts implicitly from either; a result<void> is
// default-constructed on success. Like C++23's std::expected, but errors need no wrapper.
template <class T>
class [[nodiscard]] result {
 public:
  using value_type = T;

  // A default-constructed value.
  result()
    requires std::default_initializable<T>
      : held_(std::in_place_index<0>) {}
  template <class U = T>
    requires(std::constructible_from<T, U> && !detail::is_result<std::remove_cvref_t<U>> &&
             !std::same_as<std::remove_cvref_t<U>, millrace::error>)
  explicit(!std::convertible_to<U, T>) result(U&& value)
      : held_(std::in_place_index<0>, std::forward<U>(value)) {}
  result(millrace::error why) : held_(std::in_place_index<1>, std::move(why)) {}

  // Whether it is a value, and no error.
  bool has_value() const noexcept { return held_.index() == 0; }
  // As has_value().
  explicit operator bool() const noexcept { return has_value(); }

  // The value. Throws the error as a `failure` if there is one.
  T& value() & {
    check();
    return **this;
  }
  const T& value() const& {
    check();
    return **this;
  }
  T value() && {  // by value, so that `for (x : list().value())` is safe
    check();
    return *std::move(*this);
  }

  // The value. Undefined if there is an error: test for that first.
  T& operator*() & noexcept { return *std::get_if<0>(&held_); }
  const T& operator*() const& noexcept { return *std::get_if<0>(&held_); }
  T operator*() && { return std::move(*std::get_if<0>(&held_)); }
  // A member of the value. Undefined if there is an error.
  T* operator->() noexcept { return std::get_if<0>(&held_); }
  const T* operator->() const noexcept { return std::get_if<0>(&held_); }

  // The error; `internal` ("no error") if there is a value.
  millrace::error error() const {
    const auto* why = std::get_if<1>(&held_);
    return why != nullptr ? *why : millrace::error();
  }

 private:
  void check() const {
    if (!has_value()) throw failure(error());
  }

  std::variant<T, millrace::error> held_;
};

// Success or an error.
template <>
class [[nodiscard]] result<void> {
 public:
  using value_type = void;

  result() = default;
  result(millrace::error why) : why_(std::move(why)) {}

  // Whether it is a success.
  bool has_value() const noexcept { return !why_; }
  // As has_value().
  explicit operator bool() const noexcept { return has_value(); }
  // Throws the error as a `failure` if there is one.
  void value() const {
    if (why_) throw failure(*why_);
  }
  // The error; `internal` ("no error") on success.
  millrace::error error() const { return why_ ? *why_ : millrace::error(); }

 private:
  std::optional<millrace::error> why_;
};

}  // namespace millrace
