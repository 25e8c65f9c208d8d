#include "tests/support/simulated_client.h"

#include <boost/asio/post.hpp>

#include "engine/coroutines/async.h"
#include "engine/coroutines/scope.h"

namespace millrace::testing {

std::string field_of(const std::string& request, const std::string& name) {
  const auto at = request.find("\r\n" + name + ": ");
  if (at == std::string::npos) return {};
  const auto begin = at + name.size() + 4;
  return request.substr(begin, request.find('\r', begin) - begin);
}

std::optional<byte_range> range_of(const std::string& request, std::uint64_t size) {
  const std::string text = field_of(request, "Range");
  if (text.empty()) return std::nullopt;
  const auto dash = text.find('-');
  byte_range r{.begin = std::stoull(text.substr(6, dash - 6)), .end = size};
  if (!text.ends_with('-')) {
    r.end = std::min<std::uint64_t>(size, std::stoull(text.substr(dash + 1)) + 1);
  }
  return r;
}

std::vector<sent> answer(const std::string& request, const std::string& content,
                         std::chrono::microseconds gap, const std::string& more,
                         const std::string& version) {
  const auto range = range_of(request, content.size());
  const std::string body =
      range ? content.substr(range->begin, *range->end - range->begin) : content;
  std::string head = range ? fmt::format("HTTP/1.1 206 x\r\nContent-Range: bytes {}-{}/{}\r\n",
                                         range->begin, *range->end - 1, content.size())
                           : "HTTP/1.1 200 x\r\n";
  head += fmt::format("{}Content-Length: {}\r\n{}\r\n", version, body.size(), more);
  std::vector<sent> out{{.after = std::chrono::milliseconds(1), .bytes = head}};
  constexpr std::size_t piece = 65'536;
  for (std::size_t i = 0; i < body.size(); i += piece) {
    out.push_back({.after = gap, .bytes = body.substr(i, piece)});
  }
  return out;
}

outcome simulated_client::read(const std::string& target, byte_range range,
                               steady_clock::duration limit) {
  outcome out;
  time.run(read_all(make_stack(), parse_url(target).value(), range, &out), limit);
  return out;
}

awaitable<void> simulated_client::read_pieces(std::shared_ptr<http_stack> stack, scope* tasks,
                                              std::shared_ptr<memory_share> memory, url target,
                                              byte_range range, outcome* into) {
  // It stops its own scope at the end, so it must know the scope by then.
  co_await asio::post(context.get_executor(), no_throw);
  {
    source_context from{threads, threads.io(0), *tasks, std::move(memory),
                        source,  counters,      version};
    http_object object(target);
    object.secrets = stack->secrets_for(target);
    auto opened = http_object_source(from, stack, std::move(object), range);
    bytes kept;
    for (;;) {
      auto piece = co_await opened->read();
      if (!piece) into->failed = piece.error();
      if (!piece || piece->empty()) break;
      into->content += piece->text();
      if (keeps_one) kept = std::move(*piece);
    }
  }
  into->ended = true;
  tasks->stop();
}

awaitable<void> simulated_client::read_all(std::shared_ptr<http_stack> stack, url target,
                                           byte_range range, outcome* into) {
  auto memory = std::make_shared<memory_share>("test", memory_bytes, default_host_allocator());
  scope tasks(context.get_executor());
  running = &tasks;
  tasks.spawn(read_pieces(std::move(stack), &tasks, memory, std::move(target), range, into));
  co_await tasks.join();
  if (running == &tasks) running = nullptr;
  left_in_memory += memory->in_use();
}

}  // namespace millrace::testing
