#include "pipeline/stages/window_shuffle.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>

#include "engine/base/check_option.h"
#include "engine/base/divided.h"
#include "engine/base/fingerprint.h"
#include "engine/base/random.h"
#include "engine/base/words.h"
#include "engine/coroutines/async.h"
#include "engine/coroutines/condition.h"
#include "engine/threads/io_thread.h"
#include "pipeline/formats/read_sample.h"
#include "pipeline/formats/same_shard.h"
#include "pipeline/formats/tar_samples.h"
#include "pipeline/state/records.h"

namespace millrace {
namespace {

constexpr std::uint64_t most_lanes = 1 << 20;

class window_stream final : public stream<sample> {
  // A sample being read, shared with the coroutine that reads it.
  struct reading {
    explicit reading(const asio::any_io_executor& on) : changed(on) {}
    std::optional<result<sample>> done;
    condition changed;
  };
  struct shard_of_window {
    std::shared_ptr<const std::string> url;
    std::int64_t bytes = 0;           // from the index
    std::optional<error> is_another;  // set if the shard is not the one that was indexed
    bool is_checked = false;
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
        cursor_(lane.id(cursor_record::name)),
        shards_(std::move(shards)),
        options_(options),
        capacity_(divided_up(options.samples, lane.lanes)),
        drawn_(lane.drawn) {
    // Shards are drawn for a whole window at once, but downstream stages count the shards yielded.
    lane.drawn = given_shards_;
    given_shards_->shards_of_a_pass = drawn_->shards_of_a_pass;
  }

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
    given_shards_->shards =
        shards_before_ + (drawn_->shards - shards_before_) * given_ / window_.size();
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

  void leave_failed() override { failed_ = 0; }

  void save(state& to) const override {
    shards_->save(to);
    if (window_.empty() && !resumes_at_) return to.put(id_, {within_no_window});
    to.put(cursor_, cursor_record::of(epoch_, {.draw = first_draw_}));
    to.put(id_, {resumes_at_.value_or(static_cast<std::int64_t>(given_ - failed_)), print_});
  }

  void restore(const state& from) override {
    shards_->restore(from);
    const auto* r = from.find(id_);
    const auto [epoch, at] = cursor_record::in(from, cursor_);
    if (r == nullptr || *r == state::record{within_no_window}) {
      // A state without this record is of an older version, or of stages that read shards
      // sequentially.
      if (at.offset == 0) return;
      throw failure(error(errc::bad_state, "the saved state is within a shard, not a window")
                        .hint("resume with the stages that it was saved with"));
    }
    if (r->empty() || r->size() > 2) {
      throw failure(error(errc::bad_state, "the saved state's window is not well formed"));
    }
    epoch_ = epoch;
    first_draw_ = at.draw;
    resumes_at_ = r->front();
    print_ = r->size() > 1 ? r->back() : 0;
  }

 private:
  // Takes shards until the window is full or the epoch has no more, and permutes their samples.
  awaitable<std::optional<error>> begin_window() {
    if (refused_) co_return *refused_;
    std::vector<place> made;
    shards_before_ = drawn_->shards;
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
      if (!made.empty()) ++drawn_->items;
    }
    random_stream random(options_.seed, purpose::window, static_cast<std::uint64_t>(epoch_),
                         static_cast<std::uint64_t>(first_draw_) * most_lanes +
                             static_cast<std::uint64_t>(lane_.lane));
    for (std::size_t i = made.size(); i > 1; --i) {
      std::swap(made[i - 1], made[random.below(static_cast<std::uint32_t>(i))]);
    }
    const std::int64_t print = print_of(made);
    if (resumes_at_) {
      const bool is_within =
          *resumes_at_ >= 0 && static_cast<std::size_t>(*resumes_at_) <= made.size();
      if (!is_within || (print_ != 0 && print_ != print)) {
        // From here on, save() writes the state that was to be resumed.
        refused_ = error(errc::bad_state,
                         fmt::format("the saved state is at sample {} of a different window; this "
                                     "one has {}",
                                     *resumes_at_, counted(made.size(), "sample")))
                       .hint("resume with the same index, and the window's size and seed");
        co_return *refused_;
      }
    }
    window_ = std::move(made);
    shards_of_window_.clear();
    print_ = print;
    given_ = asked_ =
        static_cast<std::size_t>(std::exchange(resumes_at_, std::nullopt).value_or(0));
    co_return std::nullopt;
  }

  // Fingerprints the samples and their order. Never 0.
  static std::int64_t print_of(const std::vector<place>& window) {
    std::uint64_t print = fingerprint("");
    for (const place& p : window)
      print = fingerprint(fmt::format("{} {} ", p.shard, p.block), print);
    return static_cast<std::int64_t>(print % most_counted) + 1;
  }

