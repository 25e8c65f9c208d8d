#pragma once

namespace millrace {

// The hint of errors about shards that change while they are read.
inline constexpr const char* new_names_hint =
    "write new shards under new names, and do not change those in use";

}  // namespace millrace
