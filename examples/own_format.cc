// Your own format: files of lines "KEY<tab>TEXT", each line a sample with the field txt. Shuffling,
// ranks, resuming and all later stages work as for tar archives. Prints a few samples.
//
//   example_own_format 'lines-{0..3}.tsv'
#include <millrace/engine.h>
#include <millrace/formats.h>
#include <millrace/plan.h>
#include <millrace/stages.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

using namespace millrace;

namespace {

// Begins at the first byte of any line, because a run may be resumed there. Data read ahead belongs
// to the source.
class line_reader final : public sample_reader {
 public:
  line_reader(lane_context& lane, const shard_ref& which, const lane_cursor& at)
      : lane_(lane),
        url_((*lane.shards)[static_cast<std::size_t>(which.shard)]),
        offset_(at.offset),
        given_(at.given) {}

  awaitable<result<std::optional<sample>>> next() override {
    if (!source_) {
      const byte_range rest{.begin = static_cast<std::uint64_t>(offset_), .end = {}};
      auto opened = co_await lane_.run.sources.open(lane_.source(), url_, rest);
      if (!opened) co_return broken(opened.error());
      source_ = std::move(*opened);
    }
    auto line = co_await next_line();
    if (!line) co_return broken(line.error());
    if (line->empty()) co_return std::optional<sample>();
    sample out;
    out.where.offset = offset_;
    offset_ += static_cast<std::int64_t>(line->size());
    ++given_;
    const std::size_t tab = line->text().find('\t');
    if (tab == std::string_view::npos) {  // only this line fails: the next call continues
      error why(errc::bad_field, "a line without a tab");
      co_return why.at(url_).offset(static_cast<std::uint64_t>(out.where.offset)).skippable();
    }
    out.key = line->text().substr(0, tab);
    const std::size_t end = line->size() - (line->text().ends_with('\n') ? 1 : 0);
    out.fields.push_back({"txt", line->slice(tab + 1, end - tab - 1)});
    co_return std::optional(std::move(out));
  }
  std::int64_t offset() const override { return offset_; }
  std::int64_t given() const override { return given_; }
  bool is_broken() const override { return broken_; }

 private:
  // Nothing more is read from this shard.
  error broken(error why) {
    broken_ = true;
    return why.at(url_).offset(static_cast<std::uint64_t>(offset_)).skippable();
  }

  // A line with its end; empty at the end of the file. A line within one read buffer is a slice of
  // it. One that spans two is copied into memory of the budget.
  awaitable<result<bytes>> next_line() {
    std::string begun;
    for (;;) {
      const std::size_t end = rest_.text().find('\n');
      const std::size_t size = end == std::string_view::npos ? rest_.size() : end + 1;
      const bytes piece = rest_.slice(0, size);
      rest_ = rest_.slice(size);
      if (begun.empty() && end != std::string_view::npos) co_return piece;
      if (begun.size() + size > most_line_bytes) co_return error(errc::too_large, "a long line");
      begun += piece.text();
      if (end != std::string_view::npos) break;
      auto more = co_await source_->read();
      if (!more) co_return more.error();
      if (more->empty()) break;
      rest_ = std::move(*more);
    }
    if (begun.empty()) co_return bytes();
    auto memory = co_await lane_.memory.members->acquire(begun.size());
    if (!memory) co_return memory.error();
    std::memcpy(memory->data(), begun.data(), begun.size());
    co_return std::move(*memory).freeze(begun.size());
  }

  static constexpr std::size_t most_line_bytes = 1_MiB;

  lane_context& lane_;
  std::string url_;
  std::int64_t offset_;  // of the next line
  std::int64_t given_;
  bool broken_ = false;
  std::unique_ptr<byte_source> source_;
  bytes rest_;  // of the read buffer
};

class lines final : public sample_source {
 public:
  std::unique_ptr<sample_reader> open(lane_context& lane, const shard_ref& which,
                                      const lane_cursor& at) const override {
    return std::make_unique<line_reader>(lane, which, at);
  }
};

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 2) {
    std::fprintf(stderr, "usage: example_own_format 'lines-{0..3}.tsv'\n");
    return 2;
  }
  engine eng(engine_options::from_environment());
  auto data =
      eng.run(shards(expand(argv[1]), {.seed = 1}) | read_samples(std::make_shared<lines>()) |
              shuffle({.samples = 1000, .seed = 1}) | on_error(skip_up_to(10)));
  std::size_t samples = 0;
  for (auto& s : data) {
    const std::string_view text = s.find("txt")->data.text();
    if (++samples <= 3)
      std::printf("%s: %.*s\n", s.key.c_str(), static_cast<int>(text.size()), text.data());
  }
  std::printf("%zu samples, %llu skipped\n", samples,
              static_cast<unsigned long long>(data.counts().skipped_in_all()));
} catch (const failure& f) {
  std::fprintf(stderr, "%s\n", f.what());
  return exit_code(f.kind());
}
