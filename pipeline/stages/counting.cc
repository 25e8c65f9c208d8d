#include "pipeline/stages/counting.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <ranges>

#include "engine/host/log.h"
#include "pipeline/state/count_record.h"
#include "pipeline/state/records.h"

namespace millrace::detail {
namespace {

constexpr std::int64_t most_of_an_epoch = std::int64_t{1} << 36;  // in a record

// Whether `n` ends can be held. Each stage of a plan holds one, and each item those between its
// samples; some are of epochs without samples, and each stage that makes epochs of its own passes
// more than a hundred of those.
bool is_number_of_ends(std::int64_t n, const state& in) {
  const std::size_t most = 1'000'000 + in.samples_held();
  return n >= 0 && n <= static_cast<std::int64_t>(most);
}

}  // namespace

void report_endless_epoch() {
  log_notice(
      "a slice has yielded the last item that it takes of an endless epoch (its shards are drawn "
      "at "
      "random without end), so it yields nothing more: put epochs_of() before it, or take no more "
      "items than that");
}

item_count::item_count(run_context& run, std::string_view stage, std::int64_t length)
    : run_(run), stage_(run.record_of(stage)), length_(std::min(length, most_of_an_epoch)) {}

void item_count::note_items() {
  samples_of_item_ = std::max(samples_of_item_, std::ssize(of_item_));
  for (const origin& o : of_item_) {
    for (given_end& e : ends_) {
      if (o.place() <= e.after) e.late.push_back(o.place());
    }
    last_ = std::max(last_, o.place());
  }
}

bool item_count::is_again() {
  note_items();
  if (to_come_ > 0) {
    const std::int64_t n = std::min(to_come_, std::ssize(of_item_));
    to_come_ -= n;
    came_again_ += static_cast<std::size_t>(n);
    return true;
  }
  if (again_.empty()) return false;
  const std::size_t before = again_.size();
  for (const origin& o : of_item_) {
    // The lane is not compared: samples assigned to other lanes have other lane numbers.
    const auto found = std::find_if(again_.rbegin(), again_.rend(), [&](const origin& a) {
      return a.epoch == o.epoch && a.shard == o.shard && a.offset == o.offset;
    });
    if (found != again_.rend()) again_.erase(std::next(found).base());
  }
  came_again_ += before - again_.size();
  return again_.size() < before;
}

bool item_count::takes_end_again() {
  if (ends_again_.empty() || came_again_ < ends_again_.back().origins) return false;
  note_end(ends_again_.back().after);
  ends_again_.pop_back();
  return true;
}

bool item_count::takes_end_in_front_again() {
  if (ends_in_front_again_ == 0) return false;
  --ends_in_front_again_;
  return true;
}

bool item_count::passes_end_again() {
  if (ends_again_.empty()) return false;
  ends_again_.pop_back();
  return true;
}

void item_count::end() {
  forget_again();
  ends_again_.clear();
  note_end(last_);
}

// Each stage holds at most one end.
void item_count::note_end(const place& after) {
  ends_.push_back({.after = std::max(after, last_)});
  if (ends_.size() > run_.downstream.stages) ends_.erase(ends_.begin());
}

void item_count::save(state& to) const {
  const state::record ends = ends_held_in(to);
  const place last_again = again_.empty() ? place(-1, -1) : again_.front().place();
  count_record saved{
      .value = value,
      .samples_in_front = std::ssize(to.held(pending_record)),
      .ends_in_front = ends.back(),
      .own_ends_in_front = std::ssize(ends) - 1,
      .ends_again = std::ssize(ends_again_),
      .last_again = last_again,
      .ends_in_front_again = ends_in_front_again_,
      .of_items = count_record::items{.samples = samples_of_item_, .length = length_},
      .again = of_again()};
  for (const given_end& e : ends_) saved.ends.push_back(e.after);
  for (const end_again& e : std::views::reverse(ends_again_)) saved.ends.push_back(e.after);
  to.put(stage_ + of_rank(run_.place.rank, run_.place.world_size), saved.of());
}

// The number of samples to come again; the number of origins that come again, with their places
// after it, or -1 if there are none: upstream stages that change the order may hold other samples
// between them. For each end: the number of origins that come again before it, or -1 and the number
// of late ones, with their places after it. The number of values is even.
state::record item_count::of_again() const {
  state::record r{to_come_};
  const auto add = [&r](const place& p) { r.insert(r.end(), {p.first, p.second}); };
  r.push_back(again_.empty() ? -1 : std::ssize(again_));
  for (const origin& o : std::views::reverse(again_)) add(o.place());
  for (const given_end& e : ends_) {
    r.insert(r.end(), {-1, std::ssize(e.late)});
    for (const place& p : e.late) add(p);
  }
  for (const end_again& e : std::views::reverse(ends_again_)) {
    r.insert(r.end(), {static_cast<std::int64_t>(e.origins - std::min(e.origins, came_again_)), 0});
  }
  return r;
}

void item_count::save_own_ends(state& to) {
  to.append(own_ends_record, state::record{ends_held_in(to).back()});
}

// For the first stage of its kind: what comes again to later ones is unknown.
void item_count::restore_own_ends(const state& from) {
  const std::string of = of_rank(run_.place.rank, run_.place.world_size);
  const auto* const saved = from.find(stage_ + of);
  if (saved == nullptr) return;
  const auto r = count_record::in(*saved);
  if (!r || r->own_ends_in_front != 1) return;
  const auto* merged = from.find(ends_held_record + of);
  const std::int64_t held = (merged != nullptr ? *merged : ends_held_in(from)).front();
  if (!is_number_of_ends(held, from)) throw failure(senseless(stage_));
  ends_in_front_again_ =
      std::max<std::int64_t>(held - r->ends_in_front, 0) + r->ends_in_front_again;
}

// Held samples come again to any of the ranks. Those that come to this rank were counted.
void item_count::restore(const state& from) {
  const auto ranks = saved_in(from);
  restore_whole(from, false);
  if (goes_on_alone(from)) return;
  const bool same_lanes = has_lanes_of(from);
  std::int64_t total = 0;
  for (const saved_count& by : ranks) {
    total += by.value;
    check_total(total);
    samples_of_item_ = std::max(samples_of_item_, by.samples_of_item);
    std::ranges::copy_if(by.again, std::back_inserter(again_), [&](const origin& o) {
      return !same_lanes || std::ranges::find(run_.place.lanes, o.lane) != run_.place.lanes.end();
    });
  }
  std::ranges::sort(again_, std::ranges::greater(), &origin::place);
  value = total * ranks.front().world_size / std::ssize(ranks) / run_.place.world_size;
}

// Held samples are counted when they come again, on whichever rank, so that all ranks have counted
// the same number. Counting continues in the epoch that the consumers were in: held ends are
// yielded when the ranks get there.
void item_count::restore_of_length(const state& from) {
  if (goes_on_alone(from)) return restore_whole(from);
  const auto ranks = saved_in(from);
  const int then = ranks.front().world_size;
  std::int64_t total = 0;
  for (const saved_count& by : ranks) {
    const std::int64_t of_epoch =
        by.length > 0 ? by.length : length_ * run_.place.world_size / then;
    const std::int64_t again = std::ssize(by.again) + by.to_come;
    const std::int64_t held = (again + by.samples_of_item - 1) / by.samples_of_item;
    total += by.value + by.ends_held * of_epoch - held;
    check_total(total);
    samples_of_item_ = std::max(samples_of_item_, by.samples_of_item);
  }
  total = std::max<std::int64_t>(total, 0);
  if (std::ssize(ranks) != then) total = total / std::ssize(ranks) * then;
  value = total / run_.place.world_size;
}

void item_count::restore_whole(const state& from, bool by_number) {
  const saved_count first = saved_in(from).front();
  value = first.value;
  samples_of_item_ = first.samples_of_item;
  if (goes_on_alone(from)) {
    restore_again(first, by_number);
  } else if (first.ends_held > 0) {
    ends_again_.push_back({});  // unknown which rank the samples before it come again to
  }
}

void item_count::check_total(std::int64_t n) const {
  if (n > most_counted) throw failure(senseless(stage_));
}

bool item_count::has_lanes_of(const state& from) const {
  const auto plan = plan_record::in(from);
  return !plan || plan->lanes == run_.place.lanes_in_all;
}

// Whether the state is this rank's own, so that everything held comes again to this rank.
bool item_count::goes_on_alone(const state& from) const {
  return from.find(stage_ + of_rank(run_.place.rank, run_.place.world_size)) != nullptr &&
         (run_.place.world_size == 1 || has_lanes_of(from));
}

// The count of this rank alone if it continues alone, otherwise of all ranks.
std::vector<item_count::saved_count> item_count::saved_in(const state& from) const {
  std::vector<saved_count> out;
  if (goes_on_alone(from)) {
    out.push_back(saved_by(from, run_.place.rank, run_.place.world_size));
    return out;
  }
  const std::string begin = stage_ + of_rank_0;
  const auto it = from.records().lower_bound(begin);
  if (it == from.records().end() || !it->first.starts_with(begin)) {
    throw failure(error(errc::bad_state, "the saved state was saved without " + stage_)
                      .hint("resume with the stages that it was saved with"));
  }
  int ranks = 0;
  const std::string& name = it->first;
  std::from_chars(name.data() + begin.size(), name.data() + name.size(), ranks);
  constexpr int most_ranks = 1 << 16;
  if (ranks < 1 || ranks > most_ranks) throw failure(senseless(stage_));
  for (int rank = 0; rank < ranks; ++rank) {
    if (from.find(stage_ + of_rank(rank, ranks)) == nullptr) continue;
    out.push_back(saved_by(from, rank, ranks));
  }
  if (out.empty()) throw failure(senseless(stage_));
  return out;
}

item_count::saved_count item_count::saved_by(const state& from, int rank, int world_size) const {
  const auto refuse_unless = [this](bool makes_sense) {
    if (!makes_sense) throw failure(senseless(stage_));
  };
  const auto r = count_record::in(*from.find(stage_ + of_rank(rank, world_size)));
  refuse_unless(r.has_value());
  for (const std::int64_t ends : {std::ssize(r->ends), r->ends_in_front, r->own_ends_in_front,
                                  r->ends_again, r->ends_in_front_again}) {
    refuse_unless(is_number_of_ends(ends, from));
  }
  saved_count out{.world_size = world_size, .value = r->value};
  if (r->of_items) {
    out.samples_of_item = r->of_items->samples;
    out.length = r->of_items->length;
    refuse_unless(out.samples_of_item >= 1 && out.length >= 0 && out.length <= most_of_an_epoch);
  }
  const auto* merged = from.find(ends_held_record + of_rank(rank, world_size));
  const state::record ends = merged != nullptr ? *merged : ends_held_in(from);
  refuse_unless(!ends.empty());
  // Up to the next stage that yields ends of its own.
  const auto here = std::min(static_cast<std::size_t>(r->own_ends_in_front), ends.size() - 1);
  refuse_unless(is_number_of_ends(ends[here], from));
  out.ends_held = std::max<std::int64_t>(ends[here] - r->ends_in_front, 0) + r->ends_again;
  for (const place& after : r->ends) out.ends.push_back({.after = after, .late = {}});
  std::optional<std::vector<place>> listed;
  out.is_older = !r->again;
  if (r->again) {
    refuse_unless(read_again(out, listed, *r->again));
    if (listed) std::ranges::sort(*listed);
  }
  // Samples that later stages held (they saved after this one), and those that had not come again
  // yet.
  std::int64_t in_front = r->samples_in_front;
  const auto passed_over = stretch_record::in(from);  // they do not come again
  // If the lanes are the current ones, they are known; otherwise a hook may also have reassigned
  // them.
  const bool is_mine =
      rank == run_.place.rank && world_size == run_.place.world_size && has_lanes_of(from);
  for (const origin& o : from.held(pending_record)) {
    const bool is_its = world_size == 1 || (is_mine ? std::ranges::find(run_.place.lanes, o.lane) !=
                                                          run_.place.lanes.end()
                                                    : o.lane % world_size == rank);
    if (!is_its) continue;
    const bool is_held = in_front-- <= 0;
    if (passed_over && passed_over->has(o.place())) continue;
    const bool is_left =
        listed ? std::ranges::binary_search(*listed, o.place()) : o.place() <= r->last_again;
    if (is_held) out.held.push_back(o);
    if (is_held || is_left) out.again.push_back(o);
  }
  std::ranges::sort(out.again, {}, &origin::place);
  return out;
}

// False if the values are inconsistent.
bool item_count::read_again(saved_count& to, std::optional<std::vector<place>>& listed,
                            std::span<const std::int64_t> r) {
  const auto take = [&r](std::int64_t& number) {
    if (r.empty()) return false;
    number = r.front();
    r = r.subspan(1);
    return true;
  };
  const auto take_places = [&](std::vector<place>& places, std::int64_t n) {
    if (n < 0 || n > std::ssize(r) / 2) return false;
    for (; n > 0; --n, r = r.subspan(2)) places.emplace_back(r[0], r[1]);
    return true;
  };
  std::int64_t n = 0;
  if (!take(to.to_come) || to.to_come < 0 || !take(n)) return false;
  if (n >= 0 && !take_places(listed.emplace(), n)) return false;
  for (given_end& e : to.ends) {
    if (!take(e.to_come) || !take(n) || !take_places(e.late, n)) return false;
  }
  return r.empty();
}

// The number of origins that come again before the end.
std::size_t item_count::before(const given_end& end, const saved_count& by) {
  const auto in_front = [&end](const origin& o) { return o.place() <= end.after; };
  if (by.is_older) return static_cast<std::size_t>(std::ranges::count_if(by.again, in_front));
  if (end.to_come >= 0) return by.held.size() + static_cast<std::size_t>(end.to_come);
  return static_cast<std::size_t>(std::ranges::count_if(by.held, [&](const origin& o) {
    return in_front(o) && std::ranges::find(end.late, o.place()) == end.late.end();
  }));
}

void item_count::restore_again(const saved_count& by, bool by_number) {
  ends_ = by.ends;
  for (std::int64_t ends_held = by.ends_held; ends_held > 0; --ends_held) {
    given_end end;
    if (!ends_.empty()) {
      end = std::move(ends_.back());
      ends_.pop_back();
    }
    ends_again_.push_back({.origins = before(end, by), .after = end.after});
  }
  if (!ends_.empty()) last_ = ends_.back().after;
  for (given_end& e : ends_) e = {.after = e.after};
  to_come_ = by.to_come;
  if (by_number && by.samples_of_item == 1) {
    to_come_ += std::ssize(by.again);
  } else {  // items of several samples are composed again, from the same samples
    again_ = {by.again.rbegin(), by.again.rend()};
  }
}

}  // namespace millrace::detail
