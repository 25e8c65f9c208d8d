#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "pipeline/plan/plan.h"
#include "pipeline/state/records.h"

namespace millrace {

// Stages that count what passes: epochs of any length, and slices of them.

namespace detail {

// An epoch without items looks like the end of the data, after which there is another end each time
// that one is asked for. Stages that make epochs of others pass over empty ones. After this many in
// a row, such a stage gives an end of its own, so that its consumer does not wait forever. Later
// such stages then give theirs at once: otherwise n of them would try 100^n epochs.
inline constexpr int most_empty_epochs = 100;

// Count of a stage in its epoch, the ends that it has given, and its state. Items and ends that
// later stages held when the state was saved come again, and must not be counted twice. With
// another number of ranks or of lanes, each rank takes its part of the total.
class item_count {
 public:
  // `stage` names the record; a second stage of its kind, and further ones, add a number.
  item_count(run_context& run, std::string_view stage, std::int64_t length = 0);

  std::int64_t value = 0;

  // Whether the item was given before the state was saved.
  template <class T>
  bool comes_again(const T& item) {
    if constexpr (tells_origins<T>()) {
      of_item_.clear();
      append_origins(of_item_, item);
      return is_again();
    } else {
      return false;
    }
  }
  // False for an item that comes again.
  template <class T>
  bool add(const T& item) {
    if (comes_again(item)) return false;
    ++value;
    return true;
  }
  bool awaits_again() const { return !again_.empty() || to_come_ > 0; }

  // For a stage that gives ends of its own. Whether the next item to give is an end that a later
  // stage held: it comes again after the items that preceded it.
  bool takes_end_again();
  // For such a stage: it gives an end, and whatever has not come again will not.
  void end();
  // For such a stage, at each end of the stages before it: whether it was taken before the state
  // was saved. It comes again for the sake of the earlier stages, after items that later ones held.
  bool takes_end_in_front_again();
  // For a stage that passes ends on, at each: whether it was given before the state was saved.
  bool passes_end_again();

  void save(state& to) const;
  // For a stage whose ends are not those of the earlier stages: after those have saved, and before
  // save().
  static void save_own_ends(state& to);
  void restore_own_ends(const state& from);  // after restore()
  // For a stage to which it matters which items have been given.
  void restore(const state& from);
  // For a stage whose epochs have a length.
  void restore_of_length(const state& from);
  // For what is not divided among ranks.
  void restore_whole(const state& from) { restore_whole(from, true); }
  // Expects nothing to come again any more.
  void forget_again() {
    again_.clear();
    to_come_ = 0;
  }

 private:
  using place = std::pair<std::int64_t, std::int64_t>;  // in the order
  struct given_end {
    place after{-1, -1};        // the last in the order of all that was given before it
    std::vector<place> late;    // given after it although earlier in the order
    std::int64_t to_come = -1;  // in a state: origins that come again before it; -1: by the above
  };
  // The record of one rank, read.
  struct saved_count {
    int world_size = 1;
    std::int64_t value = 0;
    std::int64_t length = 0;  // of an epoch, in items; 0: not known
    std::int64_t samples_of_item = 1;
    std::int64_t ends_held = 0;   // that come again
    std::vector<given_end> ends;  // as in ends_
    std::vector<origin> again;    // that come again, in order
    std::vector<origin> held;     // those of them that later stages held
    std::int64_t to_come = 0;     // others that come again, in number
    bool is_older = false;        // it knows nothing of `late` and `to_come`
  };

  bool is_again();
  void note_items();
  void note_end(const place& after);
  void check_total(std::int64_t n) const;  // over ranks; throws `failure` (bad_state)
  bool has_lanes_of(const state& from) const;
  bool goes_on_alone(const state& from) const;
  std::vector<saved_count> saved_in(const state& from) const;
  saved_count saved_by(const state& from, int rank, int world_size) const;
  void restore_whole(const state& from, bool by_number);
  state::record of_again() const;
  static bool read_again(saved_count& to, std::optional<std::vector<place>>& listed,
                         std::span<const std::int64_t> of_again);
  static std::size_t before(const given_end& end, const saved_count& by);
  void restore_again(const saved_count& by, bool by_number);

