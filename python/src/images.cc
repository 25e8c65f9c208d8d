#include "images.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "python/binding/text.h"
#include "spec.h"
#include "spec_run.h"

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

class image_run : public spec_run<host_batch> {
 public:
  explicit image_run(const spec& of) : spec_run(of, image_plan, {.ahead = 1}) {}

  // (images, labels, keys, epoch); None at the end of an epoch.
  nb::object next(bool torch) {
    auto got = take();
    if (!got) return nb::none();
    const auto owner = std::make_shared<host_batch>(std::move(*got));
    return torch ? arrays_of<nb::pytorch>(owner) : arrays_of<nb::numpy>(owner);
  }
};

}  // namespace

void bind_images(nb::module_& to) {
  bind_spec_run<image_run>(to, "ImageRun");
}

}  // namespace millrace::python
