#include "pipeline/shards.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "engine/random.h"

namespace millrace {

int shard_list_options::lane_count() const {
  constexpr int usual = 8;
  if (lanes > 0) return lanes;
  return (usual + world_size - 1) / world_size * world_size;
}

shard_order::shard_order(std::int64_t shards, const shard_list_options& options, std::int64_t lane)
    : shards_(shards), options_(options), lane_(lane), epoch_(options.first_epoch) {}

void shard_order::plan_epoch() {
  planned_epoch_ = epoch_;
  std::vector<std::int64_t> all(static_cast<std::size_t>(shards_));
  std::iota(all.begin(), all.end(), 0);
  if (options_.shuffle) {
    // Fisher and Yates over the whole list: every lane sees the same permutation.
    random_stream random(options_.seed, purpose::shard_order, static_cast<std::uint64_t>(epoch_));
    for (std::size_t i = all.size(); i > 1; --i) {
      std::swap(all[i - 1], all[random.below(static_cast<std::uint32_t>(i))]);
    }
  }
  order_.clear();
  const auto lanes = static_cast<std::size_t>(options_.lane_count());
  for (auto i = static_cast<std::size_t>(lane_); i < all.size(); i += lanes) {
    order_.push_back(all[i]);
  }
}

std::optional<shard_ref> shard_order::next() {
  if (options_.mode == epoch_mode::resample) {
    // Draw n of a lane is a function of n alone, so that a position is all the state there is.
    random_stream random(options_.seed, purpose::shard_draw, static_cast<std::uint64_t>(lane_),
                         static_cast<std::uint64_t>(draw_));
    return shard_ref{.shard = random.below(static_cast<std::uint32_t>(shards_)),
                     .draw = draw_++,
                     .epoch = epoch_};
  }
  if (epoch_ >= options_.first_epoch + options_.epochs) return std::nullopt;
  if (planned_epoch_ != epoch_) plan_epoch();
  if (draw_ == static_cast<std::int64_t>(order_.size())) {
    ++epoch_;
    draw_ = 0;
    return std::nullopt;
  }
  const std::int64_t draw = draw_++;
  return shard_ref{.shard = order_[static_cast<std::size_t>(draw)], .draw = draw, .epoch = epoch_};
}

void shard_order::seek(std::int64_t epoch, std::int64_t draw) {
  epoch_ = epoch;
  draw_ = draw;
}

namespace {

// A record "laneN/cursor" holds (epoch, draw, offset). This stage writes where the next shard
// begins; the stages behind it write over it where they stand in the middle of one.
class shard_stream final : public stream<shard_ref> {
 public:
  shard_stream(const lane_context& lane, const shard_list_options& options)
      : id_(lane.id("cursor")),
        order_(static_cast<std::int64_t>(lane.shards->size()), options, lane.lane) {}

  awaitable<outcome> next() override { co_return order_.next(); }
  void save(state& to) const override { to.put(id_, {order_.epoch(), order_.draw(), 0}); }
  void restore(const state& from) override {
    const auto* cursor = from.find(id_);
    if (cursor == nullptr || cursor->size() != 3) {
      throw failure(error(errc::bad_state, "the saved state has no record " + id_)
                        .hint("it was saved by a plan with other lanes"));
    }
    order_.seek((*cursor)[0], (*cursor)[1]);
  }

 private:
  std::string id_;
  shard_order order_;
};

void check(const std::vector<std::string>& urls, const shard_list_options& o) {
  if (urls.empty()) throw failure(error(errc::usage, "a plan without shards"));
  if (urls.size() > ~std::uint32_t{0}) throw failure(error(errc::usage, "more than 2^32 shards"));
  if (o.world_size < 1 || o.rank < 0 || o.rank >= o.world_size) {
    throw failure(error(errc::usage, fmt::format("rank {} of world size {}", o.rank, o.world_size))
                      .hint("ranks count from 0 to the world size less one"));
  }
  if (o.lane_count() % o.world_size != 0) {
    throw failure(error(errc::usage, fmt::format("{} lanes cannot be dealt to {} ranks evenly",
                                                 o.lane_count(), o.world_size))
                      .hint(fmt::format("take a multiple of {}", o.world_size)));
  }
}

}  // namespace

lane_plan<shard_ref> shards(std::vector<std::string> urls, const shard_list_options& options) {
  check(urls, options);
  const auto shared = std::make_shared<const shard_list_options>(options);
  return {[shared](lane_context& lane) -> std::unique_ptr<stream<shard_ref>> {
            return std::make_unique<shard_stream>(lane, *shared);
          },
          std::make_shared<const std::vector<std::string>>(std::move(urls)), shared};
}

}  // namespace millrace