  run_context& run_;
  std::string stage_;
  std::vector<origin> of_item_;  // that was given last
  place last_{-1, -1};           // of all that were given
  std::vector<given_end> ends_;  // as many as may be held
  std::vector<origin> again_;    // that have not come again yet, the first one last
  // The same for a stage whose epochs depend only on the number of its items: if earlier stages
  // change the order, other items come between them, and count in their place.
  std::int64_t to_come_ = 0;
  std::size_t came_again_ = 0;  // origins
  struct end_again {
    std::size_t origins = 0;  // that come again before it
    place after{-1, -1};      // as in ends_, before the state was saved
  };
  std::vector<end_again> ends_again_;  // the first one last
  std::int64_t ends_in_front_again_ = 0;
  std::int64_t samples_of_item_ = 1;  // the most
  std::int64_t length_ = 0;           // of an epoch, if it has one; at most what a record can hold
};

template <class T>
class epochs_of_stream final : public passing<T> {
 public:
  using outcome = typename stream<T>::outcome;
  epochs_of_stream(run_context& run, std::unique_ptr<stream<T>> items, std::int64_t length)
      : passing<T>(std::move(items)), given_(run, epochs_of_record, length), length_(length) {
    run.has_own_epochs = true;
  }

  awaitable<outcome> next() override {
    is_dry_ = false;
    for (int ends = 0;;) {
      if (given_.takes_end_again()) co_return std::optional<T>();
      // One more than its length, if an item that was to come again can no longer be read.
      if (given_.value >= length_ + (given_.awaits_again() ? 1 : 0)) {
        given_.value = 0;
        given_.end();
        co_return std::optional<T>();
      }
      auto item = co_await this->items_->next();
      if (!item) co_return item;
      if (*item) {
        given_.add(**item);
        co_return item;
      }
      if (given_.takes_end_in_front_again()) continue;
      is_dry_ = ++ends >= most_empty_epochs || this->items_->has_run_dry();
      if (!is_dry_) continue;
      given_.value = 0;
      given_.end();
      co_return item;
    }
  }
  bool has_run_dry() const override { return is_dry_; }
  void save(state& to) const override {
    this->items_->save(to);
    item_count::save_own_ends(to);
    given_.save(to);
  }
  void restore(const state& from) override {
    this->items_->restore(from);
    given_.restore_of_length(from);
    given_.restore_own_ends(from);
  }

 private:
  item_count given_;
  std::int64_t length_;
  bool is_dry_ = false;
};

template <class T>
class repeated_stream final : public passing<T> {
 public:
  using outcome = typename stream<T>::outcome;
  repeated_stream(run_context& run, std::unique_ptr<stream<T>> items, std::int64_t times)
      : passing<T>(std::move(items)), ended_(run, repeated_record), times_(times) {}

  awaitable<outcome> next() override {
    is_dry_ = false;
    for (int ends = 0;;) {
      if (ended_.takes_end_again()) co_return std::optional<T>();
      auto item = co_await this->items_->next();
      if (!item) co_return item;
      if (*item) {
        ended_.comes_again(**item);
        co_return item;
      }
      if (ended_.takes_end_in_front_again()) continue;
      is_dry_ = ++ends >= most_empty_epochs || this->items_->has_run_dry();
      if (++ended_.value < times_ && !is_dry_) continue;
      ended_.value = 0;
      ended_.end();
      co_return item;
    }
  }
  bool has_run_dry() const override { return is_dry_; }
  void save(state& to) const override {
    this->items_->save(to);
    item_count::save_own_ends(to);
    ended_.save(to);
  }
  void restore(const state& from) override {
    this->items_->restore(from);
    ended_.restore_whole(from);
    ended_.restore_own_ends(from);
  }

