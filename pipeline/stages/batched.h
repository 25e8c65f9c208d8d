#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "pipeline/pixels/image.h"
#include "pipeline/plan/compacted.h"
#include "pipeline/plan/plan.h"
#include "pipeline/state/records.h"

namespace millrace {

// Consecutive items in one, from batched() and bucketed().
template <class T>
struct group_of {
  std::vector<T> items;  // in order, at least one

  // The number of items.
  std::size_t size() const { return items.size(); }
  auto begin() const { return items.begin(); }
  auto end() const { return items.end(); }
};

namespace detail {

// Announces to earlier stages the items that a grouping stage holds: `gathered` items that wait for
// others, and `group` items in each of two groups held by later stages or the program.
template <class T>
void announce_groups(downstream_needs& needs, std::size_t gathered, std::size_t group) {
  const std::size_t held = gathered + 2 * group;
  if constexpr (std::is_same_v<T, image>) needs.images_held += held;
  if constexpr (std::is_same_v<T, host_batch>) needs.batches_held += static_cast<int>(held);
}

template <class T>
class batched_stream final : public stream<group_of<T>> {
 public:
  using outcome = typename stream<group_of<T>>::outcome;
  batched_stream(run_context& run, std::unique_ptr<stream<T>> items, std::size_t size, bool partial)
      : run_(run),
        items_(std::move(items)),
        memory_(run, "batched"),
        size_(size),
        partial_(partial) {}

  awaitable<outcome> next() override {
    aside_.clear();  // of an item that failed
    while (held_.items.size() < size_ && !ended_) {
      auto item = co_await items_->next();
      if (!item) co_return item.error();
      ended_ = !*item;
      if (ended_) break;
      append_origins(aside_, **item);
      auto kept = co_await memory_.keep(std::move(**item));
      if (!kept) co_return kept.error();
      held_.items.push_back(std::move(*kept));
      aside_.clear();
    }
    memory_.passed_on(held_.items);
    if (ended_ && !partial_ && held_.items.size() < size_) {
      run_.counts.dropped += held_.items.size();
      held_.items.clear();
    }
    if (!held_.items.empty()) co_return std::optional(std::exchange(held_, {}));
    ended_ = false;
    co_return std::optional<group_of<T>>();
  }
  bool has_run_dry() const override { return !ended_ && items_->has_run_dry(); }
  void leave_failed() override {
    aside_.clear();
    items_->leave_failed();
  }
  void save(state& to) const override {
    items_->save(to);
    std::vector<origin> held;
    append_origins(held, held_);
    held.insert(held.end(), aside_.begin(), aside_.end());
    to.hold(pending_record, held);
    if (ended_) to.append(end_owed_record, state::record{1});
  }
  void restore(const state& from) override { items_->restore(from); }

 private:
  run_context& run_;
  std::unique_ptr<stream<T>> items_;
  collected_memory<T> memory_;
  std::size_t size_;
  bool partial_;
  group_of<T> held_;
  std::vector<origin> aside_;  // of an item that is about to be held
  bool ended_ = false;
};

template <class T>
class unbatched_stream final : public stream<T> {
 public:
  using outcome = typename stream<T>::outcome;
  explicit unbatched_stream(std::unique_ptr<stream<group_of<T>>> groups)
      : groups_(std::move(groups)) {}

  awaitable<outcome> next() override {
    while (given_ == held_.items.size()) {
      auto more = co_await groups_->next();
      if (!more) co_return more.error();
      if (!*more) co_return std::optional<T>();
      held_ = std::move(**more);
      given_ = 0;
    }
    co_return std::optional<T>(std::move(held_.items[given_++]));
  }
  bool has_run_dry() const override { return groups_->has_run_dry(); }
  void leave_failed() override { groups_->leave_failed(); }
  void save(state& to) const override {
    groups_->save(to);
    std::vector<origin> held;
    for (const T& item : std::span(held_.items).subspan(given_)) append_origins(held, item);
    to.hold(pending_record, held);
  }
  void restore(const state& from) override { groups_->restore(from); }

 private:
  std::unique_ptr<stream<group_of<T>>> groups_;
  group_of<T> held_;
  std::size_t given_ = 0;  // of its items
};

}  // namespace detail

// A stage that groups `size` consecutive items; the last group of an epoch has fewer, or is dropped
// if not `partial`. Samples, records and tuples are copied from read buffers into memory for
// batches; if that is too small for a few batches, next() throws no_memory. Example:
// docs/from-webdataset.md.
struct batched {
  std::size_t size;  // of a group, at least 1
  bool partial;      // keep the last group of an epoch
  // Throws `failure` (usage) for groups of no items.
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
            },
            [n = size](downstream_needs& needs) { detail::announce_groups<T>(needs, n, n); }};
  }
};

// A stage that splits groups into their items.
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

}  // namespace millrace
