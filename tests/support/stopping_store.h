#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>

#include "io/files/memory_source.h"
#include "tests/support/draws.h"
#include "tests/support/loaders.h"

namespace millrace::testing {

// Requests a stop at the n-th read of all sources that it counts, on the thread of that read.
class stop_at_read {
 public:
  // Starts to count from 0 again; n = 0: never stops.
  std::stop_token after(int n) {
    stop_ = {};
    reads_ = 0;
    at_ = n;
    return stop_.get_token();
  }
  void count() {
    if (++reads_ == at_) stop_.request_stop();
  }
  // The reads since then.
  int reads() const { return reads_; }

 private:
  std::stop_source stop_;
  std::atomic<int> reads_ = 0;
  int at_ = 0;
};

class stopping_source final : public byte_source {
 public:
  stopping_source(std::unique_ptr<byte_source> of, stop_at_read& at)
      : of_(std::move(of)), at_(at) {}
  awaitable<result<bytes>> read() override {
    at_.count();
    return of_->read();
  }

 private:
  std::unique_ptr<byte_source> of_;
  stop_at_read& at_;
};

inline awaitable<result<std::unique_ptr<byte_source>>> open_stopping(source_factory inner,
                                                                     stop_at_read* at,
                                                                     source_context context,
                                                                     std::string text, url where,
                                                                     byte_range range) {
  auto opened = co_await inner(std::move(context), std::move(text), std::move(where), range);
  if (!opened) co_return opened.error();
  co_return std::make_unique<stopping_source>(std::move(*opened), *at);
}

// As with_memory_store, but `at`, which outlives the engine, counts each read.
inline engine_options with_stopping_store(std::shared_ptr<memory_store> store, stop_at_read& at) {
  engine_options options = with_memory_store(store);
  options.add_sources =
      [&at, inner = memory_source_factory(std::move(store))](source_registry& sources) {
        sources.add("memory", [&at, inner](source_context context, std::string text, url where,
                                           byte_range range) {
          return open_stopping(inner, &at, std::move(context), std::move(text), std::move(where),
                               range);
        });
      };
  return options;
}

// As names_of, until the end or a stop.
struct part_of_run {
  std::vector<std::string> names;
  bool stopped = false;
};
template <class T, class F>
part_of_run names_until_stopped(loader<T>& data, F name) {
  part_of_run out;
  try {
    for (bool ended = false;;) {
      const auto item = data.next();
      if (!item && ended) return out;
      ended = !item;
      out.names.push_back(item ? name(*item) : "end");
    }
  } catch (const failure& f) {
    if (f.kind() != errc::stopped) throw;
    out.stopped = true;
  }
  return out;
}

// A plan that is stopped at any read, and where it goes on at any further ones, gives what it would
// have given. Its engine is made with_stopping_store.
template <class P, class F>
void expect_stoppable(engine& eng, stop_at_read& at, const P& plan, F name, draws& drawn,
                      const std::string& described = "") {
  std::optional<state> saved;
  const auto part = [&](int n) {
    auto data = eng.run(plan, at.after(n));
    if (saved) data.restore(*saved);
    auto given = names_until_stopped(data, name);
    saved = state::from_json(data.save().to_json()).value();
    return given;
  };
  const auto expected = part(0).names;
  const int reads = at.reads();
  for (int n = 1; n <= reads; n += drawn.pick(1, 4)) {
    saved.reset();
    std::vector<std::string> got;
    part_of_run last{.names = {}, .stopped = true};
    for (int stop = n; last.stopped; stop = drawn.pick(0, reads)) {
      last = part(stop);
      got.insert(got.end(), last.names.begin(), last.names.end());
    }
    ASSERT_EQ(got, expected) << described << ", stopped at read " << n << " of " << reads;
  }
}

}  // namespace millrace::testing
