#include "io/http/stack.h"

namespace millrace {

http_stack::http_stack(http_options options, std::shared_ptr<network> over, time_source& time)
    : options_(std::move(options)),
      time_(time),
      seed_(over->seed()),
      client_(make_http_client(options_, std::move(over), time)) {}

http_origin& http_stack::origin_of(const url& target) {
  return origins_.try_emplace(target.origin(), options_).first->second;
}

std::shared_ptr<request_signer> http_stack::secrets_for(const url& target) {
  const std::string key = target.userinfo + "@" + target.origin();
  const auto known = secrets_.find(key);
  if (known != secrets_.end()) return known->second;
  return secrets_[key] = web_secrets(target, options_);
}

// By the scope in which they tick: one run of an engine may end before another.
struct http_stack::tickers {
  std::map<scope*, std::vector<std::weak_ptr<fetch_signals>>> readers;
};

awaitable<void> http_stack::run_ticker(time_source* time, std::shared_ptr<tickers> all, scope* of) {
  struct mark {
    tickers& in;
    scope* of;
    ~mark() { in.readers.erase(of); }
  } const running{*all, of};
  for (;;) {
    co_await time->sleep(std::chrono::milliseconds(250));
    auto& readers = all->readers[of];
    std::erase_if(readers, [](const auto& reader) {
      const auto alive = reader.lock();
      if (alive) alive->changed.notify_all();
      return !alive;
    });
    if (readers.empty()) co_return;
  }
}

void http_stack::tick(scope& tasks, const std::shared_ptr<fetch_signals>& of) {
  if (!tickers_) tickers_ = std::make_shared<tickers>();
  const auto [at, is_first] = tickers_->readers.try_emplace(&tasks);
  at->second.push_back(of);
  if (is_first) tasks.spawn(run_ticker(&time_, tickers_, &tasks));
}

}  // namespace millrace
