#include "pipeline/window_shuffle.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>

#include "engine/check_option.h"
#include "engine/divided.h"
#include "engine/random.h"
#include "pipeline/group.h"
#include "pipeline/wids/read_sample.h"

namespace millrace {
namespace {

constexpr std::int64_t tar_block_bytes = 512;
constexpr std::uint64_t most_lanes = 1 << 20;

class window_stream final : public stream<sample> {
  // A sample that is being read, shared with the coroutine that reads it.
  struct reading {
    explicit reading(const asio::any_io_executor& on) : changed(on) {}
    std::optional<result<sample>> done;
    condition changed;
  };
  struct place {
    std::uint32_t shard = 0;
    std::uint32_t block = 0;
    std::uint32_t blocks = 0;
  };

 public:
  window_stream(lane_context& lane, std::unique_ptr<stream<shard_ref>> shards,
                const window_options& options)
      : lane_(lane),
        id_(lane.id(window_record)),
        cursor_(lane.id("cursor")),
        shards_(std::move(shards)),
        options_(options),
        capacity_(divided_up(options.samples, lane.lanes)) {}

  awaitable<outcome> next() override {
    failed_ = 0;
    while (given_ == window_.size()) {
      if (ends_epoch_) {
        ends_epoch_ = false;
        window_.clear();
        given_ = 0;
        co_return std::optional<sample>();
      }
      if (auto failed = co_await begin_window()) co_return *failed;
    }
    read_ahead();
    const auto front = ahead_.front();
    while (!front->done) co_await front->changed.wait();
    ahead_.pop_front();
    const place& at = window_[given_++];
    auto& made = *front->done;
    if (!made) {
      failed_ = 1;
      co_return error(made.error()).skippable();
    }
    made->where.lane = lane_.lane;
    made->where.shard = at.shard;
    made->where.epoch = epoch_;
    co_return std::optional<sample>(std::move(*made));
  }

  void save(state& to) const override {
    shards_->save(to);
    if (window_.empty() && !resumes_at_) return;
    to.put(cursor_, cursor_record::of(epoch_, {.draw = first_draw_}));
    to.put(id_, {resumes_at_.value_or(static_cast<std::int64_t>(given_ - failed_))});
  }

  void restore(const state& from) override {
    shards_->restore(from);
    const auto* r = from.find(id_);
    if (r == nullptr) return;
    if (r->size() != 1) {
      throw failure(error(errc::bad_state, "the saved state's window is not well formed"));
    }
    const auto [epoch, at] = cursor_record::in(from, cursor_);
    epoch_ = epoch;
    first_draw_ = at.draw;
    resumes_at_ = r->front();
  }

 private:
  // Takes shards until the window is full, or the epoch's are all taken, and permutes their
  // samples.
  awaitable<std::optional<error>> begin_window() {
    std::vector<place> made;
    while (made.size() < capacity_ && !ends_epoch_) {
      auto shard = co_await shards_->next();
      if (!shard) co_return shard.error();
      ends_epoch_ = !*shard;
      if (ends_epoch_) break;
      if (made.empty()) {
        epoch_ = (*shard)->epoch;
        first_draw_ = (*shard)->draw;
      }
      add_samples(made, **shard);
    }
    random_stream random(options_.seed, purpose::window, static_cast<std::uint64_t>(epoch_),
                         static_cast<std::uint64_t>(first_draw_) * most_lanes +
                             static_cast<std::uint64_t>(lane_.lane));
    for (std::size_t i = made.size(); i > 1; --i) {
      std::swap(made[i - 1], made[random.below(static_cast<std::uint32_t>(i))]);
    }
    window_ = std::move(made);
    urls_.clear();
    given_ = asked_ = 0;
    if (const auto at = std::exchange(resumes_at_, std::nullopt)) {
      if (*at < 0 || static_cast<std::size_t>(*at) > window_.size()) {
        co_return error(
            errc::bad_state,
            fmt::format("the saved state is at sample {} of a window of {}", *at, window_.size()))
            .hint("resume with the same index and window");
      }
      given_ = asked_ = static_cast<std::size_t>(*at);
    }
    co_return std::nullopt;
  }

