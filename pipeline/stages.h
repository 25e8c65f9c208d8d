#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "engine/offload.h"
#include "pipeline/lanes.h"
#include "pipeline/plan.h"

namespace millrace {

// Stages for items of any kind. Each saves and restores: what it holds goes back to its lane as
// origins, so items that a stage holds must tell where they come from (a member `where`).

// Items in a row, from batched(). Held by nothing but itself.
template <class T>
struct group_of {
  std::vector<T> items;

  std::size_t size() const { return items.size(); }
  auto begin() const { return items.begin(); }
  auto end() const { return items.end(); }
};

namespace detail {

// The samples that an item was made of.
template <class T>
void append_origins(std::vector<origin>& to, const T& item) {
  if constexpr (requires { item.items; }) {
    for (const auto& i : item.items) append_origins(to, i);
  } else if constexpr (requires { item.origins; }) {
    to.insert(to.end(), item.origins.begin(), item.origins.end());
  } else {
    to.push_back(item.where);
  }
}

// What a user's function may return, as what a stream passes on: an item, an item or nothing (the
// sample is left out), or an error.
template <class R>
struct mapped {
  using type = R;
  static result<std::optional<R>> of(R&& r) { return std::optional<R>(std::forward<R>(r)); }
};
template <class R>
struct mapped<std::optional<R>> {
  using type = R;
  static result<std::optional<R>> of(std::optional<R>&& r) { return std::move(r); }
};
template <class R>
struct mapped<result<R>> {
  using type = R;
  static result<std::optional<R>> of(result<R>&& r) {
    if (!r) return r.error();
    return std::optional<R>(std::move(*r));
  }
};
template <class R>
struct mapped<result<std::optional<R>>> {
  using type = R;
  static result<std::optional<R>> of(result<std::optional<R>>&& r) { return std::move(r); }
};

// A stream in front and nothing held: what most stages are.
template <class T>
class passing : public stream<T> {
 public:
  explicit passing(std::unique_ptr<stream<T>> items) : items_(std::move(items)) {}
  void save(state& to) const override { items_->save(to); }
  void restore(const state& from) override { items_->restore(from); }

 protected:
  std::unique_ptr<stream<T>> items_;
};

}  // namespace detail

struct map_options {
  // Threads of the CPU pool that call the function, side by side; it must be safe to call so. 0:
  // the I/O thread calls it, which suits what takes microseconds.
  int threads = 0;
  bool ordered = true;  // false: results come as they are ready
};

namespace detail {

template <class In, class Out>
class map_stream final : public stream<Out> {
  using function = std::function<result<std::optional<Out>>(In)>;
  struct job {
    std::vector<origin> origins;
    std::optional<result<std::optional<Out>>> done;
    bool ends_epoch = false;
  };
  // What the stream shares with the coroutines that it has spawned.
  struct shared {
    shared(run_context& r, function f, const map_options& o)
        : run(r), what(std::move(f)), options(o), changed(r.io.executor()) {}
    run_context& run;
    function what;
    map_options options;
    std::deque<std::shared_ptr<job>> jobs;  // in the order of their items
    bool ended = false;
    bool epoch_held = false;
    condition changed;
  };

 public:
  using outcome = typename stream<Out>::outcome;

  map_stream(run_context& run, std::unique_ptr<stream<In>> items, function what,
             const map_options& options)
      : items_(std::move(items)),
        shared_(std::make_shared<shared>(run, std::move(what), options)) {}

