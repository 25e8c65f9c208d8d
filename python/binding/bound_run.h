#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>

#include "python/binding/figures.h"
#include "python/binding/run.h"

namespace millrace::python {

// A run as a class of Python has it, with the time that Python has waited for it. The next() of a
// derived class makes an object of Python of what take() returns.
template <class T>
class bound_run {
 public:
  // As run's.
  explicit bound_run(engine_options options, plan_maker<T> maker, taking<T> how = {})
      : run_(std::move(options), std::move(maker), how) {}

  // As run's.
  void interrupt() { run_.interrupt(); }
  // The position as JSON, as run's.
  std::string save(bool before_last) { return run_.save(before_last); }
  // Continues from such a position, as run's.
  void restore(const std::string& text) { run_.restore(state::from_json(text).value()); }
  // As run's.
  void close() { run_.close(); }
  // As run's.
  bool is_of_parent() const { return run_.is_of_parent(); }
  // As run's.
  bool is_busy() const { return run_.is_busy(); }
  // The figures, as a dict.
  nanobind::dict stats() { return dict_of(run_.stats(), waited()); }
  // The counts, as a dict.
  nanobind::dict counts() { return dict_of(run_.counts()); }

 protected:
  // The next item; nullopt at the end of an epoch.
  std::optional<T> take() {
    const waiting counted(*this);
    return run_.next();
  }
  // As run's.
  void start() { run_.start(); }

 private:
  using clock = std::chrono::steady_clock;

  // Counts the time of a take(), also of one that throws.
  struct waiting {
    bound_run& of;
    std::optional<clock::time_point> before;  // of a take() that a handler of a signal interrupts
    explicit waiting(bound_run& r) : of(r), before(std::exchange(r.asked_, clock::now())) {}
    ~waiting() {
      of.waited_ = of.waited();
      of.asked_ = before ? std::optional(clock::now()) : std::nullopt;
    }
    waiting(const waiting&) = delete;
    waiting& operator=(const waiting&) = delete;
  };
  // With the wait that is under way.
  double waited() const {
    if (!asked_) return waited_;
    return waited_ + std::chrono::duration<double>(clock::now() - *asked_).count();
  }

  // With the GIL.
  double waited_ = 0;                       // seconds, in calls of take() that have ended
  std::optional<clock::time_point> asked_;  // when the one under way began
  run<T> run_;
};

// Binds the methods that classes made from a bound_run have in common.
template <class Run>
void bind_run_methods(nanobind::class_<Run>& to) {
  to.def("next", &Run::next)
      .def("interrupt", &Run::interrupt)
      .def("save", &Run::save, nanobind::arg("before_last") = false)
      .def("restore", &Run::restore)
      .def("stats", &Run::stats)
      .def("counts", &Run::counts)
      .def("close", &Run::close)
      .def("is_of_parent", &Run::is_of_parent)
      .def("is_busy", &Run::is_busy);
}

}  // namespace millrace::python
