#include "images.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "figures.h"
#include "run.h"
#include "samples.h"
#include "spec.h"

namespace nb = nanobind;

namespace millrace::python {
namespace {

plan<host_batch> image_plan(const spec& of, const found_shards& found) {
  auto images = samples_of(of, found) | decode_jpeg(of.decode);
  if (of.epoch_length > 0) images = images | epochs_of(of.epoch_length);
  return images | on_error(of.errors) |
         batch({.size = of.batch_size, .drop_last = of.drop_last, .held = of.held}) |
         prefetch(of.prefetch);
}

// Arrays of Python keep it alive.
using batch_owner = std::shared_ptr<host_batch>;

nb::capsule capsule_of(const batch_owner& owner) {
  return {new batch_owner(owner), [](void* p) noexcept { delete static_cast<batch_owner*>(p); }};
}

template <class Framework, class Number>
nb::object array_of(Number* data, std::initializer_list<std::size_t> shape,
                    const batch_owner& owner) {
  return nb::cast(nb::ndarray<Framework, Number>(data, shape, capsule_of(owner)));
}

template <class Framework>
nb::tuple arrays_of(const batch_owner& owner) {
  host_batch& b = *owner;
  auto* pixels = reinterpret_cast<std::uint8_t*>(b.pixels->data);
  const auto side = [](int n) { return static_cast<std::size_t>(n); };
  nb::list keys;
  for (const std::string& key : b.keys) keys.append(text_of(key));
  return nb::make_tuple(
      array_of<Framework>(pixels, {b.size(), side(b.height), side(b.width), 3}, owner),
      array_of<Framework>(b.labels.data(), {b.size()}, owner), keys, b.epoch);
}

class image_run {
 public:
  explicit image_run(const spec& of)
      : spec_(of),
        found_(std::make_shared<found_shards>()),
        run_(
            engine_of(of),
            [of, found = found_](engine& eng) {
              *found = find(eng, of);
              return image_plan(of, *found);
            },
            1) {}

  // (images, labels, keys, epoch); None at the end of an epoch.
  nb::object next(bool torch) {
    const auto asked = std::chrono::steady_clock::now();
    auto got = run_.next();
    waited_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - asked).count();
    if (!got) return nb::none();
    const auto owner = std::make_shared<host_batch>(std::move(*got));
    return torch ? arrays_of<nb::pytorch>(owner) : arrays_of<nb::numpy>(owner);
  }
  void interrupt() { run_.interrupt(); }
  std::string save() { return run_.save(); }
  void restore(const std::string& text) { run_.restore(state::from_json(text).value()); }
  nb::dict stats() { return dict_of(run_.stats(), waited_); }
  nb::dict counts() { return dict_of(run_.counts()); }
  std::int64_t samples_in(std::int64_t epoch) {
    run_.start();
    return samples_in_epoch(spec_, *found_, epoch);
  }
  void close() { run_.close(); }
  bool is_of_parent() const { return run_.is_of_parent(); }
  bool is_busy() const { return run_.is_busy(); }

 private:
  spec spec_;
  std::shared_ptr<found_shards> found_;
  double waited_ = 0;  // seconds, in next()
  run<host_batch> run_;
};

}  // namespace

void bind_images(nb::module_& to) {
  nb::class_<image_run>(to, "ImageRun")
      .def(nb::init<const spec&>())
      .def("next", &image_run::next)
      .def("interrupt", &image_run::interrupt)
      .def("save", &image_run::save)
      .def("restore", &image_run::restore)
      .def("stats", &image_run::stats)
      .def("counts", &image_run::counts)
      .def("samples_in", &image_run::samples_in)
      .def("close", &image_run::close)
      .def("is_of_parent", &image_run::is_of_parent)
      .def("is_busy", &image_run::is_busy);
}

}  // namespace millrace::python
