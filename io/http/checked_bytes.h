#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "engine/bytes.h"
#include "io/http/object_digest.h"

namespace millrace {

// The bytes of one object on their way to its reader: until its digest is known to be right, all of
// a small object and the end of a large one are held back. What is held of a large one is a copy,
// so that no buffer waits for the one behind it. Pure.
class checked_bytes {
 public:
  // Of a large object: more than tar programs write behind the last member.
  static constexpr std::uint64_t end_bytes = 16'384;

  // An object is small up to `small_bytes`.
  checked_bytes(expected_digest expected, std::uint64_t small_bytes)
      : check_(std::move(expected)), small_bytes_(small_bytes) {}

  // The next piece. `total`: the object's length, where it is known.
  void put(bytes piece, std::optional<std::uint64_t> total);
  // What may be given out next; empty: nothing yet.
  bytes take();
  // All has come: the rest may be given out, if it is right. Fails with `integrity`.
  result<void> finish();
  bool given_any() const { return given_any_; }

 private:
  void hold_copy(std::uint64_t size);

  digest_check check_;
  std::uint64_t small_bytes_;
  std::uint64_t came_ = 0;
  std::deque<bytes> free_;  // to be given out
  std::deque<bytes> held_;
  bool given_any_ = false;
};

}  // namespace millrace
