// millrace._core: what the package's modules in Python are made of. Its names are not for programs.
#include <millrace/millrace.h>
#include <millrace/version.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <string>
#include <vector>

#include "errors.h"
#include "images.h"
#include "indexed.h"
#include "joins.h"
#include "packed_fields.h"
#include "python/binding/text.h"
#include "samples.h"
#include "spec.h"
#include "writer.h"

namespace nb = nanobind;

namespace millrace::python {
namespace {

void bind_changes(nb::module_& to) {
  using changes = augment_options;
  nb::class_<changes>(to, "Changes")
      .def(nb::init<>())
      .def("set_policy", [](changes& c, const std::string& name) { c.policy = policy_of(name); })
      .def_rw("randaugment_ops", &changes::randaugment_ops)
      .def_rw("randaugment_magnitude", &changes::randaugment_magnitude)
      .def("shares",
           [](changes& c) {
             std::vector<std::string> names;
             for (const change_share& each : shares_of(c)) names.emplace_back(each.name());
             return names;
           })
      .def("set_share",
           [](changes& c, const std::string& name, double share) {
             const auto all = shares_of(c);
             const auto at = std::ranges::find(all, name, &change_share::name);
             if (at == all.end()) throw nb::key_error(name.c_str());
             *at->share = share;
           })
      .def("set_jitter", [](changes& c, double brightness, double contrast, double saturation,
                            double hue, double probability) {
        c.jitter = {brightness, contrast, saturation, hue, probability};
      });
}

void bind_decoding(nb::class_<spec>& to) {
  to.def_prop_rw(
        "size", [](const spec& s) { return s.decode.size; },
        [](spec& s, int size) { s.decode.size = size; })
      .def_prop_rw(
          "resize", [](const spec& s) { return s.decode.resize; },
          [](spec& s, int resize) { s.decode.resize = resize; })
      .def_prop_rw(
          "train", [](const spec& s) { return s.decode.train; },
          [](spec& s, bool train) { s.decode.train = train; })
      .def_prop_rw(
          "label", [](const spec& s) { return s.decode.label; },
          [](spec& s, const std::string& label) { s.decode.label = label; })
      .def_prop_rw(
          "classes", [](const spec& s) { return s.decode.classes; },
          [](spec& s, std::int64_t classes) { s.decode.classes = classes; })
      .def("set_images", [](spec& s, const std::string& images) { s.decode.images = images; })
      .def("set_changes", [](spec& s, const augment_options& c) { s.decode.augment = c; })
      .def("set_crop",
           [](spec& s, double least_area, double flip) {
             s.decode.crop.least_area = least_area;
             s.decode.crop.flip = flip;
           })
      .def("cache_decoded",
           [](spec& s, std::size_t bytes) { s.decode.cache = cache_decoded({.bytes = bytes}); });
}

void bind_spec(nb::module_& to) {
  nb::class_<spec> made(to, "Spec");
  made.def(nb::init<>())
      .def_prop_rw(
          "shards", [](const spec& s) { return s.shards; },
          [](spec& s, const std::vector<nb::str>& shards) {
            s.shards.clear();
            for (const nb::str& one : shards) s.shards.push_back(string_of(one));
          })
      .def_rw("rank", &spec::rank)
      .def_rw("world_size", &spec::world_size)
      .def_rw("lanes", &spec::lanes)
      .def_rw("epoch", &spec::epoch)
      .def_rw("shuffle_shards", &spec::shuffle_shards)
      .def_rw("first_epoch", &spec::first_epoch)
      .def_rw("epoch_length", &spec::epoch_length)
      .def_rw("shuffle", &spec::shuffle)
      .def_prop_rw(
          "shuffle_seed", [](const spec& s) { return s.shuffle_seed.value_or(s.seed); },
          [](spec& s, std::uint64_t seed) { s.shuffle_seed = seed; })
      .def_rw("fields", &spec::fields)
      .def_rw("resync", &spec::resync)
      .def_rw("threads", &spec::threads)
      .def_rw("memory", &spec::memory)
      .def_rw("cache_folder", &spec::cache_folder)
      .def_rw("allow_pipe", &spec::allow_pipe)
      .def_rw("decodes", &spec::decodes)
      .def_rw("orient", &spec::orient)
      .def_rw("batch_size", &spec::batch_size)
      .def_rw("drop_last", &spec::drop_last)
      .def_rw("held", &spec::held)
      .def_rw("prefetch", &spec::prefetch)
      .def_prop_rw(
          "seed", [](const spec& s) { return s.seed; },
          [](spec& s, std::uint64_t seed) { s.seed = s.decode.seed = seed; })
      .def("set_errors", [](spec& s, std::uint64_t most, double rate, std::uint64_t in_a_row,
                            const std::string& report) {
        s.errors = {
            .most_skipped = most, .most_rate = rate, .most_in_a_row = in_a_row, .report = report};
      });
  bind_decoding(made);
  bind_joins(to, made);
}

// (rank, world size), as the launcher's variables say.
nb::tuple place() {
  const job_place here = job_place::from_environment();
  return nb::make_tuple(here.rank, here.world_size);
}

std::string merged_text(const std::vector<std::string>& texts) {
  std::vector<state> states;
  states.reserve(texts.size());
  for (const std::string& text : texts) states.push_back(state::from_json(text).value());
  return merged(states).to_json();
}

}  // namespace
}  // namespace millrace::python

NB_MODULE(_core, m) {
  namespace p = millrace::python;
  nb::set_leak_warnings(false);  // an interpreter that ends may have loaders alive
  m.attr("version") = MILLRACE_VERSION;
  p::bind_errors(m);
  p::bind_changes(m);
  p::bind_spec(m);
  p::bind_images(m);
  p::bind_samples(m);
  p::bind_packed_fields(m);
  p::bind_indexed(m);
  p::bind_writer(m);
  m.def("redacted", [](const nb::bytes& text) {
    const std::string shown = millrace::redacted({text.c_str(), text.size()});
    return nb::bytes(shown.data(), shown.size());
  });
  m.def("job_place", &p::place);
  m.def("check_epoch", [](const std::string& name) { static_cast<void>(p::mode_of(name)); });
  m.def("merged", &p::merged_text);
  m.def("check_state", [](const std::string& text) {
    static_cast<void>(millrace::state::from_json(text).value());
  });
  m.def("parse_bytes", [](const std::string& text) { return millrace::parse_bytes(text).value(); });
  m.def("decoded_extensions", [] { return millrace::decoded_extensions(); });
  m.def("set_log_level", [](const std::string& name) { millrace::set_log_level(name); });
}
