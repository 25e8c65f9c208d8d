#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "engine/coroutines/async.h"
#include "engine/coroutines/condition.h"
#include "io/disks/depth_controller.h"
#include "io/http/client.h"
#include "io/http/object.h"
#include "io/http/options.h"
#include "io/http/policies.h"
#include "io/http/secrets.h"

namespace millrace {

// The state of one server, shared by all transfers from it.
struct http_origin {
  explicit http_origin(const http_options& options)
      : hedges(options.hedge),
        part(options.part_bytes),
        requests(options.split.value_or(0), options.connections, 1) {}

  retry_budget retries;
  hedge_policy hedges;
  part_size part;
  depth_controller requests;  // worthwhile number under way at once
  int under_way = 0;
  int sources = 0;  // objects being read
  int waiting = 0;  // of their readers, for the next byte
  bool ignores_ranges = false;
  bool names_no_version = false;  // neither ETag nor Last-Modified nor digest
  bool takes_turns = false;       // there were fewer connections than objects being read
};

// Adds one to a count until it is destroyed or end() is called.
class scoped_count {
 public:
  explicit scoped_count(int& count) : count_(&count) { ++*count_; }
  ~scoped_count() { end(); }
  scoped_count(const scoped_count&) = delete;
  scoped_count& operator=(const scoped_count&) = delete;
  void end() {
    if (count_ != nullptr) --*count_;
    count_ = nullptr;
  }

 private:
  int* count_;
};

// The state shared by the parts of one object and its reader.
struct fetch_signals {
  explicit fetch_signals(const asio::any_io_executor& executor) : changed(executor) {}
  condition changed;
};

// The state shared by all HTTP on one I/O thread. The referents outlive it; that thread only.
class http_stack {
 public:
  http_stack(http_options options, std::shared_ptr<network> over, time_source& time);

  const http_options& options() const { return options_; }
  time_source& time() const { return time_; }
  http_client& client() { return *client_; }
  http_origin& origin_of(const url& target);
  // The secrets for the URL's host, as the user named it.
  std::shared_ptr<request_signer> secrets_for(const url& target);
  std::uint64_t next_seed() { return ++seed_; }

  // Notifies `of` four times a second while it exists, so that its reader checks the time. One
  // coroutine for all of `tasks`, in which it runs.
  void tick(scope& tasks, const std::shared_ptr<fetch_signals>& of);

 private:
  http_options options_;
  time_source& time_;
  std::uint64_t seed_;
  std::shared_ptr<http_client> client_;
  std::map<std::string, http_origin> origins_;  // references stay valid
  std::map<std::string, std::shared_ptr<request_signer>> secrets_;
  struct tickers;
  std::shared_ptr<tickers> tickers_;
  static awaitable<void> run_ticker(time_source* time, std::shared_ptr<tickers> all, scope* of);
};

}  // namespace millrace
