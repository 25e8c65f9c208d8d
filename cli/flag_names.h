#pragma once

#include <array>

#include "pipeline/run/option_words.h"

namespace millrace::cli {

// The flags of millrace's commands by the options that they set, for in_program_words(). Options
// with a variable need no row.
inline constexpr auto flag_names = std::to_array<option_flag>({
    {"say which by pack_options.of_one_name",
     "--same-name fields or --same-name samples says which"},
    {"set pack_options.overwrite", "use --overwrite"},
    {"set shard_writer_options.overwrite", "use --overwrite"},
    {"pack_options.most_count", "--max-count"},
    {"pack_options.most_bytes", "--max-bytes"},
    {"pack_options.quality", "--quality"},
    {"pack_options.resize", "--resize"},
    {"pack_options.restart", "--restart"},
    {"pack_options.parts", "the number of parts (--part)"},
    {"pack_options.part", "--part"},
    {"pack_options.threads", "--threads"},
    {"repack_options.restart", "--restart"},
    {"index_options.urls_as_given", "--compat"},
    {"decode_options.size", "--size"},
    {"batch_options.size", "--batch"},
    {"shuffle_options.samples", "--shuffle"},
    {"shard_list_options.lanes", "--lanes"},
    {"decoded_cache_options.bytes", "--cache-decoded"},
    {"decoded_cache_options.folder", "--cache-decoded-dir"},
    {"log_level::debug", "MILLRACE_LOG=debug"},
    {"set source_options.allow_pipe (MILLRACE_ALLOW_PIPE=1)",
     "use --allow-pipe or MILLRACE_ALLOW_PIPE=1"},
});

}  // namespace millrace::cli
