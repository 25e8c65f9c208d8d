#include "pipeline/wids/indexed_dataset.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/units.h"
#include "engine/base/words.h"
#include "engine/memory/read_blocks.h"
#include "io/standard_sources.h"
#include "pipeline/formats/read_sample.h"
#include "pipeline/formats/same_shard.h"
#include "pipeline/formats/scan.h"
#include "pipeline/formats/tar_parser.h"
#include "pipeline/shards/shard_index.h"

namespace millrace {
namespace {

constexpr std::uint64_t block_bytes = tar_parser::block_size;

// Reads one place of a shard as a sample.
class one_sample final : public stream<sample> {
 public:
  // `bytes`: the shard's size, to verify; 0: not verified.
  one_sample(run_context& run, std::string url, indexed_place place, std::int64_t bytes)
      : run_(run),
        bytes_(bytes),
        url_(std::make_shared<const std::string>(std::move(url))),
        place_(place) {
    const source_memory need = memory_for(run.source, std::span(url_.get(), 1));
    reads_ = run.memory.share("reads", need.least, need.most, read_block_allocator::instance());
    const auto size = static_cast<std::size_t>(*place.range.end - place.range.begin);
    whole_ = run.memory.share("sample", round_up(size, page_bytes), round_up(size, page_bytes));
  }

  awaitable<outcome> next() override {
    if (std::exchange(done_, true)) co_return std::optional<sample>();
    source_context context{run_.threads, run_.io, run_.tasks, reads_, run_.source, run_.counters};
    auto same = co_await check_length(context, run_.sources, *url_, bytes_);
    if (!same) co_return same.error();
    auto made = co_await read_sample(std::move(context), run_.sources, whole_, url_, place_);
    if (!made) co_return made.error();
    co_return std::optional<sample>(std::move(*made));
  }
  void save(state& /*to*/) const override {}
  void restore(const state& /*from*/) override {}

 private:
  run_context& run_;
  std::int64_t bytes_;
  std::shared_ptr<const std::string> url_;
  indexed_place place_;
  std::shared_ptr<memory_share> reads_;
  std::shared_ptr<memory_share> whole_;
  bool done_ = false;
};

}  // namespace

indexed_dataset::indexed_dataset(engine& eng, shard_index index,
                                 const indexed_dataset_options& options)
    : engine_(eng),
      index_(std::move(index)),
      options_(options),
      first_(index_.first_samples()),
      size_(index_.samples()),
      checked_(index_.shards.size()) {}

indexed_dataset::place indexed_dataset::find(std::int64_t i) const {
  if (i < 0 || i >= size_) {
    throw failure(error(errc::usage, fmt::format("there is no sample {}", i))
                      .hint(fmt::format("the index has {}, numbered from 0",
                                        counted(static_cast<std::uint64_t>(size_), "sample"))));
  }
  const auto after = std::ranges::upper_bound(first_, i);
  const auto shard = static_cast<std::size_t>(after - first_.begin()) - 1;
  return {shard, i - first_[shard]};
}

const std::vector<std::uint32_t>& indexed_dataset::blocks_of(std::size_t shard) {
  const auto& known = index_.shards[shard];
  if (!known.blocks.empty()) return known.blocks;
  std::erase(by_use_, shard);
  by_use_.push_back(shard);
  if (const auto it = found_.find(shard); it != found_.end()) return it->second;
  auto scanned = engine_.run(scan({known.url}, {.md5 = false}));
  const auto facts = scanned.next();
  if (!facts->problems.empty()) throw failure(facts->problems.front());
  if (facts->is_compressed) {
    throw failure(error(errc::unsupported, "a compressed shard has no random access")
                      .at(known.url)
                      .hint("unpack it"));
  }
  if (std::ssize(facts->samples) != known.samples) {
    throw failure(
        error(errc::integrity, fmt::format("the shard has {}, the index says {}",
                                           counted(facts->samples.size(), "sample"), known.samples))
            .at(known.url)
            .hint(index_again_hint));
  }
  shard_index::shard found;
  list_places(*facts, found);
  auto& blocks = found_[shard] = std::move(found.blocks);
  if (by_use_.size() > std::max<std::size_t>(options_.lru_shards, 1)) {  // never the current one
    found_.erase(by_use_.front());
    by_use_.erase(by_use_.begin());
  }
  return blocks;
}

sample indexed_dataset::get(std::int64_t i) {
  const place p = find(i);
  const auto& blocks = blocks_of(p.shard);
  const auto at = static_cast<std::size_t>(p.sample);
  const shard_index::shard& known = index_.shards[p.shard];
  indexed_place place{
      .range = {.begin = blocks[at] * block_bytes, .end = blocks[at + 1] * block_bytes},
      .name = {}};
  if (at < known.names.size()) place.name = known.names[at];
  const std::int64_t bytes = checked_[p.shard] ? 0 : known.bytes;
  plan<sample> one{[url = known.url, place, bytes](run_context& run) {
    return detail::measured<sample>(run, "sample",
                                    std::make_unique<one_sample>(run, url, place, bytes));
  }};
  auto data = engine_.run(one);
  sample made = std::move(*data.next());
  checked_[p.shard] = true;
  made.where.shard = static_cast<std::int64_t>(p.shard);
  return made;
}

}  // namespace millrace
