// The rate of the stages between bytes and samples, with nothing else in the way.
//
//   samples_bench            a tar archive in memory, on one thread, beside the limit: a walk over
//                            the headers alone
//   samples_bench SHARD...   these shards, as one lane: one JSON object
#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "engine/base/units.h"
#include "io/files/memory_source.h"
#include "pipeline/formats/group.h"
#include "pipeline/formats/tar_parser.h"
#include "pipeline/formats/tar_writer.h"
#include "pipeline/formats/untar.h"
#include "pipeline/run/engine.h"
#include "tools/bench/measure.h"

namespace {

using namespace millrace;

struct totals {
  std::uint64_t samples = 0;
  std::uint64_t bytes = 0;
};

// Takes everything upstream on the I/O thread, so that no sample crosses to another one.
class counting final : public stream<totals> {
 public:
  explicit counting(std::unique_ptr<stream<sample>> samples) : samples_(std::move(samples)) {}
  awaitable<outcome> next() override {
    totals sum;
    for (;;) {
      auto one = co_await samples_->next();
      if (!one) co_return one.error();
      if (!*one) break;
      ++sum.samples;
      sum.bytes += (*one)->payload_bytes();
    }
    co_return sum.samples > 0 ? std::optional(sum) : std::nullopt;
  }
  void save(state& to) const override { samples_->save(to); }
  void restore(const state& from) override { samples_->restore(from); }

 private:
  std::unique_ptr<stream<sample>> samples_;
};

std::string archive_of(std::size_t sample_bytes, std::size_t bytes) {
  const std::string path = fmt::format("/dev/shm/millrace-samples-bench-{}.tar", sample_bytes);
  const std::string image(sample_bytes, 'x');
  {
    tar_writer out(path);
    for (std::size_t i = 0; i * sample_bytes < bytes; ++i) {
      out.add(fmt::format("{:08}.cls", i), "17");
      out.add(fmt::format("{:08}.jpg", i), image);
    }
    out.close();
  }
  // On large pages, as read buffers are.
  const std::size_t size = std::filesystem::file_size(path);
  std::string whole;
  whole.reserve(size);
  constexpr std::size_t page = 2_MiB;
  const auto address = reinterpret_cast<std::uintptr_t>(whole.data());
  char* const from = whole.data() + (round_up(address, page) - address);
  if (size > page) madvise(from, size - page, MADV_HUGEPAGE);
  whole.resize(size);
  std::ifstream(path, std::ios::binary).read(whole.data(), static_cast<std::streamsize>(size));
  std::filesystem::remove(path);
  return whole;
}

double seconds_of_samples(engine& eng, const std::vector<std::string>& urls, totals& found) {
  const stage<sample, totals> count{
      "count",
      [](run_context& /*run*/,
         std::unique_ptr<stream<sample>> samples) -> std::unique_ptr<stream<totals>> {
        return std::make_unique<counting>(std::move(samples));
      }};
  auto data = eng.run(shards(urls, {.lanes = 1}) | untar() | group_by_key() | count);
  const stopwatch_pair watch;
  found = *data.next();
  return watch.seconds();
}

double seconds_of_headers(const std::string& archive, int times) {
  const stopwatch_pair watch;
  for (int i = 0; i < times; ++i) {
    tar_parser parser;
    auto input = std::as_bytes(std::span(archive.data(), archive.size()));
    while (parser.step(input).value() != tar_parser::event::need_input) {
    }
  }
  return watch.seconds();
}

void of_shards(const std::vector<std::string>& urls) {
  engine eng({.cpu_threads = 1, .memory_bytes = 256_MiB});
  totals found;
  const stopwatch_pair watch;
  const double seconds = seconds_of_samples(eng, urls, found);
  fmt::print(R"({{"samples": {}, "bytes": {}, "seconds": {:.4f}, "cpu_seconds": {:.4f}}})"
             "\n",
             found.samples, found.bytes, seconds, watch.cpu_seconds());
}

void of_memory() {
  for (const std::size_t sample_bytes : {110'000U, 3'000U}) {
    constexpr std::size_t piece = 2_MiB;
    auto store = std::make_shared<memory_store>(piece);
    store->put("a", archive_of(sample_bytes, 64_MiB));
    const std::string& archive = *store->find("a");
    constexpr int rounds = 5;
    constexpr int times = 8;
    std::vector<double> samples_s;
    std::vector<double> headers_s;
    engine_options how{.cpu_threads = 1, .memory_bytes = 256_MiB};
    how.add_sources = [&](source_registry& to) { to.add("memory", memory_source_factory(store)); };
    engine eng(how);
    const std::vector<std::string> urls(times, "memory:a");
    totals found;
    for (int i = 0; i < rounds; ++i) {
      samples_s.push_back(seconds_of_samples(eng, urls, found));
      headers_s.push_back(seconds_of_headers(archive, times));
    }
    std::ranges::sort(samples_s);
    std::ranges::sort(headers_s);
    const double s = samples_s[rounds / 2];
    const double h = headers_s[rounds / 2];
    const double gb = static_cast<double>(archive.size()) * times / 1e9;
    fmt::print(
        "{:6} B: {:9.0f} samples/s, {:6.1f} GB/s; headers alone {:6.1f} GB/s; {:.2f} of it\n",
        sample_bytes, static_cast<double>(found.samples) / s, gb / s, gb / h, h / s);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) {
    of_shards({argv + 1, argv + argc});
  } else {
    of_memory();
  }
}
