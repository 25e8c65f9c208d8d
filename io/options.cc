#include "io/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "engine/base/option_list.h"
#include "engine/base/units.h"
#include "engine/base/words.h"
#include "engine/coroutines/scope.h"

namespace millrace {
namespace {

void add_reading(option_list<source_options>& list) {
  using o = source_options;
  list.group("Files")
      .add("chunk_bytes", &o::chunk_bytes,
           size_setting("MILLRACE_READ_CHUNK", 4_KiB, 64_MiB,
                        "bytes of one read of a file, and of one buffer of an HTTP body"))
      .add("read_ahead", &o::read_ahead,
           integer_setting("MILLRACE_READ_AHEAD", 1, 1024,
                           "most chunks read ahead of the one in use, for each open shard"))
      .add("read_depth", &o::read_depth,
           integer_setting("MILLRACE_READ_DEPTH", 1, 4096,
                           "reads at once on a device that has no gate (auto: by measurement)"))
      .add("direct", &o::direct,
           choice_setting("MILLRACE_DIRECT", "auto|on|off",
                          "bypass the page cache (auto: for what would not stay in it)"))
      .add("drop_cache", &o::drop_cache,
           choice_setting("MILLRACE_DROP_CACHE", "on|off",
                          "drop pages from the page cache once they have been read"))
      .add("read_timeout", &o::read_timeout,
           seconds_setting("MILLRACE_READ_TIMEOUT", 0.001, 86400,
                           "seconds that a disk may return nothing before its read fails"));
}

void add_disks(option_list<source_options>& list) {
  using o = source_options;
  setting serialize = choice_setting(
      "MILLRACE_SERIALIZE", "auto|off",
      "large reads at once on a rotational device (auto: 1 on rotational disks, else unlimited)");
  serialize.type = setting_type::choice_or_integer;
  serialize.least = 1;
  serialize.most = 1024;
  const setting patience = seconds_setting(
      "MILLRACE_GATE_PATIENCE", 0.01, 86400,
      "seconds without a sign of life (at a gate, filling the cache) before others stop waiting");
  list.group("Rotational disks")
      .add("spindles", &o::spindles,
           integer_setting(
               "MILLRACE_SPINDLES", 1, 1024,
               "disks that one large read keeps busy; set: the files are on rotational disks"))
      .add("serialize", &o::serialize, serialize)
      .add("extent_bytes", &o::extent_bytes,
           size_setting("MILLRACE_READ_EXTENT", 64_KiB, 1_GiB,
                        "bytes of one turn at a rotational device (auto: 16M or more, by its "
                        "measured seeks)"))
      .add("gate_folder", &o::gate_folder,
           text_setting("MILLRACE_GATE_DIR",
                        "where processes take turns (auto: /run/lock, /dev/shm or /tmp)"))
      .add("gate_patience", &o::gate_patience, patience)
      .add("cache.patience", [](auto& to) -> auto& { return to.cache.patience; }, patience);
}

// Whether a password may extend beyond this part, before or after it: a password may contain ';' or
// '='.
bool may_cut_a_secret(std::string_view part) {
  const auto scheme = part.find("://");
  if (part.substr(0, scheme).find('@') != part.npos) return true;
  if (scheme == part.npos) return false;
  const std::string_view rest = part.substr(scheme + 3);
  const std::string_view authority = rest.substr(0, rest.find_first_of("/?#"));
  if (authority.find('@') != authority.npos || authority.starts_with('[')) return false;
  const auto colon = std::min(authority.find(':'), authority.size());
  return authority.find_first_not_of("0123456789", std::min(colon + 1, authority.size())) !=
             authority.npos &&
         colon < authority.size();
}

// Whether a command, a query or a secret continues to the end of this part, and perhaps after it: a
// ';' does not end them. `shown`: the part without secrets.
bool may_go_on(std::string_view part, std::string_view shown) {
  return part.find_first_of("?#") != part.npos || lowered(part).find("pipe:") != part.npos ||
         shown.ends_with("...");
}

// The URLs of the rules, without secrets.
std::string shown_rewrites(const std::string& value) {
  std::vector<std::string> shown;
  bool goes_on = false;
  for (const std::string& part : split(value, ';')) {
    const auto equals = std::min(part.find('='), part.size());
    const std::string from = part.substr(0, equals);
    const std::string to = part.substr(std::min(equals + 1, part.size()));
    // A '=' in a query does not end a prefix: such a part lacks one.
    const bool is_rule = from.find_first_of("?#") == std::string::npos;
    if (may_cut_a_secret(from) || may_cut_a_secret(to)) return "...";
    if (goes_on && shown.back() != "...") shown.emplace_back("...");
    if (goes_on) continue;
    shown.push_back(is_rule ? redacted(from) + "=" + redacted(to) : redacted(part));
    goes_on = may_go_on(part, shown.back());
  }
  return fmt::format("{}", fmt::join(shown, ";"));
}

option_list<source_options> all_variables() {
  using o = source_options;
  option_list<source_options> list("source_options");
  add_reading(list);
  add_disks(list);
  list.add_part(&o::http, http_options::variables())
      .group("URLs and archives")
      .add_text(text_setting("MILLRACE_REWRITE",
                             "prefixes of URLs to replace: 'from=to;from=to' (auto: none)",
                             shown_rewrites),
                [](source_options& to, const std::string& text) -> result<void> {
                  auto rules = parse_rewrites(text);
                  if (!rules) return rules.error();
                  to.rewrites = std::move(*rules);
                  return {};
                })
      .add("allow_pipe", &o::allow_pipe,
           choice_setting("MILLRACE_ALLOW_PIPE", "0|1",
                          "whether pipe: URLs may run commands of the shell"))
      .add_part(&o::cache, cache_options::variables())
      .add("max_expansion", &o::max_expansion,
           integer_setting("MILLRACE_MAX_EXPANSION", 1, 1'000'000,
                           "factor by which a compressed shard may grow when it is unpacked"));
  return list;
}

}  // namespace

const option_list<source_options>& source_options::variables() {
  static const auto& list = *new auto(all_variables());
  return list;
}

}  // namespace millrace
