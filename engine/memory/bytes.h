#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

namespace millrace {

class memory_share;

// A piece of payload memory, charged to a share of the budget while it lives
// (engine/memory/memory.h).
struct block {
  std::byte* data = nullptr;            // its first byte
  std::size_t size = 0;                 // in bytes
  const memory_share* share = nullptr;  // charged with it; null: none
};

// An immutable slice of payload memory that keeps its block alive. Copying and slicing copy no
// bytes. The slice may be read, copied and destroyed on any thread.
class bytes {
 public:
  bytes() = default;
  // The bytes [offset, offset + size) of a block, which they keep alive.
  bytes(std::shared_ptr<const block> owner, std::size_t offset, std::size_t size)
      : view_(owner->data + offset, size), owner_(std::move(owner)) {}
  // Bytes that live forever (literals) or for as long as the caller guarantees.
  static bytes unowned(std::span<const std::byte> view) {
    bytes b;
    b.view_ = view;
    return b;
  }
  static bytes unowned(std::string_view text) {
    return unowned(std::as_bytes(std::span(text.data(), text.size())));
  }

  // The first byte; valid while this slice or another one of its block lives, as are span() and
  // text().
  const std::byte* data() const { return view_.data(); }
  // The number of bytes.
  std::size_t size() const { return view_.size(); }
  // Whether there are none.
  bool empty() const { return view_.empty(); }
  // The bytes.
  std::span<const std::byte> span() const { return view_; }
  // The bytes as characters, whatever they are.
  std::string_view text() const {
    return {reinterpret_cast<const char*>(view_.data()), view_.size()};
  }

  // Whether they are charged to this share.
  bool are_of(const memory_share& share) const { return owner_ && owner_->share == &share; }

  // The memory that holds them, alive as long as they are. Null: unknown.
  const block* owner() const { return owner_.get(); }

  // The bytes [offset, offset + size) of this slice; the range must lie within it.
  bytes slice(std::size_t offset, std::size_t size) const {
    bytes b;
    b.view_ = view_.subspan(offset, size);
    b.owner_ = owner_;
    return b;
  }
  bytes slice(std::size_t offset) const { return slice(offset, size() - offset); }

 private:
  std::span<const std::byte> view_;
  std::shared_ptr<const block> owner_;
};

// Bytes in their own memory, outside the budget: for small or short-lived data. `content` is a
// container that owns its elements, next to each other, such as a std::string or a std::vector.
template <class Container>
bytes owned_bytes(Container content) {
  static_assert(!std::ranges::borrowed_range<Container>,
                "owned_bytes() keeps what owns its elements: a view of them may outlive them");
  struct holder {
    Container content;
    block view;
  };
  auto held = std::make_shared<holder>(holder{std::move(content), {}});
  const std::size_t size = held->content.size() * sizeof(*held->content.data());
  held->view = {reinterpret_cast<std::byte*>(held->content.data()), size};
  return {std::shared_ptr<const block>(held, &held->view), 0, size};
}

// A range of an object; without `end`, or with one beyond the object's: to its end.
struct byte_range {
  std::uint64_t begin = 0;           // the first byte
  std::optional<std::uint64_t> end;  // the byte after the last one
  bool operator==(const byte_range&) const = default;
};

// Payload memory that is still being written. One writer; freeze() ends the writing.
class buffer {
 public:
  buffer() = default;
  explicit buffer(std::shared_ptr<block> owner) : owner_(std::move(owner)) {}

  // The first byte to be written. Not of an empty buffer.
  std::byte* data() const { return owner_->data; }
  // Bytes to be written; 0 for an empty buffer.
  std::size_t size() const { return owner_ ? owner_->size : 0; }
  // All of them. Not of an empty buffer.
  std::span<std::byte> span() const { return {owner_->data, owner_->size}; }
  // False for an empty buffer, which has no memory.
  explicit operator bool() const { return owner_ != nullptr; }
  // The block; null for an empty buffer.
  const std::shared_ptr<block>& owner() const { return owner_; }

  // The first `size` bytes, from now on immutable.
  bytes freeze(std::size_t size) && { return {std::move(owner_), 0, size}; }

 private:
  std::shared_ptr<block> owner_;
};

}  // namespace millrace