  void add_samples(std::vector<place>& to, const shard_ref& ref) const {
    const auto& blocks = lane_.index->shards[static_cast<std::size_t>(ref.shard)].blocks;
    if (blocks.empty()) return;  // a shard without samples
    const auto begin = std::ranges::lower_bound(blocks, ref.begin / shard_index::block_bytes);
    const auto end = ref.end > 0
                         ? std::ranges::lower_bound(blocks, ref.end / shard_index::block_bytes)
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
      const auto begin = static_cast<std::uint64_t>(p.block) * shard_index::block_bytes;
      const auto size = static_cast<std::uint64_t>(p.blocks) * shard_index::block_bytes;
      const indexed_place where{.range = {.begin = begin, .end = begin + size}, .name = name_at(p)};
      lane_.run.tasks.spawn(read(job, lane_, shard_of(p.shard), where));
    }
  }

  std::optional<std::uint16_t> name_at(const place& p) const {
    const shard_index::shard& shard = lane_.index->shards[p.shard];
    if (shard.names.empty()) return std::nullopt;
    const auto at = std::ranges::lower_bound(shard.blocks, p.block) - shard.blocks.begin();
    return shard.names[static_cast<std::size_t>(at)];
  }

  // Memory is requested in the order of the samples, so that the next sample never waits for later
  // ones.
  static awaitable<void> read(std::shared_ptr<reading> job, lane_context& lane,
                              std::shared_ptr<shard_of_window> shard, indexed_place where) {
    job->done = co_await checked_sample(lane, std::move(shard), where);
    job->changed.notify_all();
  }

  // The length is checked while the sample has its memory: waiting before requesting memory would
  // put the request after later ones.
  static awaitable<result<sample>> checked_sample(lane_context& lane,
                                                  std::shared_ptr<shard_of_window> shard,
                                                  indexed_place where) {
    auto made = co_await read_sample(lane.source(), lane.run.sources, lane.memory.members,
                                     shard->url, where);
    if (made && !shard->is_checked) {
      auto same = co_await check_length(lane.source(), lane.run.sources, *shard->url, shard->bytes);
      if (!same && same.error().kind() != errc::integrity) co_return same.error();
      if (!same) shard->is_another = same.error();
      shard->is_checked = true;
    }
    if (made && shard->is_another) co_return error(*shard->is_another).offset(where.range.begin);
    co_return made;
  }

  std::shared_ptr<shard_of_window> shard_of(std::uint32_t number) {
    auto& shard = shards_of_window_[number];
    if (!shard) {
      shard = std::make_shared<shard_of_window>();
      shard->url = std::make_shared<const std::string>((*lane_.shards)[number]);
      shard->bytes = lane_.index->shards[number].bytes;
    }
    return shard;
  }

  lane_context& lane_;
  std::string id_;
  std::string cursor_;
  std::unique_ptr<stream<shard_ref>> shards_;
  window_options options_;
  std::size_t capacity_;
  std::shared_ptr<drawn_shards> drawn_;
  std::shared_ptr<drawn_shards> given_shards_ = std::make_shared<drawn_shards>();
  std::uint64_t shards_before_ = 0;  // drawn before this window
  std::vector<place> window_;
  std::size_t given_ = 0;
  std::size_t failed_ = 0;  // 1: the last yielded item was an error, returned by the last call
  std::size_t asked_ = 0;   // samples whose reads have begun
  std::deque<std::shared_ptr<reading>> ahead_;
  std::int64_t epoch_ = 0;
  std::int64_t first_draw_ = 0;  // the first shard of the window
  bool ends_epoch_ = false;      // the epoch ends with this window
  std::optional<std::int64_t> resumes_at_;
  std::optional<error> refused_;  // set if the state is of another window
  std::int64_t print_ = 0;        // fingerprint of the window, or of the one to resume; 0: unknown
  std::map<std::uint32_t, std::shared_ptr<shard_of_window>> shards_of_window_;
};

}  // namespace

lane_stage<shard_ref, sample> window_shuffle(const window_options& options) {
  check_option("window_options.samples", options.samples, 1, ~std::size_t{0});
  check_option("window_options.ahead", options.ahead, 1, 1 << 16);
  return {
      .name = "window_shuffle",
      .wrap = [options](lane_context& lane, std::unique_ptr<stream<shard_ref>> shards)
          -> std::unique_ptr<stream<sample>> {
        if (!lane.index || !lane.index->has_offsets()) {
          throw failure(error(errc::usage, "a shuffle over windows needs the places of all samples")
                            .hint("`millrace index create --offsets`, and indexed_shards()"));
        }
        if (lane.index->samples() == 0) {
          throw failure(error(errc::no_samples, "the index lists only shards without samples"));
        }
        return std::make_unique<window_stream>(lane, std::move(shards), options);
      },
      .unchanged = true,
      .records = {{window_record, nullptr}},
      .reads_ahead = true,
      .format = tar_samples()};
}

}  // namespace millrace
