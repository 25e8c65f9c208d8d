#pragma once

#include <concepts>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "engine/host/ticks.h"
#include "pipeline/plan/run_context.h"
#include "pipeline/plan/stream.h"
#include "pipeline/state/records.h"

namespace millrace {

// A plan describes a pipeline; it does no I/O and may be copied and run any number of times.
//
//   lane_plan<T>  the stages that run once per lane (shards ... shuffle)
//   plan<T>       the later stages, where the lanes are one stream
//
// `plan | stage` appends a stage. A lane_plan becomes a plan at the first stage that is not per
// lane.

struct shard_list_options;

// Declarations of a lane's stages, for later stages and for samples that are read again.
struct lane_traits {
  std::vector<lane_dealer> records = {};             // of all stages
  std::shared_ptr<const sample_source> format = {};  // of the head; null: it names none
  std::vector<sample_function> sample_stages = {};   // in order
  bool is_shuffled = false;                          // by a shuffle()
  bool reads_ahead = false;         // as lane_stage::reads_ahead, also in a source of a mix
  bool leaves_samples_out = false;  // as lane_context::leaves_samples_out
  bool is_joinable = false;         // the last stage is read_samples(), or a join() after it
  std::size_t joins = 0;            // number of join() stages

  // Lane `lane` of `lanes` of all ranks, of which this rank has `lanes_here`.
  std::unique_ptr<lane_context> lane_of(run_context& run, std::int64_t lane, std::size_t lanes,
                                        std::size_t lanes_here) const;
};

// The stages that run once for each lane: shards() and what follows, up to the first stage that is
// not per lane. Append stages by '|'; run it by engine::run(). A value; any thread.
template <class T>
struct lane_plan {
  using value_type = T;
  std::function<std::unique_ptr<stream<T>>(lane_context&)> make;  // null: an empty plan
  std::shared_ptr<const std::vector<std::string>> shards;         // URLs, in the order of the list
  std::shared_ptr<const shard_list_options> options;              // of shards()
  lane_traits traits = {};                                        // of its stages
};

// A pipeline of which the lanes are one stream. Append stages by '|'; run it by engine::run() any
// number of times. A value; any thread. Examples: examples/epoch.cc, docs/embedding.md.
template <class T>
struct plan {
  using value_type = T;
  std::function<std::unique_ptr<stream<T>>(run_context&)> make;  // null: an empty plan
};

// A stage that runs once for each lane. Append it to a lane_plan by '|': docs/stages.md.
template <class In, class Out>
struct lane_stage {
  using input = In;
  using output = Out;
  std::string name;  // in statistics and errors
  // Makes the stream of a lane after that of the stage before. Called for each lane and run, before
  // the first next(); it may claim memory of the run's plan. Returning null is an error (usage).
  std::function<std::unique_ptr<stream<Out>>(lane_context&, std::unique_ptr<stream<In>>)> wrap;
  // As stage::takes_ahead.
  bool takes_ahead = false;
  // Promises that it gives samples as the format has them: some of them, in any order. After a
  // resume, those that later stages held are read again by their places, and do not pass this
  // stage. A plan refuses a stage without this promise: change samples in a sample_stage, which
  // they pass again, or in the format.
  bool unchanged = false;
  // The records that it saves of its lane. A state with other records, or with one that cannot be
  // redistributed, does not resume with another number of lanes.
  std::vector<lane_dealer> records = {};
  // It keeps samples that it has read ahead in the lane's memory: no shuffle() may follow.
  bool reads_ahead = false;
  // Set by a head, which reads shards: reads again the samples that later stages held when a state
  // was saved. Null: such a state cannot be resumed.
  std::shared_ptr<const sample_source> format = {};
  // Set by read_samples(): reads by lane_context::format, which join() replaces.
  bool is_joinable = false;
};

// A stage after the lanes. Append it to a plan by '|'. Examples: examples/own_stage.cc,
// docs/stages.md.
template <class In, class Out>
struct stage {
  using input = In;
  using output = Out;
  std::string name;  // in statistics and errors
  // Makes the stream after that of the stage before. Called for each run, before the first next();
  // it may claim memory of the run's plan. Returning null is an error (usage).
  std::function<std::unique_ptr<stream<Out>>(run_context&, std::unique_ptr<stream<In>>)> wrap;
  // Called before the earlier stages are made, to add the needs of this one.
  std::function<void(downstream_needs&)> announce = nullptr;
  // Promises that it passes items on in order, each at most once, and unchanged.
  bool keeps_order = false;
  // It saves states that it took earlier of the stages before it, rather than their present ones:
  // an item with which it fails is in them.
  bool saves_snapshots = false;
  // It takes items while others are under way, and names the one that fails in its errors itself.
  // For other stages that is the item taken last.
  bool takes_ahead = false;
};

struct sample;
// Lanes interleaved sample by sample (pipeline/stages/lanes.h).
plan<sample> interleaved(lane_plan<sample> lanes);

namespace detail {

// Whether items of this type know the samples that they were made of.
template <class T>
constexpr bool tells_origins() {
  if constexpr (requires(const T& item) { item.items; }) {
    return tells_origins<typename std::remove_cvref_t<decltype(T::items)>::value_type>();
  } else if constexpr (requires(const T& item) { item.origins; }) {
    return true;
  } else {
    return requires(const T& item) { static_cast<const origin&>(item.where); };
  }
}

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

// The names by which errors call an item: its key and its URL, if it has them.
struct item_name {
  std::string key;
  std::shared_ptr<const std::string> url;

