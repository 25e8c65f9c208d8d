#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "pipeline/stages.h"

namespace millrace {

// Stages that count what passes: epochs of any length, and slices of them.

namespace detail {

// What a stage has counted in its epoch, as its state. What stages behind it hold when that is
// saved comes again first, and must not be counted again: such items stand, in the order of
// samples, at or before the last one counted. Other numbers of ranks take their part of what all
// had counted.
class item_count {
 public:
  item_count(const run_context& run, std::string_view stage) : run_(run), stage_(stage) {}

  std::int64_t value = 0;

  // Whether items come again that were counted before the state was saved.
  bool awaits_again() const { return again_ > 0; }
  // False for those.
  template <class T>
  bool add(const T& item) {
    if (again_ > 0) {
      --again_;
      return false;
    }
    ++value;
    if constexpr (requires { item.where.position; }) last_ = item.where.place();
    return true;
  }
  // Whether a stage behind held an end that this one had given; once.
  bool takes_end_again() { return std::exchange(end_again_, false); }

  void save(state& to) const {
    to.put(name_of(run_.rank, run_.world_size), {value, last_.first, last_.second, ends_held(to)});
  }
  void restore(const state& from) {
    const auto* mine = from.find(name_of(run_.rank, run_.world_size));
    int ranks = run_.world_size;
    const auto* r = mine != nullptr ? mine : of_rank_0(from, ranks);
    if (r == nullptr || r->size() != 4) {
      throw failure(
          error(errc::bad_state, "the saved state was saved without " + std::string(stage_)));
    }
    value = (*r)[0];
    if (mine == nullptr) {
      value = value * ranks / run_.world_size;
      return;
    }
    last_ = {(*r)[1], (*r)[2]};
    end_again_ = ends_held(from) > (*r)[3];
    again_ = std::ranges::count_if(from.held(pending_record), [&](const origin& o) {
      return o.place() <= last_ && std::ranges::find(run_.lanes, o.lane) != run_.lanes.end();
    });
  }

 private:
  static std::int64_t ends_held(const state& in) {
    const auto* r = in.find(end_owed_record);
    return r == nullptr ? 0 : std::ssize(*r);
  }
  std::string name_of(int rank, int world_size) const {
    return std::string(stage_) + " of rank " + std::to_string(rank) + " of " +
           std::to_string(world_size);
  }
  const state::record* of_rank_0(const state& from, int& ranks) const {
    const std::string begin = std::string(stage_) + " of rank 0 of ";
    const auto it = from.records().lower_bound(begin);
    if (it == from.records().end() || !it->first.starts_with(begin)) return nullptr;
    const char* number = it->first.data() + begin.size();
    std::from_chars(number, it->first.data() + it->first.size(), ranks);
    return &it->second;
  }

  const run_context& run_;
  std::string_view stage_;
  std::pair<std::int64_t, std::int64_t> last_{-1, -1};  // place in the order
  std::ptrdiff_t again_ = 0;
  bool end_again_ = false;
};

template <class T>
class epochs_of_stream final : public passing<T> {
 public:
  using outcome = typename stream<T>::outcome;
  epochs_of_stream(const run_context& run, std::unique_ptr<stream<T>> items, std::int64_t length)
      : passing<T>(std::move(items)), given_(run, "epochs_of"), length_(length) {}

  awaitable<outcome> next() override {
    for (bool ended = false;;) {
      if (!given_.awaits_again()) {
        if (given_.takes_end_again()) co_return std::optional<T>();
        if (given_.value >= length_) {
          given_.value = 0;
          co_return std::optional<T>();
        }
      }
      auto item = co_await this->items_->next();
      if (!item) co_return item;
      if (*item) {
        given_.add(**item);
        co_return item;
      }
      // The end of the data's own epoch is passed over; two in a row are the end of all.
      if (std::exchange(ended, true)) co_return item;
    }
  }
  void save(state& to) const override {
    this->items_->save(to);
    given_.save(to);
  }
  void restore(const state& from) override {
    this->items_->restore(from);
    given_.restore(from);
  }

