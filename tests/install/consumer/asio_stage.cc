// A stage that awaits one of Asio's operations for each sample. Prints how many it waited for.
#include <millrace/asio.h>
#include <millrace/millrace.h>

#include <boost/asio/steady_timer.hpp>
#include <cstdio>

using namespace millrace;

namespace {

class waiting final : public stream<sample> {
 public:
  explicit waiting(std::unique_ptr<stream<sample>> samples) : samples_(std::move(samples)) {}

  awaitable<outcome> next() override {
    boost::asio::steady_timer timer(co_await this_executor, std::chrono::microseconds(10));
    co_await timer.async_wait(no_throw);
    co_return co_await samples_->next();
  }
  void save(state& to) const override { samples_->save(to); }
  void restore(const state& from) override { samples_->restore(from); }

 private:
  std::unique_ptr<stream<sample>> samples_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  engine eng({.cpu_threads = 1});
  const stage<sample, sample> wait{"waiting", [](run_context&, std::unique_ptr<stream<sample>> of) {
                                     return std::make_unique<waiting>(std::move(of));
                                   }};
  std::size_t samples = 0;
  for (auto& s : eng.run(interleaved(shards(expand(argv[1])) | untar() | group_by_key()) | wait)) {
    samples += s.fields.empty() ? 0 : 1;
  }
  std::printf("%zu\n", samples);
}
