#include "errors.h"

#include <millrace/error.h>
#include <millrace/images.h>
#include <millrace/options.h>

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "python/binding/raised.h"

namespace nb = nanobind;

namespace millrace::python {
namespace {

// The arguments of the package by the options that they set.
constexpr auto arguments = std::to_array<option_flag>({
    {"engine_options.memory_bytes", "memory"},
    {"engine_options.cpu_threads", "threads"},
    {"batch_options.size", "batch_size"},
    {"(batch_options.held; prefetch(n) makes room for n more)",
     "(held; prefetch=n makes room for n more)"},
    {"batch_options.held", "held"},
    {"decode_options.size", "size"},
    {"decode_options.resize", "resize"},
    {"decode_options.label", "label"},
    {"decode_options.classes", "classes"},
    {"decode_options.images", "images"},
    {"crop_options.flip", "flip"},
    {"crop_options.least_area", "least_area"},
    {"color_jitter.brightness", "brightness"},
    {"color_jitter.contrast", "contrast"},
    {"color_jitter.saturation", "saturation"},
    {"color_jitter.hue", "hue"},
    {"color_jitter.probability", "jitter"},
    {"augment_options.randaugment_ops", "ops"},
    {"augment_options.randaugment_magnitude", "magnitude"},
    {"join_options.missing", "missing"},
    {"join_options.fields", "fields"},
    {"join_options.held_bytes", "the companion's memory"},
    {"shuffle_options.samples", "shuffle"},
    {"shard_list_options.world_size", "the number of ranks"},
    {"shard_list_options.first_epoch", "epoch"},
    {", or keep them on disk (decoded_cache_options.folder)", ""},
    {"decoded_cache_options.bytes", "cache_decoded"},
    {", or rename them in the companion (join_options.untar.rename)", ""},
    {"log_level::debug", "MILLRACE_LOG=debug"},
    {"set source_options.allow_pipe (MILLRACE_ALLOW_PIPE=1)", "give allow_pipe=True"},
    {"set shard_writer_options.overwrite", "give overwrite=True"},
    {"shard_writer_options.most_count", "max_count"},
    {"shard_writer_options.most_bytes", "max_size"},
    {"shard_writer_options.first_shard", "start_shard"},
});

}  // namespace

std::string words_of(const std::string& text) {
  constexpr std::string_view unit = "_MiB";
  std::vector<option_flag> all(arguments.begin(), arguments.end());
  augment_options changes;
  for (const change_share& each : shares_of(changes)) all.emplace_back(each.option, each.name());
  std::string out = in_program_words(text, all);
  for (std::size_t at = out.find(unit); at != out.npos; at = out.find(unit, at)) out.erase(at, 1);
  return out;
}

void bind_errors(nb::module_& to) {
  // The names of all kinds.
  to.def("kinds", [] {
    nb::list names;
    for (int k = 0; k <= static_cast<int>(errc::internal); ++k) {
      const std::string_view name = kind_name(static_cast<errc>(k));
      names.append(nb::str(name.data(), name.size()));
    }
    return names;
  });
  speak_in(words_of);
}

}  // namespace millrace::python
