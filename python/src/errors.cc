#include "errors.h"

#include <millrace/error.h>
#include <millrace/options.h>

#include <array>
#include <string>
#include <string_view>

#include "python/binding/raised.h"

namespace nb = nanobind;

namespace millrace::python {
namespace {

// The arguments of the package by the options that they set.
constexpr auto arguments = std::to_array<option_flag>({
    {"engine_options.memory_bytes", "memory"},
    {"engine_options.cpu_threads", "threads"},
    {"batch_options.size", "batch_size"},
    {"batch_options.held", "held"},
    {"decode_options.size", "size"},
    {"decode_options.resize", "resize"},
    {"decode_options.label", "label"},
    {"decode_options.classes", "classes"},
    {"decode_options.images", "images"},
    {"crop_options.flip", "flip"},
    {"crop_options.least_area", "least_area"},
    {"augment_options.randaugment_ops", "ops"},
    {"augment_options.randaugment_magnitude", "magnitude"},
    {"join_options.missing", "missing"},
    {"join_options.fields", "fields"},
    {"join_options.held_bytes", "the companion's memory"},
    {"shuffle_options.samples", "shuffle"},
    {"shard_list_options.world_size", "the number of ranks"},
    {"shard_list_options.first_epoch", "epoch"},
    {"decoded_cache_options.bytes", "cache_decoded"},
    {"set source_options.allow_pipe (MILLRACE_ALLOW_PIPE=1)", "give allow_pipe=True"},
    {"set shard_writer_options.overwrite", "give overwrite=True"},
    {"shard_writer_options.most_count", "max_count"},
    {"shard_writer_options.most_bytes", "max_size"},
    {"shard_writer_options.first_shard", "start_shard"},
});

// A text of the engine in the package's words: "36_MiB", a number of C++, is "36MiB".
std::string words_of(const std::string& text) {
  constexpr std::string_view unit = "_MiB";
  std::string out = in_program_words(text, arguments);
  for (std::size_t at = out.find(unit); at != out.npos; at = out.find(unit, at)) out.erase(at, 1);
  return out;
}

}  // namespace

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
  raise_failures(words_of);
}

}  // namespace millrace::python
