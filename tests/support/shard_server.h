#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/coroutines/async.h"

namespace millrace::testing {

// The fault in one answer.
struct fault {
  std::optional<std::size_t> cut_after;    // body bytes, then the connection is closed
  std::optional<std::size_t> stall_after;  // body bytes, then nothing more
  std::optional<int> status;               // instead of the object, with an empty body
  std::string headers;                     // added: "Retry-After: 1\r\n"
  std::optional<std::string> etag;         // instead of the object's own
  bool ignore_range = false;
  bool wrong_range = false;  // a Content-Range that is off by one
  bool chunked = false;
  bool no_length = false;  // the body ends with the connection
  bool close_unanswered = false;
};

// An HTTP/1.1 server on loopback that serves objects from memory, with faults on request: the
// faults of a path are used up in order, one for each answer. Blocking, with a thread for each
// connection.
class shard_server {
 public:
  shard_server();
  ~shard_server();
  shard_server(const shard_server&) = delete;
  shard_server& operator=(const shard_server&) = delete;

  void put(const std::string& path, std::string content);
  void fail_next(const std::string& path, fault f);
  std::string url(const std::string& path) const;

  struct logged {
    std::string path;
    std::string range;
    std::string if_range;
    std::size_t connection = 0;  // the number of the connection
    bool is_head = false;
  };
  std::vector<logged> requests() const;

 private:
  using tcp = boost::asio::ip::tcp;
  bool answer(tcp::socket& socket, const logged& request);
  fault next_fault(const std::string& path);

  boost::asio::io_context context_;
  tcp::acceptor acceptor_;
  mutable std::mutex mutex_;
  std::map<std::string, std::string> objects_;         // guarded by mutex_
  std::map<std::string, std::vector<fault>> faults_;   // guarded by mutex_
  std::vector<logged> requests_;                       // guarded by mutex_
  std::vector<std::thread> connections_;               // accepting thread only
  std::vector<std::shared_ptr<tcp::socket>> sockets_;  // guarded by mutex_
  std::atomic<bool> stopping_ = false;
  std::thread accepting_;
};

}  // namespace millrace::testing
