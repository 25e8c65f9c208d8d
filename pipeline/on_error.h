#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "pipeline/plan.h"

namespace millrace {

// What to do about skippable errors of the stages in front. Every skipped one is counted by kind in
// the ledger, and the first hundred are listed there.
struct error_policy {
  std::uint64_t most_skipped = 0;  // over the whole run
  // Skipped, as a part of all samples; looked at from the thousandth on.
  double most_rate = 1;
  std::uint64_t most_in_a_row = 1000;
  // A file to which every skipped sample is appended, as a line of JSON: kind, url, offset, key and
  // message. Empty: none. Processes may share it.
  std::string report = {};
};

inline error_policy fail_on_error() {
  return {.most_skipped = 0};
}
inline error_policy skip_up_to(std::uint64_t n) {
  return {.most_skipped = n};
}
// All of them; a thousand in a row without a single good sample still end the run.
inline error_policy skip_errors() {
  return {.most_skipped = ~std::uint64_t{0}};
}
// As many as are that part of all samples.
inline error_policy skip_rate(double most) {
  return {.most_skipped = ~std::uint64_t{0}, .most_rate = most};
}

// The record of how many were skipped, and how many of them in a row.
inline constexpr const char* skipped_record = "on_error";

namespace detail {

// The part that does not depend on what the items are.
class error_counter {
 public:
  // Throws `failure` (not_allowed) where the report cannot be written.
  error_counter(run_context& run, error_policy policy);
  // nullopt: skipped. Else the error to pass on.
  std::optional<error> on_failure(const error& why);
  void on_item() {
    in_a_row_ = 0;
    ++passed_;
    ++epoch_.passed;
  }
  void on_end_of_epoch() {
    if (epoch_.passed > 0 || !epoch_.skipped.empty()) run_.counts.epochs.push_back(epoch_);
    epoch_ = {};
  }
  void save(state& to) const;
  void restore(const state& from);

 private:
  run_context& run_;
  error_policy policy_;
  std::optional<std::string> over_budget() const;
  void write_report(const error& why) const;

  std::uint64_t skipped_ = 0;
  std::uint64_t in_a_row_ = 0;
  std::uint64_t passed_ = 0;
  ledger::epoch epoch_;                // since it began, or since the run did
  std::shared_ptr<const int> report_;  // its descriptor
};

template <class T>
class on_error_stream final : public stream<T> {
 public:
  on_error_stream(run_context& run, std::unique_ptr<stream<T>> items, error_policy policy)
      : items_(std::move(items)), counter_(run, std::move(policy)) {}

  awaitable<typename stream<T>::outcome> next() override {
    for (;;) {
      auto item = co_await items_->next();
      if (item) {
        if (*item) {
          counter_.on_item();
        } else {
          counter_.on_end_of_epoch();
        }
        co_return item;
      }
      if (auto passed_on = counter_.on_failure(item.error())) co_return *passed_on;
    }
  }
  void save(state& to) const override {
    items_->save(to);
    counter_.save(to);
  }
  void restore(const state& from) override {
    items_->restore(from);
    counter_.restore(from);
  }

 private:
  std::unique_ptr<stream<T>> items_;
  error_counter counter_;
};

}  // namespace detail

// A stage for items of any kind, made for the plan that it is appended to.
struct on_error {
  error_policy policy;
  explicit on_error(error_policy p) : policy(std::move(p)) {}

  template <class T>
  stage<T, T> for_items() const {
    return {"on_error",
            [policy = policy](run_context& run,
                              std::unique_ptr<stream<T>> items) -> std::unique_ptr<stream<T>> {
              return std::make_unique<detail::on_error_stream<T>>(run, std::move(items), policy);
            }};
  }
};

}  // namespace millrace
