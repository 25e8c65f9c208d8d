#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "engine/memory/bytes.h"
#include "io/http/object_digest.h"

namespace millrace {

// The bytes of one object on their way to its reader. Until the digest is verified, withholds all
// of a small object, and the end of a large one. The withheld end is a copy, so that no buffer is
// kept waiting for the next one. Pure.
class checked_bytes {
 public:
  // For a large object: more than tar programs write after the last member.
  static constexpr std::uint64_t end_bytes = 16'384;

  // Objects of up to `small_bytes` are small.
  checked_bytes(expected_digest expected, std::uint64_t small_bytes)
      : check_(std::move(expected)), small_bytes_(small_bytes) {}

  // Adds the next piece. `total`: the object's length, if known.
  void put(bytes piece, std::optional<std::uint64_t> total);
  // The next bytes that may be given out; empty: none yet.
  bytes take();
  // All bytes have arrived: the rest may be given out if the digest matches. Fails with
  // `integrity`.
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
