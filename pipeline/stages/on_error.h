#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "engine/base/check_option.h"
#include "pipeline/pixels/image.h"
#include "pipeline/plan/plan.h"
#include "pipeline/samples/sample.h"
#include "pipeline/state/records.h"

namespace millrace {

class line_file;

// The policy for skippable errors of earlier stages. The ledger counts every skipped one by kind,
// and lists the first hundred.
//
// A shard that fails counts with the samples that are lost with it. These are the ones that the
// index gives or, without an index, for a shard of which no sample came (it cannot be opened, is
// empty, or is not an archive), as many as the first 256 other shards give on average. They are
// known, and counted, at the end of an epoch, also of one in which the run was resumed. Without an
// index nobody knows what a shard lacks that is cut or damaged further on: that counts as one
// sample, and a notice gives the number of such shards.
struct error_policy {
  std::uint64_t most_skipped = 0;  // by this rank, over the whole run
  // Skipped and lost samples, as a fraction of all; checked from the thousandth sample on, and at
  // the end of every epoch.
  double most_rate = 1;
  std::uint64_t most_in_a_row = 1000;  // without a good sample between them
  // A file to which every skipped sample is appended, as a line of JSON: kind, url, offset, key and
  // message. Empty: none. Several processes may share it. If it cannot be written, nothing is
  // skipped: the run ends, with the kind of the host's error.
  std::string report = {};
  // The value of "of" in those lines, if several plans share the file. Empty: none.
  std::string report_of = {};
};

// Skips nothing: the first error ends the run. The default.
inline error_policy fail_on_error() {
  return {.most_skipped = 0};
}
// Skips at most `n` samples of this rank in the whole run; one more fails with too_many_skipped.
inline error_policy skip_up_to(std::uint64_t n) {
  return {.most_skipped = n};
}
// Skips all errors; a thousand in a row without a good sample still end the run.
inline error_policy skip_errors() {
  return {.most_skipped = ~std::uint64_t{0}};
}
// Skips at most this fraction of all samples, from 0 to 1. A thousand in a row without a good
// sample still end the run.
inline error_policy skip_rate(double most) {
  return {.most_skipped = ~std::uint64_t{0}, .most_rate = most};
}

namespace detail {

// The part that does not depend on the type of the items.
class error_counter {
 public:
  virtual ~error_counter() = default;
  // nullopt: skipped. Otherwise the error to pass on.
  virtual std::optional<error> on_failure(const error& why) = 0;
  // The program has continued after a skippable error that was passed on: it has skipped that.
  virtual void on_passed_over(const error& why) = 0;
  // `where`: the item's sample; null for items made of several.
  virtual void on_item(const origin* where) = 0;
  // nullopt: the epoch ends. Otherwise the error that ends the run before that end: too many
  // samples were skipped and lost.
  virtual std::optional<error> on_end_of_epoch() = 0;
  virtual void save(state& to) const = 0;
  virtual void restore(const state& from) = 0;

 protected:
  error_counter() = default;
  error_counter(const error_counter&) = default;
  error_counter& operator=(const error_counter&) = default;
};

// Throws `failure` (not_allowed) if the report cannot be written.
std::unique_ptr<error_counter> count_errors(run_context& run, error_policy policy);

template <class T>
class on_error_stream final : public stream<T> {
 public:
  on_error_stream(run_context& run, std::unique_ptr<stream<T>> items, error_policy policy)
      : items_(std::move(items)), counter_(count_errors(run, std::move(policy))) {}

  awaitable<typename stream<T>::outcome> next() override {
    count_passed_over();
    for (;;) {
      auto item = co_await items_->next();
      if (item) {
        if (*item) {
          counter_->on_item(origin_of(**item));
        } else if (auto over = counter_->on_end_of_epoch()) {
          co_return *over;
        }
        co_return item;
      }
      if (auto passed_on = counter_->on_failure(item.error())) {
        if (passed_on->is_skippable()) passed_on_ = passed_on;
        co_return *passed_on;
      }
    }
  }
  bool has_run_dry() const override { return items_->has_run_dry(); }
  void leave_failed() override {
    count_passed_over();
    items_->leave_failed();
  }
  void save(state& to) const override {
    items_->save(to);
    counter_->save(to);
  }
  void restore(const state& from) override {
    items_->restore(from);
    counter_->restore(from);
  }

 private:
  void count_passed_over() {
    if (const auto left = std::exchange(passed_on_, {})) counter_->on_passed_over(*left);
  }
  static const origin* origin_of(const T& item) {
    if constexpr (requires { static_cast<const origin&>(item.where); }) return &item.where;
    return nullptr;
  }

  std::unique_ptr<stream<T>> items_;
  std::unique_ptr<error_counter> counter_;
  std::optional<error> passed_on_;  // by the last call, and skippable
};

}  // namespace detail

// A stage that skips errors of the stages before it by a policy. For items of any kind; put it
// after the stages that decode, and before batch(). Beyond the policy next() throws
// too_many_skipped, or the error itself if the policy skips nothing. Examples: examples/epoch.cc,
// docs/embedding.md.
struct on_error {
  error_policy policy;  // as given
  // Throws `failure` (usage) for a most_rate outside [0, 1].
  explicit on_error(error_policy p) : policy(std::move(p)) {
    check_option("error_policy.most_rate", policy.most_rate, 0, 1);
  }

  template <class T>
  stage<T, T> for_items() const;
};

template <class T>
stage<T, T> on_error::for_items() const {
  return {
      .name = "on_error",
      .wrap = [policy = policy](run_context& run,
                                std::unique_ptr<stream<T>> items) -> std::unique_ptr<stream<T>> {
        return std::make_unique<detail::on_error_stream<T>>(run, std::move(items), policy);
      },
      .keeps_order = true};
}

// Compiled once, in the library (compiled_plans.cc).
extern template stage<sample, sample> on_error::for_items() const;
extern template stage<image, image> on_error::for_items() const;
extern template stage<host_batch, host_batch> on_error::for_items() const;

}  // namespace millrace
