#pragma once

#include <millrace/millrace.h>
#include <millrace/version.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <new>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "python/binding/bound_run.h"
#include "python/binding/raised.h"

namespace millrace::python {

// What a function that makes a plan is told when a run of it begins.
struct plan_start {
  engine& eng;  // for what it finds or reads: find_shards(), read_index()
  // The run's rank, number of ranks and first epoch, and epochs without end: for shards(), with the
  // seed, the mode and whatever else the plan has.
  shard_list_options list;
};

namespace detail {

template <class Made>
struct item_of {
  static_assert(!std::is_same_v<Made, Made>, "`make` returns a plan: plan<T> or lane_plan<sample>");
};
template <class T>
struct item_of<plan<T>> {
  using type = T;
};
template <>
struct item_of<lane_plan<sample>> {
  using type = sample;
};
template <class T>
plan<T> in_one_stream(plan<T> made) {
  return made;
}
inline plan<sample> in_one_stream(lane_plan<sample> made) {
  return interleaved(std::move(made));
}

// A class of Python for each function that gives items.
template <class T, class Give>
class plan_run : public bound_run<T> {
 public:
  plan_run(engine_options options, plan_maker<T> maker, Give give)
      : bound_run<T>(std::move(options), std::move(maker)), give_(std::move(give)) {}

  // The next item; None at the end of an epoch.
  nanobind::object next() {
    auto got = this->take();
    if (!got) return nanobind::none();
    return nanobind::cast(give_(std::move(*got)));
  }

 private:
  Give give_;
};

// A plan with its arguments: what Python makes runs of, and pickles.
template <class T, class Make, class Give, class... Args>
class bound_plan {
 public:
  using arguments = std::tuple<Args...>;
  using run_type = plan_run<T, Give>;

  bound_plan(Make make, Give give, arguments of)
      : make_(std::move(make)), give_(std::move(give)), arguments_(std::move(of)) {}

  const arguments& given() const { return arguments_; }

  // A run that has not begun. `threads` and `memory`, in bytes: 0 for the environment's.
  run_type* run(int rank, int world_size, std::int64_t first_epoch, int threads,
                std::size_t memory) const {
    const shard_list_options list{.rank = rank,
                                  .world_size = world_size,
                                  .epochs = std::numeric_limits<std::int32_t>::max(),
                                  .first_epoch = first_epoch};
    engine_options options = engine_options::from_environment();
    if (threads > 0) options.cpu_threads = threads;
    if (memory > 0) options.memory_bytes = memory;
    return new run_type(
        std::move(options),
        [make = make_, of = arguments_, list](engine& eng) {
          return std::apply(
              [&](const Args&... each) {
                return in_one_stream(make(plan_start{eng, list}, each...));
              },
              of);
        },
        give_);
  }

 private:
  Make make_;
  Give give_;
  arguments arguments_;
};

template <class Make, class Give, class... Args, class Made, class... Extra>
void bind_plan(nanobind::module_& to, const char* name, Make make, Give give,
               const std::function<Made(plan_start, Args...)>&, const Extra&... extra) {
  using T = typename item_of<Made>::type;
  using bound = bound_plan<T, Make, Give, std::decay_t<Args>...>;
  using arguments = typename bound::arguments;
  static_assert(std::is_class_v<Make> && std::is_class_v<Give>,
                "give lambdas: two functions of one type would be one class of Python");
  static_assert((!std::is_base_of_v<nanobind::handle, std::decay_t<Args>> && ...),
                "the plan is made on a thread without the GIL: take values of C++, such as "
                "std::string, rather than objects of Python");
  static_assert(((!std::is_pointer_v<std::decay_t<Args>> &&
                  !std::is_same_v<std::decay_t<Args>, std::string_view>) &&
                 ...),
                "arguments are kept for later runs: take std::string rather than what points into "
                "an object of Python");
  speak_in();
  nanobind::class_<typename bound::run_type> running(to, ("_" + std::string(name) + "Run").c_str());
  bind_run_methods(running);
  nanobind::class_<bound> made(to, name);
  made.def(
          "__init__",
          [make, give](bound* at, Args... each) {
            new (at) bound(make, give, arguments(std::move(each)...));
          },
          extra...)
      .def("__getstate__", [](const bound& b) { return b.given(); })
      .def("__setstate__",
           [make, give](bound& at, arguments of) { new (&at) bound(make, give, std::move(of)); })
      .def("_run", &bound::run, nanobind::arg("rank"), nanobind::arg("world_size"),
           nanobind::arg("first_epoch"), nanobind::arg("threads"), nanobind::arg("memory"));
  made.attr("_millrace_version") = MILLRACE_VERSION;
}

}  // namespace detail

// Binds a class of Python, `name`, whose objects are plans with their arguments:
// `millrace.PlanLoader(module.Name(...))` iterates one, with positions, epochs and figures as of
// every loader, and pickles it.
//
//   bind_plan(
//       m, "Lengths",
//       [](plan_start start, const std::string& of, std::uint64_t seed) {
//         start.list.seed = seed;
//         return shards(expand(of), start.list) | untar() | group_by_key() | ...;
//       },
//       [](const row& r) { return r.length; },
//       nb::arg("shards"), nb::arg("seed") = 0);
//
// `make` is a lambda that takes a plan_start and the arguments of Python's class, and returns a
// plan<T> or a lane_plan<sample>. It is called once for each run, on the run's thread and without
// the GIL, and may wait; what it throws, the loader's first item throws. Its arguments, whose
// casters the module includes, are values of C++. `give` is a lambda that takes a T and returns
// what Python gets, called with the GIL for one item at a time; an item for which it throws was
// given. `extra` is as of nanobind's class_::def(): names,
// defaults, a docstring. T says which samples it was made of, as items after the lanes do
// (docs/stages.md).
//
// Example: examples/python_plan. Call it while the module is imported.
template <class Make, class Give, class... Extra>
void bind_plan(nanobind::module_& to, const char* name, Make make, Give give,
               const Extra&... extra) {
  detail::bind_plan(to, name, make, give, std::function(make), extra...);
}

}  // namespace millrace::python