  void add_samples(std::vector<place>& to, const shard_ref& ref) const {
    const auto& blocks = lane_.index->shards[static_cast<std::size_t>(ref.shard)].blocks;
    if (blocks.empty()) return;  // a shard without samples
    const auto begin = std::ranges::lower_bound(blocks, ref.begin / tar_block_bytes);
    const auto end = ref.end > 0 ? std::ranges::lower_bound(blocks, ref.end / tar_block_bytes)
                                 : blocks.end() - 1;
    for (auto b = begin; b < end; ++b) {
      to.push_back({static_cast<std::uint32_t>(ref.shard), *b, *(b + 1) - *b});
    }
  }

  void read_ahead() {
    while (asked_ < window_.size() && std::ssize(ahead_) < options_.ahead) {
      const place& p = window_[asked_++];
      auto job = std::make_shared<reading>(lane_.run.io.executor());
      ahead_.push_back(job);
      const auto begin = static_cast<std::uint64_t>(p.block) * tar_block_bytes;
      const auto size = static_cast<std::uint64_t>(p.blocks) * tar_block_bytes;
      lane_.run.tasks.spawn(
          read(job, lane_, url_of(p.shard), {.begin = begin, .end = begin + size}));
    }
  }

  // Memory is asked for in the order of the samples, so that the next one never waits for those
  // behind it.
  static awaitable<void> read(std::shared_ptr<reading> job, lane_context& lane,
                              std::shared_ptr<const std::string> url, byte_range where) {
    job->done = co_await read_sample(lane.source(), lane.run.sources, lane.members, url, where);
    job->changed.notify_all();
  }

  std::shared_ptr<const std::string> url_of(std::uint32_t shard) {
    auto& url = urls_[shard];
    if (!url) url = std::make_shared<const std::string>((*lane_.shards)[shard]);
    return url;
  }

  lane_context& lane_;
  std::string id_;
  std::string cursor_;
  std::unique_ptr<stream<shard_ref>> shards_;
  window_options options_;
  std::size_t capacity_;
  std::vector<place> window_;
  std::size_t given_ = 0;
  std::size_t failed_ = 0;  // 1: the last of them, whose error was given in the last call
  std::size_t asked_ = 0;   // for how many reads have begun
  std::deque<std::shared_ptr<reading>> ahead_;
  std::int64_t epoch_ = 0;
  std::int64_t first_draw_ = 0;  // the first shard of the window
  bool ends_epoch_ = false;      // with this window
  std::optional<std::int64_t> resumes_at_;
  std::map<std::uint32_t, std::shared_ptr<const std::string>> urls_;  // of the window's shards
};

}  // namespace

lane_stage<shard_ref, sample> window_shuffle(const window_options& options) {
  check_option("window_options.samples", options.samples, 1, ~std::size_t{0});
  check_option("window_options.ahead", options.ahead, 1, 1 << 16);
  return {
      "window_shuffle",
      [options](lane_context& lane,
                std::unique_ptr<stream<shard_ref>> shards) -> std::unique_ptr<stream<sample>> {
        if (!lane.index || !lane.index->has_offsets()) {
          throw failure(error(errc::usage, "a shuffle over windows needs the places of all samples")
                            .hint("`millrace index create --offsets`, and indexed_shards()"));
        }
        if (lane.index->samples() == 0) {
          throw failure(error(errc::no_samples, "the index lists only shards without samples"));
        }
        lane.untar = std::make_shared<const untar_options>();
        lane.format = tar_samples();
        return std::make_unique<window_stream>(lane, std::move(shards), options);
      }};
}

}  // namespace millrace
