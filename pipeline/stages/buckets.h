#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "pipeline/stages/batched.h"
#include "pipeline/state/records.h"

namespace millrace {

// A class of items of similar size.
struct bucket {
  std::int64_t up_to = 0;  // the largest measure that it takes
  std::size_t size = 1;    // items of a batch, at least 1
};

namespace detail {

// The first bucket that takes an item of this size. Fails with too_large, skippable.
result<std::size_t> bucket_for(const std::vector<bucket>& buckets, std::int64_t size);
// Throws `failure` (usage) for buckets that do not ascend, or that take nothing.
void check_buckets(const std::vector<bucket>& buckets);

template <class T>
class bucketed_stream final : public stream<group_of<T>> {
 public:
  using outcome = typename stream<group_of<T>>::outcome;
  using function = std::function<std::int64_t(const T&)>;
  bucketed_stream(run_context& run, std::unique_ptr<stream<T>> items, function measure,
                  std::vector<bucket> buckets, bool partial)
      : run_(run),
        items_(std::move(items)),
        memory_(run, "bucketed"),
        measure_(std::move(measure)),
        buckets_(std::move(buckets)),
        partial_(partial),
        held_(buckets_.size()) {}

  awaitable<outcome> next() override {
    aside_.clear();  // of an item that failed
    for (;;) {
      if (ended_) co_return take_rest();
      auto item = co_await items_->next();
      if (!item) co_return item.error();
      ended_ = !*item;
      if (ended_) continue;
      const std::int64_t much = measure_(**item);
      const auto fits = bucket_for(buckets_, much);
      if (!fits) co_return fits.error();
      append_origins(aside_, **item);
      auto kept = co_await memory_.keep(std::move(**item));
      if (!kept) co_return kept.error();
      group_of<T>& group = held_[*fits];
      group.items.push_back(std::move(*kept));
      aside_.clear();
      if (group.size() == buckets_[*fits].size) co_return take(group);
    }
  }
  void leave_failed() override {
    aside_.clear();
    items_->leave_failed();
  }
  void save(state& to) const override {
    items_->save(to);
    std::vector<origin> held;
    for (const group_of<T>& group : held_) append_origins(held, group);
    held.insert(held.end(), aside_.begin(), aside_.end());
    to.hold(pending_record, held);
    if (ended_) to.append(end_owed_record, state::record{1});
  }
  void restore(const state& from) override { items_->restore(from); }

 private:
  outcome take(group_of<T>& group) {
    memory_.passed_on(group.items);
    return std::optional(std::exchange(group, {}));
  }
  outcome take_rest() {
    for (group_of<T>& group : held_) {
      if (group.size() == 0) continue;
      auto rest = take(group);
      if (partial_) return rest;
      run_.counts.dropped += (*rest)->size();
    }
    ended_ = false;
    return std::optional<group_of<T>>();
  }

  run_context& run_;
  std::unique_ptr<stream<T>> items_;
  collected_memory<T> memory_;
  function measure_;
  std::vector<bucket> buckets_;
  bool partial_;
  std::vector<group_of<T>> held_;  // one for each bucket, less than full
  std::vector<origin> aside_;      // of an item that is about to be held
  bool ended_ = false;
};

}  // namespace detail

// A stage that makes batches of items of similar size. `measure` returns the size of an item
// (pixels, tokens, bytes), which waits for others in the first bucket that takes this size. A batch
// comes when its bucket is full; at the end of an epoch the rest comes, smallest bucket first, or
// is dropped if not `partial`. An item without a bucket is an error (too_large, skippable).
// `measure` is called on the I/O thread, and must be pure.
template <class F>
struct bucketed {
  F measure;                    // std::int64_t(const item&)
  std::vector<bucket> buckets;  // ascending
  bool partial;                 // keep batches that an epoch's end cuts short

  // Throws `failure` (usage) for buckets that do not ascend, or that take nothing.
  bucketed(F f, std::vector<bucket> which, bool keep_partial = true)
      : measure(std::move(f)), buckets(std::move(which)), partial(keep_partial) {
    detail::check_buckets(buckets);
  }

  template <class T>
  stage<T, group_of<T>> for_items() const {
    return {"bucketed",
            [b = *this](run_context& run,
                        std::unique_ptr<stream<T>> items) -> std::unique_ptr<stream<group_of<T>>> {
              return std::make_unique<detail::bucketed_stream<T>>(run, std::move(items), b.measure,
                                                                  b.buckets, b.partial);
            },
            [all = buckets](downstream_needs& needs) {
              std::size_t gathered = 0;
              std::size_t largest = 0;
              for (const bucket& one : all) {
                gathered += one.size;
                if (one.size > largest) largest = one.size;
              }
              detail::announce_groups<T>(needs, gathered, largest);
            }};
  }
};

}  // namespace millrace