 private:
  item_count ended_;  // of the data's epochs, in this one
  std::int64_t times_;
  bool is_dry_ = false;
};

// Warns that next() of a slice waits for an end that never comes: shards are drawn forever.
void report_endless_epoch();

struct slice_bounds {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t step = 1;
};

template <class T>
class slice_stream final : public passing<T> {
 public:
  using outcome = typename stream<T>::outcome;
  slice_stream(run_context& run, std::unique_ptr<stream<T>> items, const slice_bounds& which)
      : passing<T>(std::move(items)),
        at_(run, slice_record),
        which_(which),
        never_ends_(run.place.drawn->is_endless() && !run.has_own_epochs) {}

  awaitable<outcome> next() override {
    for (;;) {
      auto item = co_await this->items_->next();
      if (!item) co_return item;
      if (!*item) {
        if (!at_.passes_end_again()) {
          at_.value = 0;
          at_.forget_again();
        }
        co_return item;
      }
      const std::int64_t i = at_.value;
      if (!at_.add(**item)) co_return item;
      if (i >= which_.begin && i < which_.end && (i - which_.begin) % which_.step == 0)
        co_return item;
      if (i >= which_.end && std::exchange(never_ends_, false)) report_endless_epoch();
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
  bool never_ends_;  // the epoch, unless a stage of the program's own ends it; not reported yet
};

}  // namespace detail

// A stage that makes epochs of `length` items each, whatever the data's own epochs are: each
// continues where the last one stopped. The last one ends when the data end, or have given no item
// in 100 epochs. Counts the items of this rank. Example: docs/from-webdataset.md.
struct epochs_of {
  std::int64_t length;  // items, at least 1
  // Throws `failure` (usage) for a length below 1.
  explicit epochs_of(std::int64_t n) : length(n) {
    if (n < 1) throw failure(error(errc::usage, "epochs of no items"));
  }

  template <class T>
  stage<T, T> for_items() const {
    return {.name = "epochs_of",
            .wrap = [n = length](run_context& run,
                                 std::unique_ptr<stream<T>> items) -> std::unique_ptr<stream<T>> {
              return std::make_unique<detail::epochs_of_stream<T>>(run, std::move(items), n);
            },
            .announce =
                [](downstream_needs& needs) {
                  if (needs.batches) needs.batches->ends_moved = true;
                },
            .keeps_order = true};
  }
};

// A stage that makes an epoch of `times` consecutive epochs of the data, or of fewer if 100 of them
// in a row have given no item.
struct repeated {
  std::int64_t times;  // at least 1
  // Throws `failure` (usage) for a number below 1.
  explicit repeated(std::int64_t n) : times(n) {
    if (n < 1) throw failure(error(errc::usage, "epochs of no epochs"));
  }

  template <class T>
  stage<T, T> for_items() const {
    return {.name = "repeated",
            .wrap = [n = times](run_context& run,
                                std::unique_ptr<stream<T>> items) -> std::unique_ptr<stream<T>> {
              return std::make_unique<detail::repeated_stream<T>>(run, std::move(items), n);
            },
            .keeps_order = true};
  }
};

// A stage that passes every step-th of the items [begin, end) of each epoch. It reads on to the
// epoch's end: before it, make epochs of shards that are drawn forever (epoch_mode::resample) by
// epochs_of().
struct slice {
  detail::slice_bounds which;  // as given
  // Throws `failure` (usage) unless 0 <= begin <= end and step >= 1.
  slice(std::int64_t begin, std::int64_t end, std::int64_t step = 1) : which{begin, end, step} {
    if (begin < 0 || end < begin || step < 1) throw failure(error(errc::usage, "no such slice"));
  }

  template <class T>
  stage<T, T> for_items() const {
    return {.name = "slice",
            .wrap = [w = which](run_context& run,
                                std::unique_ptr<stream<T>> items) -> std::unique_ptr<stream<T>> {
              return std::make_unique<detail::slice_stream<T>>(run, std::move(items), w);
            },
            .keeps_order = true};
  }
};

}  // namespace millrace