  template <class T>
  void note(const T& item) {
    if constexpr (requires {
                    { item.key } -> std::convertible_to<std::string_view>;
                  }) {
      key = item.key;
    }
    if constexpr (requires { url = item.url; }) url = item.url;
  }
  // The error of what failed with the item, completed by the item's names. A stop concerns no item.
  // Without the memory for the names, the error as it is.
  error named(error why) const noexcept;
  // The same for what most probably failed with the item: unchanged if it names another one.
  error named_unless_of_another(error why) const noexcept;
};

// Items that a stage has given since it was last asked.
struct handed_on {
  std::vector<origin> origins;
  item_name name;                                    // of the item
  std::function<void(state&)> save_giver = nullptr;  // that stage's state, with those before

  template <class T>
  void note(const T& item) {
    if constexpr (tells_origins<T>()) append_origins(origins, item);
    name.note(item);
  }
  void clear() {
    origins.clear();
    name = {};
  }
};

// Returns what a function of the program returns; an exception of it is thrown as a `failure`.
template <class F>
auto called_as(const std::string& who, F f) {
  try {
    return f();
  } catch (...) {
    throw failure(error_of(std::current_exception(), who));
  }
}

// Wraps every stage. Counts what passes; turns what the stage throws, in its own code or what that
// calls, into its error (in save() and restore() as well, where the stage that threw is named,
// whatever follows it); names in errors the item that the stage took last; and keeps promises of
// stream.h about errors that the stage itself may not:
//   - an error that is not skippable is given again when the stage is asked again;
//   - a run that is stopped says so to the consumer, even if nothing that it asks for waits;
//   - the item with which a stage failed is in the state until the stage is asked again;
//   - a stage that had no memory saves no state: the item in hand may be in none.
template <class T>
class metered final : public stream<T> {
 public:
  // `takes_ahead`: as stage::takes_ahead. `within`: the beginning of the names of the lane's
  // records; empty after the lanes.
  metered(std::unique_ptr<stream<T>> inner, const run_context& run,
          run_context::stage_figures& figures, std::shared_ptr<handed_on> taken, bool takes_ahead,
          std::string within)
      : inner_(std::move(inner)),
        stop_asked_(run.stop_asked),
        figures_(figures),
        taken_(std::move(taken)),
        names_items_(taken_ != nullptr && !takes_ahead),
        within_(std::move(within)) {
    given_->save_giver = [this](state& to) { save(to); };
  }
  ~metered() override { given_->save_giver = nullptr; }
  metered(const metered&) = delete;
  metered& operator=(const metered&) = delete;

  const std::shared_ptr<handed_on>& given() const { return given_; }

