#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>

#include "python/binding/bound_run.h"
#include "spec.h"

namespace millrace::python {

// The run of a spec's shards: what the classes of images and of samples have in common.
template <class T>
class spec_run : public bound_run<T> {
 public:
  using plan_of = plan<T> (*)(const spec&, const found_shards&);

  spec_run(const spec& of, plan_of make, taking<T> how)
      : spec_run(of, make, how, std::make_shared<found_shards>()) {}

  std::int64_t samples_in(std::int64_t epoch) {
    this->start();
    return samples_in_epoch(spec_, *found_, epoch);
  }

 private:
  spec_run(const spec& of, plan_of make, taking<T> how, const std::shared_ptr<found_shards>& found)
      : bound_run<T>(
            engine_of(of),
            [of, make, found](engine& eng) {
              *found = find(eng, of);
              return make(of, *found);
            },
            how),
        spec_(of),
        found_(found) {}

  spec spec_;
  std::shared_ptr<found_shards> found_;
};

// Binds a class that is made from a spec_run.
template <class Run>
void bind_spec_run(nanobind::module_& to, const char* name) {
  nanobind::class_<Run> made(to, name);
  made.def(nanobind::init<const spec&>()).def("samples_in", &Run::samples_in);
  bind_run_methods(made);
}

}  // namespace millrace::python
