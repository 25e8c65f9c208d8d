#include "samples.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <string>
#include <utility>

#include "decoded_sample.h"
#include "python/binding/text.h"
#include "spec.h"
#include "spec_run.h"

namespace nb = nanobind;

namespace millrace::python {
namespace {

// How many samples are kept ready. With each goes a state, which takes as long as a small sample if
// it has a thousand samples of a shuffle, or a dozen lanes. Decoded images are not counted in the
// budget: none is kept.
std::size_t taken_ahead(const spec& of) {
  constexpr std::size_t ready = 16;
  constexpr std::size_t of_lane = 64;
  constexpr std::size_t most = 1'600;
  if (of.decodes || of.world_size < 1) return 0;
  const shard_list_options list{.world_size = of.world_size, .lanes = of.lanes};
  const auto lanes = static_cast<std::size_t>(list.lane_count() / of.world_size);
  return lanes * of_lane + of.shuffle <= most ? ready : 0;
}

plan<decoded_sample> sample_plan(const spec& of, const found_shards& found) {
  plan<sample> samples = interleaved(samples_of(of, found));
  plan<decoded_sample> made;
  if (of.decodes) {
    const auto decode = [turns = of.orient](sample s) { return with_images(std::move(s), turns); };
    made = samples | map(decode, {.threads = of.threads > 0 ? of.threads : allowed_cpus()});
  } else {
    made = samples | map(undecoded);
  }
  made = made | on_error(of.errors);
  const auto ahead = static_cast<int>(taken_ahead(of));
  return ahead > 0 ? made | prefetch({.items = ahead, .within_epoch = true}) : made;
}

nb::bytes bytes_of(const bytes& b) {
  return nb::bytes(static_cast<const void*>(b.data()), b.size());
}

nb::object array_of(pixels_of_field image) {
  auto* held = new pixels_of_field(std::move(image));
  const nb::capsule owner(held, [](void* p) noexcept { delete static_cast<pixels_of_field*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, std::uint8_t>(
      held->pixels.get(), {held->height, held->width, std::size_t{3}}, owner));
}

nb::dict dict_of(decoded_sample item) {
  nb::dict out = python::dict_of(item.s);
  for (pixels_of_field& image : item.images) {
    const nb::object name = text_of(item.s.fields[image.field].extension);
    out[name] = array_of(std::move(image));
  }
  return out;
}

class sample_run : public spec_run<decoded_sample> {
 public:
  explicit sample_run(const spec& of)
      : spec_run(of, sample_plan, {.ahead = taken_ahead(of), .keep = with_own_bytes}) {}

  // The next sample; None at the end of an epoch.
  nb::object next() {
    auto got = take();
    if (!got) return nb::none();
    return dict_of(std::move(*got));
  }
};

nb::object object_of(const value& v);

nb::object array_of(const tensor& t) {
  nb::object numpy = nb::module_::import_("numpy");
  nb::object flat = numpy.attr("frombuffer")(bytes_of(t.data), "<" + t.type).attr("copy")();
  nb::list shape;
  for (const std::int64_t side : t.shape) shape.append(side);
  return flat.attr("reshape")(nb::tuple(shape));
}

nb::object object_of(const tensors& all) {
  nb::dict named;
  nb::list in_order;
  for (const auto& [name, t] : all) {
    if (name.empty()) {
      in_order.append(array_of(t));
    } else {
      named[text_of(name)] = array_of(t);
    }
  }
  if (nb::len(named) > 0) return std::move(named);
  return std::move(in_order);
}

struct to_object {
  nb::object operator()(const bytes& b) const { return bytes_of(b); }
  nb::object operator()(const std::string& text) const { return nb::cast(text); }
  nb::object operator()(std::int64_t n) const { return nb::cast(n); }
  nb::object operator()(const json_text& j) const {
    return nb::module_::import_("json").attr("loads")(j.text);
  }
  nb::object operator()(const tensor& t) const { return array_of(t); }
  nb::object operator()(const tensors& all) const { return object_of(all); }
};

nb::object object_of(const value& v) {
  return std::visit(to_object{}, v);
}

nb::object decoded(const std::string& extension, const nb::bytes& content) {
  const auto whole =
      bytes::unowned(std::string_view(static_cast<const char*>(content.data()), content.size()));
  const value made = decode_field(extension, whole).value();
  const auto* same = std::get_if<bytes>(&made);
  if (same != nullptr && same->data() == whole.data() && same->size() == whole.size()) {
    return content;  // there is no decoder for them
  }
  return object_of(made);
}

}  // namespace

nb::dict dict_of(const sample& s) {
  nb::dict out;
  out["__key__"] = text_of(s.key);
  out["__url__"] = text_of(s.url ? redacted(*s.url) : "");
  for (const field& f : s.fields) out[text_of(f.extension)] = bytes_of(f.data);
  return out;
}

void bind_samples(nb::module_& to) {
  bind_spec_run<sample_run>(to, "SampleRun");
  to.def("decode_field", &decoded, nb::arg("extension"), nb::arg("content"));
}

}  // namespace millrace::python
