#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace millrace {

// Amount of messages: none, what the user should know, or also every retry and skipped sample.
enum class log_level { quiet, notice, debug };

// Sets how much is written; `notice` by default. Set it and the sink before creating the first
// engine.
void set_log_level(log_level level);
// The same by a value of MILLRACE_LOG: "quiet", "notice" or "debug"; anything else means notice.
void set_log_level(std::string_view name);
// Sets where lines go; the default writes "millrace: LINE" to stderr, and null restores it. The
// sink is called from any thread, one call at a time. If it throws, the exception is dropped and
// the line written to stderr, and so are lines that millrace logs while the sink itself uses it. It
// must not wait for a loader: the calling thread may be the one that would deliver the item.
void set_log_sink(std::function<void(std::string_view line)> sink);

// Something the user should know, but need not act on: a fallback taken, samples skipped.
void log_notice(std::string_view line);
// A detail, written only at log_level::debug.
void log_debug(std::string_view line);

}  // namespace millrace