 private:
  item_count given_;
  std::int64_t length_;
};

template <class T>
class repeated_stream final : public passing<T> {
 public:
  using outcome = typename stream<T>::outcome;
  repeated_stream(const run_context& run, std::unique_ptr<stream<T>> items, std::int64_t times)
      : passing<T>(std::move(items)), ended_(run, "repeated"), times_(times) {}

  awaitable<outcome> next() override {
    for (;;) {
      auto item = co_await this->items_->next();
      if (!item) co_return item;
      if (*item) {
        any_ = true;
        co_return item;
      }
      if (ended_.takes_end_again()) co_return item;
      // Two ends in a row are the end of all.
      if (++ended_.value == times_ || !std::exchange(any_, false)) {
        ended_.value = 0;
        any_ = false;
        co_return item;
      }
    }
  }
  void save(state& to) const override {
    this->items_->save(to);
    ended_.save(to);
  }
  void restore(const state& from) override {
    this->items_->restore(from);
    ended_.restore(from);
    any_ = true;
  }

 private:
  item_count ended_;  // of the data's epochs, in this one
  std::int64_t times_;
  bool any_ = false;  // whether the data's current epoch has given anything
};

struct slice_bounds {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t step = 1;
};

template <class T>
class slice_stream final : public passing<T> {
 public:
  using outcome = typename stream<T>::outcome;
  slice_stream(const run_context& run, std::unique_ptr<stream<T>> items, const slice_bounds& which)
      : passing<T>(std::move(items)), at_(run, "slice"), which_(which) {}

  awaitable<outcome> next() override {
    for (;;) {
      auto item = co_await this->items_->next();
      if (!item) co_return item;
      if (!*item) {
        at_.value = 0;
        co_return item;
      }
      const std::int64_t i = at_.value;
      if (!at_.add(**item)) co_return item;
      if (i >= which_.begin && i < which_.end && (i - which_.begin) % which_.step == 0)
        co_return item;
    }
  }
  void save(state& to) const override {
    this->items_->save(to);
    at_.save(to);
  }
  void restore(const state& from) override {
    this->items_->restore(from);
    at_.restore(from);
  }

 private:
  item_count at_;
  slice_bounds which_;
};

}  // namespace detail

// Epochs of `length` items each, whatever the data's own are: the next one goes on where the last
// one stopped. Ends when the data do.
struct epochs_of {
  std::int64_t length;
  explicit epochs_of(std::int64_t n) : length(n) {
    if (n < 1) throw failure(error(errc::usage, "epochs of no items"));
  }

  template <class T>
  stage<T, T> for_items() const {
    return {"epochs_of",
            [n = length](run_context& run,
                         std::unique_ptr<stream<T>> items) -> std::unique_ptr<stream<T>> {
              return std::make_unique<detail::epochs_of_stream<T>>(run, std::move(items), n);
            }};
  }
};

// Epochs of `times` of the data's own epochs each, one after the other.
struct repeated {
  std::int64_t times;
  explicit repeated(std::int64_t n) : times(n) {
    if (n < 1) throw failure(error(errc::usage, "epochs of no epochs"));
  }

  template <class T>
  stage<T, T> for_items() const {
    return {"repeated",
            [n = times](run_context& run,
                        std::unique_ptr<stream<T>> items) -> std::unique_ptr<stream<T>> {
              return std::make_unique<detail::repeated_stream<T>>(run, std::move(items), n);
            }};
  }
};

// Of each epoch the items [begin, end), every step-th of them.
struct slice {
  detail::slice_bounds which;
  slice(std::int64_t begin, std::int64_t end, std::int64_t step = 1) : which{begin, end, step} {
    if (begin < 0 || end < begin || step < 1) throw failure(error(errc::usage, "no such slice"));
  }

  template <class T>
  stage<T, T> for_items() const {
    return {"slice",
            [w = which](run_context& run,
                        std::unique_ptr<stream<T>> items) -> std::unique_ptr<stream<T>> {
              return std::make_unique<detail::slice_stream<T>>(run, std::move(items), w);
            }};
  }
};

}  // namespace millrace
