#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace millrace {

enum class log_level { quiet, notice, debug };

// Where lines go; the default writes "millrace: LINE" to stderr. Set both before the first engine
// is made; the sink is called from any thread, one call at a time. What it throws is dropped, and
// its line written to stderr; so is what millrace logs while the sink itself uses it. It must not
// wait for a loader: the thread that tells it may be the one that would give the item.
void set_log_level(log_level level);
void set_log_level(std::string_view name);  // as MILLRACE_LOG says it; anything else: notice
void set_log_sink(std::function<void(std::string_view line)> sink);

// Something the user should know and need not act on: a fallback taken, samples skipped.
void log_notice(std::string_view line);
void log_debug(std::string_view line);

}  // namespace millrace