  // The consumer is done with what was given last, even if a stop comes before this begins.
  awaitable<typename stream<T>::outcome> next() override {
    if (!broken_) {
      metered::leave_failed();
      if (taken_) taken_->clear();
      given_->clear();
    }
    return next_item();
  }
  void save(state& to) const override {
    if (lost_) throw failure(*broken_);
    const bool tells_taken = failed_ && taken_ && !taken_->origins.empty();
    // What other sources of a mix hold, which is in `to` already, says nothing about what was taken
    // here: each numbers its shards on its own.
    state own;
    state& into = tells_taken ? own : to;
    called_as("the stage '" + figures_.name + "'", [&] { inner_->save(into); });
    if (!tells_taken) return;
    for (const origin& o : taken_->origins) {
      if (!holds_taken(own, o)) own.hold(pending_record, {&o, 1});
    }
    to.append(own);
  }
  void restore(const state& from) override {
    called_as("the stage '" + figures_.name + "'", [&] { inner_->restore(from); });
  }
  bool has_run_dry() const override { return inner_->has_run_dry(); }
  bool has_item_ready() const override { return !failed_ && inner_->has_item_ready(); }
  std::shared_ptr<const ledger> kept_counts() const override { return inner_->kept_counts(); }
  std::shared_ptr<const state> kept_state() const override {
    return broken_ ? nullptr : inner_->kept_state();
  }
  void leave_failed() override {
    if (broken_ || !std::exchange(failed_, false)) return;
    if (taken_) taken_->clear();
    inner_->leave_failed();
  }

 private:
  // Whether the stage itself has in `own` what it took. What the stages before it hold is another
  // draw of the same sample: they have given this one away.
  bool holds_taken(const state& own, const origin& taken) const {
    const std::size_t held = own.count_held(taken, within_);
    if (held == 0 || !taken_->save_giver) return held > 0;
    state front;
    taken_->save_giver(front);
    return held > front.count_held(taken, within_);
  }

  awaitable<typename stream<T>::outcome> next_item() {
    if (broken_) co_return *broken_;
    if (stop_asked_.load(std::memory_order_relaxed)) co_return run_stopped();
    const std::uint64_t start = ticks();
    ++figures_.open;
    figures_.opened += start;
    typename stream<T>::outcome item = std::optional<T>();
    std::exception_ptr thrown;
    try {
      item = co_await inner_->next();
      if (item && *item) given_->note(**item);
    } catch (...) {
      thrown = std::current_exception();
    }
    failed_ = thrown || !item;
    if (thrown && is_stop(thrown)) {
      item = co_await error_unless_stopped(std::move(thrown), "the stage '" + figures_.name + "'");
    } else if (thrown) {
      lost_ = true;  // until that is reported, for which there may be no memory either
      broken_ = out_of_memory();
      error why = error_of(thrown, "the stage '" + figures_.name + "'");
      lost_ = why.kind() == errc::no_memory;
      broken_.reset();
      item = std::move(why);
    }
    if (!item && names_items_) item = taken_->name.named_unless_of_another(item.error());
    --figures_.open;
    figures_.opened -= start;
    figures_.served += ticks() - start;
    if (!item) {
      if (!item.error().is_skippable()) broken_ = item.error();
    } else if (*item) {
      ++figures_.items;
      figures_.bytes += payload_of(**item);
    }
    co_return item;
  }