  awaitable<outcome> next() override {
    shared& s = *shared_;
    if (!started_) {
      started_ = true;
      pump_ = s.run.tasks.spawn_stoppable(pump(shared_, items_.get()));
    }
    for (;;) {
      const auto ready =
          std::ranges::find_if(s.jobs, [](const auto& j) { return j->done.has_value(); });
      // The end of an epoch stands behind all that is before it.
      const bool is_turn = ready != s.jobs.end() && (ready == s.jobs.begin() ||
                                                     (!s.options.ordered && !(*ready)->ends_epoch));
      if (!is_turn && s.jobs.empty() && broken_) co_return *broken_;
      if (!is_turn) {
        co_await s.changed.wait();
        continue;
      }
      const auto j = *ready;
      s.jobs.erase(ready);
      if (j->ends_epoch) s.epoch_held = false;
      s.changed.notify_all();
      if (!*j->done) {
        if (!j->done->error().is_skippable()) broken_ = j->done->error();
        co_return j->done->error();
      }
      if (j->ends_epoch || **j->done) co_return std::move(**j->done);
    }
  }

  void save(state& to) const override {
    items_->save(to);
    for (const auto& j : shared_->jobs) to.hold(pending_record, j->origins);
    if (shared_->epoch_held) to.append(end_owed_record, state::record{1});
  }
  void restore(const state& from) override { items_->restore(from); }

 private:
  static awaitable<void> run_job(std::shared_ptr<shared> s, std::shared_ptr<job> j,
                                 std::shared_ptr<In> item) {
    const auto work = [s, item] { return s->what(std::move(*item)); };
    try {
      j->done = co_await offload(s->run.io, s->run.threads.cpu(), work);
    } catch (const failure& f) {
      j->done = f.why();
    } catch (const std::exception& e) {
      j->done = error(errc::internal, e.what()).skippable();
    }
    s->changed.notify_all();
  }

  static awaitable<void> pump(std::shared_ptr<shared> s, stream<In>* items) {
    const auto window = static_cast<std::size_t>(s->options.threads) * 2;
    while (!s->ended) {
      while (s->jobs.size() >= window || s->epoch_held) co_await s->changed.wait();
      auto next = co_await items->next();
      auto j = std::make_shared<job>();
      s->jobs.push_back(j);
      if (!next) {
        s->ended = !next.error().is_skippable();
        j->done = next.error();
      } else if (!*next) {
        j->ends_epoch = s->epoch_held = true;
        j->done = result<std::optional<Out>>(std::optional<Out>());
      } else {
        append_origins(j->origins, **next);
        s->run.tasks.spawn(run_job(s, j, std::make_shared<In>(std::move(**next))));
        continue;
      }
      s->changed.notify_all();
    }
  }

  std::unique_ptr<stream<In>> items_;
  std::shared_ptr<shared> shared_;
  std::optional<error> broken_;
  scope::task pump_;
  bool started_ = false;
};

template <class In, class Out>
class direct_map final : public stream<Out> {
 public:
  using outcome = typename stream<Out>::outcome;
  using function = std::function<result<std::optional<Out>>(In)>;

  direct_map(std::unique_ptr<stream<In>> items, function what)
      : items_(std::move(items)), what_(std::move(what)) {}
  awaitable<outcome> next() override {
    for (;;) {
      auto item = co_await items_->next();
      if (!item) co_return item.error();
      if (!*item) co_return std::optional<Out>();
      auto made = call(std::move(**item));
      if (!made || *made) co_return made;
    }
  }
  void save(state& to) const override { items_->save(to); }
  void restore(const state& from) override { items_->restore(from); }

 private:
  outcome call(In item) {
    try {
      return what_(std::move(item));
    } catch (const failure& f) {
      return f.why();
    }
  }

  std::unique_ptr<stream<In>> items_;
  function what_;
};

}  // namespace detail

// Calls `what` with each item: what it returns goes on, an empty optional leaves the item out, a
// result's error fails it (skippable, where it says so). Exceptions of `failure` are such errors.
template <class F>
struct map {
  F what;
  map_options options;
  explicit map(F f, const map_options& o = {}) : what(std::move(f)), options(o) {}

