#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "engine/base/result.h"
#include "io/http/message.h"

namespace millrace {

// Parses one HTTP/1.1 response: its head, then its body as the head frames it. Skips interim
// responses (1xx). Heads are limited to 64 KiB. No I/O.
class response_reader {
 public:
  // `head_only`: there is no body, whatever the head says (HEAD, CONNECT).
  explicit response_reader(bool head_only);
  ~response_reader();

  // Parses bytes from the front of `pending`; returns the number of bytes used. Fails with
  // protocol.
  result<std::size_t> put_head(std::string_view pending);
  bool has_head() const;
  const response_head& head() const;
  response_head& head();

  // Moves body bytes from the front of `pending` into `into`, as many as are available and fit;
  // returns their number.
  result<std::size_t> take_body(std::string& pending, std::span<std::byte> into);
  // The number of the next `wanted` bytes from the connection that are plain body bytes; 0: they
  // are framed, and must go through take_body().
  std::size_t direct_bytes(std::size_t wanted) const;
  void took_directly(std::size_t bytes);
  // The connection ended; returns false if too early.
  bool put_end();
  bool is_done() const;
  bool may_be_reused() const;

 private:
  struct state;
  std::unique_ptr<state> state_;
};

}  // namespace millrace