  std::unique_ptr<stream<T>> inner_;
  const std::atomic<bool>& stop_asked_;
  run_context::stage_figures& figures_;
  std::shared_ptr<handed_on> taken_;  // by the stage, from the one before; null: unknown
  bool names_items_;                  // an error concerns the item taken last
  std::string within_;
  std::shared_ptr<handed_on> given_ = std::make_shared<handed_on>();
  std::optional<error> broken_;  // given again when asked again
  bool failed_ = false;          // the last call of next()
  bool lost_ = false;            // the stage had no memory
};

template <class T>
std::unique_ptr<stream<T>> measured(run_context& run, const std::string& name,
                                    std::unique_ptr<stream<T>> made,
                                    std::shared_ptr<handed_on> taken = nullptr,
                                    bool takes_ahead = false, std::string within = {}) {
  if (made == nullptr) {
    throw failure(error(errc::usage, "the stage '" + name + "' made no stream")
                      .hint("return a stream from its wrap, or leave the stage out"));
  }
  return std::make_unique<metered<T>>(std::move(made), run, run.figures(name), std::move(taken),
                                      takes_ahead, std::move(within));
}

// The stage `back` after `front`, both in `where`: a lane_context or a run_context.
template <class Out, class Front, class Back, class Context>
std::unique_ptr<stream<Out>> joined(run_context& run, const Front& front, const Back& back,
                                    Context& where) {
  using input = typename Back::input;
  std::unique_ptr<stream<input>> items = front(where);
  std::shared_ptr<handed_on> taken;
  if (const auto* told = dynamic_cast<const metered<input>*>(items.get())) taken = told->given();
  if constexpr (requires { back.saves_snapshots; }) {
    if (back.saves_snapshots) taken = nullptr;
  }
  auto made = called_as("the stage '" + back.name + "'",
                        [&] { return back.wrap(where, std::move(items)); });
  std::string within;
  if constexpr (requires { where.within; }) within = where.id("");
  return measured<Out>(run, back.name, std::move(made), std::move(taken), back.takes_ahead,
                       std::move(within));
}

// Throws `failure` (usage) if not.
void check_not_empty(bool has_plan);

error may_change_samples(const std::string& stage);
// A function of the program gave an item with the origin of another one.
error has_other_origin();

template <class T, class Out>
lane_plan<Out> append(lane_plan<T> front, lane_stage<T, Out> back) {
  check_not_empty(front.make != nullptr);
  if (!back.unchanged) throw failure(may_change_samples(back.name));
  auto traits = std::move(front.traits);
  check_records_apart(traits.records, back.records, back.name);
  traits.records.insert(traits.records.end(), back.records.begin(), back.records.end());
  if (back.format) traits.format = back.format;
  traits.is_joinable = back.is_joinable;
  traits.reads_ahead = traits.reads_ahead || back.reads_ahead;
  auto make = [front = std::move(front.make), back = std::move(back)](lane_context& lane) {
    return joined<Out>(lane.run, front, back, lane);
  };
  return {std::move(make), std::move(front.shards), std::move(front.options), std::move(traits)};
}

template <class T, class Out>
plan<Out> append(plan<T> front, stage<T, Out> back) {
  check_not_empty(front.make != nullptr);
  return {[front = std::move(front.make), back = std::move(back)](run_context& run) {
    downstream_needs& needs = run.downstream;
    ++needs.stages;
    if (!back.keeps_order && needs.batches) needs.batches->in_order = false;
    if (back.announce) {
      called_as("the stage '" + back.name + "'", [&] { return back.announce(needs); });
    }
    return joined<Out>(run, front, back, run);
  }};
}

template <class T, class Out>
plan<Out> append(lane_plan<T> front, stage<T, Out> back) {
  return append(interleaved(std::move(front)), std::move(back));
}

template <class P>
concept any_plan = requires { typename P::value_type; };
template <class S>
concept any_stage = requires {
  typename S::input;
  typename S::output;
};

}  // namespace detail

// Appends a stage. Does not compile if the stage does not take what the plan yields; throws
// `failure` (usage) for an empty plan and for a lane_stage without `unchanged`.
template <detail::any_plan P, detail::any_stage S>
auto operator|(P front, S back) {
  constexpr bool fits = std::is_same_v<typename P::value_type, typename S::input>;
  static_assert(fits, "this stage does not take what the plan in front of it yields");
  constexpr bool joins = requires { detail::append(std::move(front), std::move(back)); };
  static_assert(joins || !fits,
                "this stage works on each lane, as shuffle() does: put it in front of the first "
                "stage after the lanes (map, decode_jpeg, batch, prefetch, ...)");
  if constexpr (fits && joins) {
    return detail::append(std::move(front), std::move(back));
  } else {
    return plan<typename S::output>{};
  }
}

// Appends a stage for items of any type (map, on_error, prefetch, ...), for the items of the plan.
template <detail::any_plan P, class G>
  requires requires(G g) { g.template for_items<typename P::value_type>(); }
auto operator|(P front, const G& generic) {
  return std::move(front) | generic.template for_items<typename P::value_type>();
}

}  // namespace millrace
