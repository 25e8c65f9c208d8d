#pragma once

#include <array>
#include <vector>

#include "pipeline/images/augment.h"
#include "pipeline/run/option_words.h"

namespace millrace {

// The flags of millrace-train by the options that they set. Options with a variable need no row,
// nor do those of shares_of().
inline constexpr auto train_flag_names = std::to_array<option_flag>({
    {"start as many ranks on each host",
     "start as many ranks on each host, by --nproc or torchrun"},
    {"decode_options.encoded_share = 0", "--gpu-decode 0"},
    {"decode_options.encoded_share", "--gpu-decode"},
    {"decode_options.label", "--label"},
    {"decode_options.classes", "--classes"},
    {"decode_options.size", "--size"},
    {"growing_size.from", "--grow-from"},
    {"growing_size.epochs", "--grow-epochs"},
    {"crop_options.least_area", "--min-crop"},
    {"augment_options.randaugment_ops", "--randaugment-ops"},
    {"augment_options.randaugment_magnitude", "--randaugment-magnitude"},
    {"mixing_options.mixup", "--mixup"},
    {"mixing_options.cutmix", "--cutmix"},
    {"decoded_cache_options.bytes", "--cache-decoded"},
    {"decoded_cache_options.folder", "--cache-decoded-dir"},
    {"log_level::debug", "MILLRACE_LOG=debug"},
    {"decoded_cache_options.resize", "--cache-decoded-resize"},
    {"batch_options.size", "--batch-size"},
    {"shuffle_options.samples", "--shuffle"},
    {"shard_list_options.epochs", "--epochs"},
    {"shard_list_options.lanes", "--lanes"},
    {"error_policy::report", "--skipped"},
    {"set source_options.allow_pipe (MILLRACE_ALLOW_PIPE=1)",
     "use --allow-pipe or MILLRACE_ALLOW_PIPE=1"},
});

// A text, or an error, of the library in millrace-train's words.
template <class Told>
Told in_train_words(const Told& told) {
  std::vector<option_flag> flags(train_flag_names.begin(), train_flag_names.end());
  augment_options changes;
  for (const change_share& each : shares_of(changes)) flags.emplace_back(each.option, each.flag);
  return in_program_words(told, flags);
}

}  // namespace millrace
