#include "pipeline/wids/read_index.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/nesting.h"
#include "engine/base/units.h"
#include "io/names/url.h"
#include "pipeline/run/engine.h"
#include "pipeline/stages/raw_bytes.h"
#include "pipeline/wids/sidecar.h"

namespace millrace {

std::size_t room_for_index(const engine& eng) {
  return eng.options().memory_bytes / 4;
}

std::string read_text(engine& eng, const std::string& url) {
  const std::size_t most = std::min(largest_json_bytes, eng.options().memory_bytes / 8);
  std::string out;
  auto data = eng.run(raw_bytes({url}));
  for (const bytes& piece : data) {
    if (out.size() + piece.size() > most) {
      throw failure(
          error(errc::too_large,
                fmt::format("an index larger than {}, the most that is read", format_bytes(most)))
              .at(url)
              .hint("raise engine_options.memory_bytes (MILLRACE_MEMORY)"));
    }
    out += piece.text();
  }
  return out;
}

shard_index read_index(engine& eng, const std::string& url, const std::string& base) {
  const auto load = [&](const std::string& part) -> result<std::string> {
    try {
      return read_text(eng, part);
    } catch (const failure& f) {
      return f.why();
    }
  };
  shard_index made =
      parse_index(load(url).value(), url, base, load, 2 * room_for_index(eng)).value();
  // A URL's query (a signature, a version) is valid for this object only, so no sidecar is looked
  // for.
  const auto where = parse_url(url);
  if (where && is_web(*where) && where->path.find('?') != std::string::npos) {
    return made;
  }
  std::string beside = sidecar_of(url);
  if (where && where->scheme == "file") {
    const std::string there = sidecar_there(where->path);
    if (there != sidecar_of(where->path)) beside = there;
  }
  const auto offsets = load(beside);
  if (offsets) {
    add_offsets(made, *offsets, beside).value();
  } else if (offsets.error().kind() != errc::not_found) {
    throw failure(offsets.error());
  }
  return made;
}

}  // namespace millrace