  template <class In>
  auto for_items() const {
    using returned = std::invoke_result_t<const F&, In>;
    using out = typename detail::mapped<returned>::type;
    using function = std::function<result<std::optional<out>>(In)>;
    const function call = [f = what](In item) {
      return detail::mapped<returned>::of(f(std::move(item)));
    };
    return stage<In, out>{
        "map",
        [call, o = options](run_context& run,
                            std::unique_ptr<stream<In>> items) -> std::unique_ptr<stream<out>> {
          if (o.threads == 0) {
            return std::make_unique<detail::direct_map<In, out>>(std::move(items), call);
          }
          return std::make_unique<detail::map_stream<In, out>>(run, std::move(items), call, o);
        }};
  }
};

namespace detail {

template <class T>
class batched_stream final : public stream<group_of<T>> {
 public:
  using outcome = typename stream<group_of<T>>::outcome;
  batched_stream(run_context& run, std::unique_ptr<stream<T>> items, std::size_t size, bool partial)
      : run_(run), items_(std::move(items)), size_(size), partial_(partial) {}

  awaitable<outcome> next() override {
    while (held_.items.size() < size_ && !ended_) {
      auto item = co_await items_->next();
      if (!item) co_return item.error();
      ended_ = !*item;
      if (*item) held_.items.push_back(std::move(**item));
    }
    if (ended_ && !partial_ && held_.items.size() < size_) {
      run_.counts.dropped += held_.items.size();
      held_.items.clear();
    }
    if (!held_.items.empty()) co_return std::optional(std::exchange(held_, {}));
    ended_ = false;
    co_return std::optional<group_of<T>>();
  }
  void save(state& to) const override {
    items_->save(to);
    std::vector<origin> held;
    append_origins(held, held_);
    to.hold(pending_record, held);
    to.put("batched", {ended_ ? 1 : 0});
  }
  void restore(const state& from) override {
    items_->restore(from);
    const auto* r = from.find("batched");
    ended_ = r != nullptr && !r->empty() && r->front() != 0;
  }

 private:
  run_context& run_;
  std::unique_ptr<stream<T>> items_;
  std::size_t size_;
  bool partial_;
  group_of<T> held_;
  bool ended_ = false;
};

template <class T>
class unbatched_stream final : public stream<T> {
 public:
  using outcome = typename stream<T>::outcome;
  explicit unbatched_stream(std::unique_ptr<stream<group_of<T>>> groups)
      : groups_(std::move(groups)) {}

  awaitable<outcome> next() override {
    while (held_.empty()) {
      auto more = co_await groups_->next();
      if (!more) co_return more.error();
      if (!*more) co_return std::optional<T>();
      for (T& item : (*more)->items) held_.push_back(std::move(item));
    }
    std::optional<T> out(std::move(held_.front()));
    held_.pop_front();
    co_return out;
  }
  void save(state& to) const override {
    groups_->save(to);
    std::vector<origin> held;
    for (const T& item : held_) append_origins(held, item);
    to.hold(pending_record, held);
  }
  void restore(const state& from) override { groups_->restore(from); }

 private:
  std::unique_ptr<stream<group_of<T>>> groups_;
  std::deque<T> held_;
};

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

// `size` items in a row, the last ones of an epoch fewer, or dropped where not `partial`.
struct batched {
  std::size_t size;
  bool partial;
  explicit batched(std::size_t n, bool keep_partial = true) : size(n), partial(keep_partial) {
    if (n == 0) throw failure(error(errc::usage, "batches of no items"));
  }

  template <class T>
  stage<T, group_of<T>> for_items() const {
    return {"batched",
            [b = *this](run_context& run,
                        std::unique_ptr<stream<T>> items) -> std::unique_ptr<stream<group_of<T>>> {
              return std::make_unique<detail::batched_stream<T>>(run, std::move(items), b.size,
                                                                 b.partial);
            }};
  }
};

// The items of groups, one by one.
struct unbatched {
  template <class G>
  auto for_items() const {
    using item = typename decltype(G::items)::value_type;
    return stage<G, item>{
        "unbatched",
        [](run_context& /*run*/,
           std::unique_ptr<stream<G>> groups) -> std::unique_ptr<stream<item>> {
          return std::make_unique<detail::unbatched_stream<item>>(std::move(groups));
        }};
  }
};

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
