#include "tests/support/shard_server.h"

#include <fmt/format.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/streambuf.hpp>
#include <boost/asio/write.hpp>
#include <istream>

#include "engine/coroutines/async.h"

namespace millrace::testing {

namespace asio = boost::asio;
using boost::system::error_code;

shard_server::shard_server()
    : acceptor_(context_, tcp::endpoint(asio::ip::address_v4::loopback(), 0)) {
  accepting_ = std::thread([this] {
    for (std::size_t number = 0;; ++number) {
      tcp::socket socket(context_);
      error_code failed;
      acceptor_.accept(socket, failed);
      if (failed || stopping_) return;
      auto shared = std::make_shared<tcp::socket>(std::move(socket));
      {
        const std::scoped_lock lock(mutex_);
        sockets_.push_back(shared);
      }
      connections_.emplace_back([this, shared, number] {
        asio::streambuf buffer;
        for (;;) {
          error_code ended;
          asio::read_until(*shared, buffer, "\r\n\r\n", ended);
          if (ended) break;
          logged request{.connection = number};
          std::istream in(&buffer);
          std::string line;
          std::getline(in, line);
          request.is_head = line.starts_with("HEAD ");
          const auto begin = line.find(' ') + 1;
          request.path = line.substr(begin, line.find(' ', begin) - begin);
          while (std::getline(in, line) && line != "\r") {
            const auto value = [&] {
              return line.substr(line.find(' ') + 1, line.size() - line.find(' ') - 2);
            };
            if (line.starts_with("Range:")) request.range = value();
            if (line.starts_with("If-Range:")) request.if_range = value();
          }
          {
            const std::scoped_lock lock(mutex_);
            requests_.push_back(request);
          }
          if (!answer(*shared, request)) break;
        }
        error_code ignored;
        shared->shutdown(tcp::socket::shutdown_both, ignored);
      });
    }
  });
}

shard_server::~shard_server() {
  stopping_ = true;
  // A connection from this process ends the blocking accept.
  error_code ignored;
  tcp::socket last(context_);
  last.connect(acceptor_.local_endpoint(), ignored);
  accepting_.join();
  {
    const std::scoped_lock lock(mutex_);
    for (const auto& s : sockets_) s->shutdown(tcp::socket::shutdown_both, ignored);
  }
  for (auto& t : connections_) t.join();
}

void shard_server::put(const std::string& path, std::string content) {
  const std::scoped_lock lock(mutex_);
  objects_[path] = std::move(content);
}

void shard_server::fail_next(const std::string& path, fault f) {
  const std::scoped_lock lock(mutex_);
  faults_[path].push_back(std::move(f));
}

std::string shard_server::url(const std::string& path) const {
  return fmt::format("http://127.0.0.1:{}{}", acceptor_.local_endpoint().port(), path);
}

std::vector<shard_server::logged> shard_server::requests() const {
  const std::scoped_lock lock(mutex_);
  return requests_;
}

fault shard_server::next_fault(const std::string& path) {
  const std::scoped_lock lock(mutex_);
  auto& waiting = faults_[path];
  if (waiting.empty()) return {};
  fault f = waiting.front();
  waiting.erase(waiting.begin());
  return f;
}

// False if the connection is to be closed.
bool shard_server::answer(tcp::socket& socket, const logged& request) {
  const fault f = next_fault(request.path);
  std::string content;
  bool found = false;
  {
    const std::scoped_lock lock(mutex_);
    if (const auto it = objects_.find(request.path); it != objects_.end()) {
      content = it->second;
      found = true;
    }
  }
  if (f.close_unanswered) return false;
  const auto send = [&](const std::string& bytes) {
    error_code ignored;
    asio::write(socket, asio::buffer(bytes), ignored);
    return !ignored;
  };
  if (f.status || !found) {
    return send(fmt::format("HTTP/1.1 {} x\r\nContent-Length: 0\r\n{}\r\n", f.status.value_or(404),
                            f.headers));
  }
  const std::string etag = f.etag.value_or("\"v1\"");
  std::size_t from = 0;
  const bool same = request.if_range.empty() || request.if_range == etag;
  if (!request.range.empty() && !f.ignore_range && same) {
    from = std::stoul(request.range.substr(request.range.find('=') + 1));
  }
  std::string head = from > 0 ? "HTTP/1.1 206 x\r\n" : "HTTP/1.1 200 x\r\n";
  if (from > 0) {
    head += fmt::format("Content-Range: bytes {}-{}/{}\r\n", from + (f.wrong_range ? 1 : 0),
                        content.size() - 1, content.size());
  }
  const std::string body = content.substr(from);
  head += fmt::format("ETag: {}\r\n{}", etag, f.headers);
  if (f.chunked) {
    head += "Transfer-Encoding: chunked\r\n\r\n";
    constexpr std::size_t piece = 1000;
    std::string out;
    for (std::size_t at = 0; at < body.size(); at += piece) {
      const std::string part = body.substr(at, piece);
      out += fmt::format("{:x}\r\n{}\r\n", part.size(), part);
    }
    const std::string whole = head + out + "0\r\n\r\n";
    if (f.cut_after) {
      send(whole.substr(0, head.size() + *f.cut_after));
      return false;
    }
    return send(whole);
  }
  head += f.no_length ? "Connection: close\r\n\r\n"
                      : fmt::format("Content-Length: {}\r\n\r\n", body.size());
  if (request.is_head) return send(head);
  if (f.cut_after) {
    send(head + body.substr(0, *f.cut_after));
    return false;
  }
  if (f.stall_after) {
    send(head + body.substr(0, *f.stall_after));
    return true;  // the rest is never sent
  }
  return send(head + body) && !f.no_length;
}

}  // namespace millrace::testing
