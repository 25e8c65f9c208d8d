#include "pipeline/stages/select.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>

#include "engine/base/printable.h"
#include "engine/base/random.h"
#include "engine/files/line_file.h"
#include "pipeline/samples/fields.h"

namespace millrace {

sample_stage select(std::function<bool(const sample&)> wanted) {
  return {"select", [wanted = std::move(wanted)](sample s) -> result<std::optional<sample>> {
            if (!wanted(s)) return std::optional<sample>();
            return std::optional(std::move(s));
          }};
}

sample_stage select_part(double probability, std::uint64_t seed) {
  if (!(probability >= 0 && probability <= 1)) {
    throw failure(error(errc::usage, fmt::format("a probability of {}", probability)));
  }
  return select([probability, seed](const sample& s) {
    const auto place = static_cast<std::uint64_t>(s.where.shard) << 40 ^
                       static_cast<std::uint64_t>(s.where.offset);
    random_stream random(seed, purpose::stage, static_cast<std::uint64_t>(s.where.epoch), place);
    return random.uniform() < probability;
  });
}

sample_stage rename_fields(std::vector<std::pair<std::string, std::string>> rules, bool all) {
  const auto what = [rules = std::move(rules), all](sample s) -> result<std::optional<sample>> {
    std::vector<bool> used(rules.size());
    for (field& f : s.fields) {
      const auto rule = std::ranges::find_if(
          rules, [&](const auto& r) { return matches_any(r.first, f.extension); });
      if (rule == rules.end()) continue;
      used[static_cast<std::size_t>(rule - rules.begin())] = true;
      f.extension = rule->second;
    }
    for (std::size_t i = 0; all && i < rules.size(); ++i) {
      if (used[i]) continue;
      return of_sample(s, error(errc::missing_field, fmt::format("no field '{}'", rules[i].first)));
    }
    for (std::size_t i = 0; i < s.fields.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        if (s.fields[i].extension != s.fields[j].extension) continue;
        return of_sample(
            s, error(errc::duplicate_field,
                     fmt::format("two fields are renamed to '{}'", s.fields[i].extension)));
      }
    }
    return std::optional(std::move(s));
  };
  return {.name = "rename_fields", .what = what, .keeps_all = true};
}

sample_stage keep_fields(std::string patterns) {
  return {.name = "keep_fields",
          .what = [patterns = std::move(patterns)](sample s) -> result<std::optional<sample>> {
            std::erase_if(s.fields,
                          [&](const field& f) { return !matches_any(patterns, f.extension); });
            return std::optional(std::move(s));
          },
          .keeps_all = true};
}

sample_stage drop_fields(std::string patterns) {
  return {.name = "drop_fields",
          .what = [patterns = std::move(patterns)](sample s) -> result<std::optional<sample>> {
            std::erase_if(s.fields,
                          [&](const field& f) { return matches_any(patterns, f.extension); });
            return std::optional(std::move(s));
          },
          .keeps_all = true};
}

sample_stage log_keys(std::string path) {
  const auto file = std::make_shared<const line_file>(std::move(path), "the list of keys");
  return {.name = "log_keys",
          .what = [file](sample s) -> result<std::optional<sample>> {
            auto added =
                file->add(fmt::format("{}\t{}\t{}\n", printable(s.key),
                                      s.url ? printable(redacted(*s.url)) : "", s.where.offset));
            if (!added) return added.error();
            return std::optional(std::move(s));
          },
          .keeps_all = true};
}

}  // namespace millrace
