#include "pipeline/formats/fetch.h"

#include <algorithm>

#include "io/unpack/unpack.h"
#include "pipeline/plan/compacted.h"
#include "pipeline/shards/shard_index.h"

namespace millrace {
namespace {

// Whether an error of a shard is at or after byte `end`, where a sample ends, so that it does not
// concern the sample. If the shard was replaced, an error after `end` may concern it.
bool is_after_end(const error& why, std::int64_t end) {
  if (end == 0 || !why.byte_offset()) return false;
  const bool is_another = why.kind() == errc::integrity || why.kind() == errc::changed;
  const auto byte = *why.byte_offset();
  return byte == static_cast<std::uint64_t>(end) ||
         (!is_another && byte > static_cast<std::uint64_t>(end));
}

}  // namespace

bool reads_through(const lane_context& lane, std::int64_t shard) {
  const lane_context* of = &lane;
  while (!of->parts.empty()) {
    const auto* const part = of->part_of(shard);
    if (part == nullptr) return false;
    shard -= part->first_shard;
    of = part->lane;
  }
  if (shard < 0 || static_cast<std::size_t>(shard) >= of->shards->size()) return false;
  // Formats other than tar unpack their shards themselves, if at all.
  if (!of->format || !of->format->keeps_bounds()) return false;
  return compression_named((*of->shards)[static_cast<std::size_t>(shard)]) != compression::none;
}

result<sample> again_reader::through_stages(sample s, origin where) {
  s.where = where;
  s.where.position = 0;  // set after the lane's stages
  for (std::size_t i = 0; i < stages_; ++i) {
    detail::item_name name;
    name.note(s);
    result<std::optional<sample>> out = std::optional<sample>();
    try {
      out = lane_.sample_stages[i](std::move(s));
    } catch (...) {
      return name.named(error_of(std::current_exception(), "a sample stage"));
    }
    if (!out) return name.named(out.error());
    if (!*out) {
      is_left_out_ = true;
      return name.named(
          error(errc::bad_state, "a sample stage now drops a sample that it passed before")
              .offset(static_cast<std::uint64_t>(where.offset))
              .hint("sample stages must be pure functions: resume with the stages that the state "
                    "was saved with"));
    }
    s = std::move(**out);
  }
  return s;
}

again_reader::again_reader(lane_context& lane, std::size_t stages, spare_memory* spare)
    : lane_(lane), stages_(stages), spare_(spare) {}

again_reader::~again_reader() = default;

void again_reader::close() {
  samples_.reset();
  in_part_.reset();
}

awaitable<result<sample>> again_reader::read(origin where) {
  is_left_out_ = false;
  auto found = lane_.parts.empty() ? co_await read_here(where) : co_await read_in_part(where);
  if (!found) {
    close();
    co_return found;
  }
  auto staged = through_stages(std::move(*found), where);
  if (staged) staged->where = where;
  co_return staged;
}

awaitable<result<sample>> again_reader::read_in_part(origin where) {
  const auto* const part = lane_.part_of(where.shard);
  if (part == nullptr) {
    co_return error(errc::bad_state, "the saved state names a shard that is not in the list");
  }
  if (!in_part_ || part_ != part->lane) {
    part_ = part->lane;
    in_part_ = std::make_unique<again_reader>(*part_, part_->sample_stages.size(), spare_);
  }
  where.shard -= part->first_shard;
  where.epoch = part->lane->epochs.in(where.epoch);
  auto found = co_await in_part_->read(where);
  is_left_out_ = in_part_->is_left_out_;
  co_return found;
}

awaitable<result<sample>> again_reader::read_here(origin where) {
  if (where.shard < 0 || where.offset < 0 ||
      static_cast<std::size_t>(where.shard) >= lane_.shards->size()) {
    co_return error(errc::bad_state, "the saved state names a shard that is not in the list");
  }
  if (!lane_.format) {
    co_return error(errc::usage, "no stage of the plan can read samples again")
        .at((*lane_.shards)[static_cast<std::size_t>(where.shard)])
        .offset(static_cast<std::uint64_t>(where.offset))
        .hint("read shards with read_samples(), or set lane_stage.format");
  }
  auto found = co_await read_until(where, 0);
  if (found) co_return found;
  const std::int64_t end = indexed_end(where);
  if (!is_after_end(found.error(), end)) co_return found;
  samples_.reset();
  found = co_await read_until(where, end);
  samples_.reset();  // it reads no further than `end`
  co_return found;
}

std::int64_t again_reader::indexed_end(origin where) const {
  if (!lane_.index) return 0;
  const auto& blocks = lane_.index->shards[static_cast<std::size_t>(where.shard)].blocks;
  const auto at = std::ranges::lower_bound(blocks, where.offset / shard_index::block_bytes);
  const bool is_there = at != blocks.end() && *at * shard_index::block_bytes == where.offset;
  return is_there && std::next(at) != blocks.end() ? *std::next(at) * shard_index::block_bytes : 0;
}

awaitable<result<sample>> again_reader::read_until(origin where, std::int64_t end) {
  const bool is_open = samples_ && shard_ == where.shard && epoch_ == where.epoch;
  const bool is_ahead = is_open && where.offset > reached_ &&
                        (reads_through(lane_, where.shard) || where.offset <= reached_ + wide_gap);
  if (!is_ahead) {
    samples_.reset();  // first, to free its read buffers
    if (!again_) again_ = std::make_unique<lane_context>(lane_.reading_again(spare_));
    const lane_cursor at{.offset = where.offset, .head = lane_.head};
    samples_ = open_within(*lane_.format, *again_,
                           {.shard = where.shard, .epoch = where.epoch, .end = end}, at);
    shard_ = where.shard;
    epoch_ = where.epoch;
  }
  // Samples that are not wanted keep no read buffer while the next one is read.
  std::optional<sample> found;
  // The first error on the way: of a member or sample that may be the one wanted.
  std::optional<error> before;
  while (!found) {
    auto next = co_await samples_->next();
    if (!next && next.error().is_skippable() && !samples_->is_broken()) {
      if (!before) before = next.error();
      continue;
    }
    // The error may concern a sample before it: begin at the one wanted.
    const bool is_on_the_way = !next && is_ahead && next.error().kind() != errc::stopped;
    if (is_on_the_way) {
      samples_.reset();
      co_return co_await read_until(where, end);
    }
    if (!next) {
      error why = next.error();
      if (why.kind() == errc::stopped) co_return why;
      // Names the lost sample, even if the shard can no longer be opened.
      const bool is_of_shard = why.sample_key().empty() && !why.byte_offset();
      if (is_of_shard) why.offset(static_cast<std::uint64_t>(where.offset));
      co_return why;
    }
    if (!*next) break;
    reached_ = (*next)->where.offset;
    if (reached_ >= where.offset) found = std::move(**next);
  }
  const bool is_it = found && found->where.offset == where.offset;
  // On the way from an earlier sample, more than the damage may have been skipped.
  if (!is_it && is_ahead && before) {
    found.reset();  // it may be large
    samples_.reset();
    co_return co_await read_until(where, end);
  }
  if (!is_it && before) co_return *before;
  if (!is_it) {
    co_return error(errc::bad_state, "the shard has no sample where the saved state says")
        .at((*lane_.shards)[static_cast<std::size_t>(where.shard)])
        .offset(static_cast<std::uint64_t>(where.offset))
        .hint("the shard was replaced since the state was saved");
  }
  co_return std::move(*found);
}

std::shared_ptr<memory_share> again_reader::members() const {
  return in_part_ ? in_part_->members() : lane_.memory.members;
}

awaitable<result<std::optional<sample>>> again_reader::take(origin where, bool had_failed) {
  auto found = co_await read(where);
  if (!found && had_failed && is_left_out_) co_return std::optional<sample>();
  if (found) found = co_await moved(std::move(*found));
  if (!found) co_return found.error();
  co_return std::optional<sample>(std::move(*found));
}

awaitable<result<sample>> again_reader::moved(sample s) {
  const auto memory = members();
  std::size_t there = 0;
  std::size_t elsewhere = 0;
  for (const field& f : s.fields) {
    (f.data.are_of(*memory) ? there : elsewhere) += charge_of(f.data.size());
  }
  if (elsewhere == 0 || there + elsewhere > memory->limit()) co_return s;
  // The reader may hold the beginning of the next sample.
  if (memory->in_use() + elsewhere > memory->limit()) close();
  co_return co_await compacted(memory, std::move(s));
}

}  // namespace millrace
