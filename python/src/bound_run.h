#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "figures.h"
#include "run.h"
#include "spec.h"

namespace millrace::python {

// The run of a spec's shards: what the classes of images and of samples have in common. Their
// next() makes objects of Python of what take() returns.
template <class T>
class bound_run {
 public:
  using plan_of = plan<T> (*)(const spec&, const found_shards&);

  bound_run(const spec& of, plan_of make, std::size_t at_once)
      : spec_(of),
        found_(std::make_shared<found_shards>()),
        run_(
            engine_of(of),
            [of, make, found = found_](engine& eng) {
              *found = find(eng, of);
              return make(of, *found);
            },
            at_once) {}

  void interrupt() { run_.interrupt(); }
  std::string save() { return run_.save(); }
  void restore(const std::string& text) { run_.restore(state::from_json(text).value()); }
  nanobind::dict stats() { return dict_of(run_.stats(), waited()); }
  nanobind::dict counts() { return dict_of(run_.counts()); }
  std::int64_t samples_in(std::int64_t epoch) {
    run_.start();
    return samples_in_epoch(spec_, *found_, epoch);
  }
  void close() { run_.close(); }
  bool is_of_parent() const { return run_.is_of_parent(); }
  bool is_busy() const { return run_.is_busy(); }

 protected:
  // The next item; nullopt at the end of an epoch.
  std::optional<T> take() {
    const waiting counted(*this);
    return run_.next();
  }

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

  spec spec_;
  std::shared_ptr<found_shards> found_;
  // With the GIL.
  double waited_ = 0;                       // seconds, in calls of take() that have ended
  std::optional<clock::time_point> asked_;  // when the one under way began
  run<T> run_;
};

// Binds a class that is made from a bound_run.
template <class Run>
void bind_run(nanobind::module_& to, const char* name) {
  nanobind::class_<Run>(to, name)
      .def(nanobind::init<const spec&>())
      .def("next", &Run::next)
      .def("interrupt", &Run::interrupt)
      .def("save", &Run::save)
      .def("restore", &Run::restore)
      .def("stats", &Run::stats)
      .def("counts", &Run::counts)
      .def("samples_in", &Run::samples_in)
      .def("close", &Run::close)
      .def("is_of_parent", &Run::is_of_parent)
      .def("is_busy", &Run::is_busy);
}

}  // namespace millrace::python
