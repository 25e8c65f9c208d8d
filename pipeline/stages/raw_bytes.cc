#include "pipeline/stages/raw_bytes.h"

#include "engine/memory/read_blocks.h"
#include "io/standard_sources.h"

namespace millrace {
namespace {

class raw_stream final : public stream<bytes> {
 public:
  raw_stream(run_context& run, std::vector<std::string> urls)
      : run_(run),
        urls_(std::move(urls)),
        need_(memory_for(run.source, urls_)),
        memory_(
            run.memory.share("reads", need_.least, need_.most, read_block_allocator::instance())) {
    run.source.working_set_bytes = working_set_of(urls_);
  }

  awaitable<outcome> next() override {
    while (source_ || at_ < urls_.size()) {
      if (!source_) {
        source_context context{run_.threads, run_.io,     run_.tasks,
                               memory_,      run_.source, run_.counters};
        auto opened = co_await run_.sources.open(std::move(context), urls_[at_]);
        if (!opened) co_return opened.error().skippable(false);
        source_ = std::move(*opened);
      }
      auto piece = co_await source_->read();
      if (!piece) co_return piece.error().skippable(false);
      if (!piece->empty()) co_return std::optional<bytes>(std::move(*piece));
      source_.reset();
      ++at_;
    }
    co_return std::optional<bytes>();
  }
  void save(state& /*to*/) const override {
    throw failure(error(errc::unsupported, "a copy of raw bytes has no state to save"));
  }
  void restore(const state& /*from*/) override {
    throw failure(error(errc::unsupported, "a copy of raw bytes has no state to restore"));
  }

 private:
  run_context& run_;
  std::vector<std::string> urls_;
  source_memory need_;
  std::shared_ptr<memory_share> memory_;
  std::size_t at_ = 0;
  std::unique_ptr<byte_source> source_;
};

}  // namespace

plan<bytes> raw_bytes(std::vector<std::string> urls) {
  return {[urls = std::move(urls)](run_context& run) {
    return detail::measured<bytes>(run, "read", std::make_unique<raw_stream>(run, urls));
  }};
}

}  // namespace millrace
