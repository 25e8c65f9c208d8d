#pragma once

#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "engine/ticks.h"
#include "pipeline/run_context.h"
#include "pipeline/stream.h"

namespace millrace {

// A plan describes a pipeline; it does no I/O and may be copied and run any number of times.
//
//   lane_plan<T>  the stages that run once per lane (shards ... shuffle)
//   plan<T>       the stages behind, where the lanes are one stream
//
// `plan | stage` appends a stage. A lane_plan becomes a plan at the first stage that is not per
// lane.

struct shard_list_options;

template <class T>
struct lane_plan {
  using value_type = T;
  std::function<std::unique_ptr<stream<T>>(lane_context&)> make;
  std::shared_ptr<const std::vector<std::string>> shards;
  std::shared_ptr<const shard_list_options> options;
};

template <class T>
struct plan {
  using value_type = T;
  std::function<std::unique_ptr<stream<T>>(run_context&)> make;
};

template <class In, class Out>
struct lane_stage {
  using input = In;
  using output = Out;
  std::string name;
  std::function<std::unique_ptr<stream<Out>>(lane_context&, std::unique_ptr<stream<In>>)> wrap;
};

template <class In, class Out>
struct stage {
  using input = In;
  using output = Out;
  std::string name;
  std::function<std::unique_ptr<stream<Out>>(run_context&, std::unique_ptr<stream<In>>)> wrap;
  // Called before the stages in front are made, to tell them what this one needs.
  std::function<void(run_context&)> announce = nullptr;
};

// Lanes interleaved sample by sample (pipeline/lanes.h).
struct sample;
plan<sample> interleaved(lane_plan<sample> lanes);

namespace detail {

// Counts what passes through a stage.
template <class T>
class metered final : public stream<T> {
 public:
  metered(std::unique_ptr<stream<T>> inner, run_context::stage_figures& figures)
      : inner_(std::move(inner)), figures_(figures) {}

  awaitable<typename stream<T>::outcome> next() override {
    const std::uint64_t start = ticks();
    auto item = co_await inner_->next();
    figures_.served += ticks() - start;
    if (item && *item) {
      ++figures_.items;
      figures_.bytes += payload_of(**item);
    }
    co_return item;
  }
  void save(state& to) const override { inner_->save(to); }
  void restore(const state& from) override { inner_->restore(from); }

 private:
  std::unique_ptr<stream<T>> inner_;
  run_context::stage_figures& figures_;
};

template <class T>
std::unique_ptr<stream<T>> measured(run_context& run, const std::string& name,
                                    std::unique_ptr<stream<T>> made) {
  return std::make_unique<metered<T>>(std::move(made), run.figures(name));
}

template <class T, class Out>
lane_plan<Out> append(lane_plan<T> front, lane_stage<T, Out> back) {
  auto make = [front = std::move(front.make), back = std::move(back)](lane_context& lane) {
    auto input = front(lane);
    return measured(lane.run, back.name, back.wrap(lane, std::move(input)));
  };
  return {std::move(make), std::move(front.shards), std::move(front.options)};
}

template <class T, class Out>
plan<Out> append(plan<T> front, stage<T, Out> back) {
  return {[front = std::move(front.make), back = std::move(back)](run_context& run) {
    if (back.announce) back.announce(run);
    auto input = front(run);
    return measured(run, back.name, back.wrap(run, std::move(input)));
  }};
}

template <class T, class Out>
plan<Out> append(lane_plan<T> front, stage<T, Out> back) {
  return append(interleaved(std::move(front)), std::move(back));
}

template <class P>
concept any_plan = requires(P p) {
  typename P::value_type;
  p.make;
};
template <class S>
concept any_stage = requires(S s) {
  typename S::input;
  typename S::output;
  s.wrap;
};

}  // namespace detail

template <detail::any_plan P, detail::any_stage S>
auto operator|(P front, S back) {
  constexpr bool fits = std::is_same_v<typename P::value_type, typename S::input>;
  static_assert(fits, "this stage does not take what the plan in front of it yields");
  if constexpr (fits) {
    return detail::append(std::move(front), std::move(back));
  } else {
    return plan<typename S::output>{};
  }
}

// Stages for items of any kind, made for what the plan in front yields.
template <detail::any_plan P, class G>
  requires requires(G g) { g.template for_items<typename P::value_type>(); }
auto operator|(P front, const G& generic) {
  return std::move(front) | generic.template for_items<typename P::value_type>();
}

}  // namespace millrace
