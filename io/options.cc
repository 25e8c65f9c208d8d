#include "io/options.h"

namespace millrace {

result<source_options> source_options::from(const settings& s) {
  auto http = http_options::from(s);
  if (!http) return http.error();
  auto rewrites =
      parse_rewrites(s.text("MILLRACE_REWRITE") == "auto" ? "" : s.text("MILLRACE_REWRITE"));
  if (!rewrites) return rewrites.error();
  const auto text = [&](const char* name) { return s.text(name); };
  const std::string serialize = text("MILLRACE_SERIALIZE");
  const std::string direct = text("MILLRACE_DIRECT");
  const std::string folder = text("MILLRACE_GATE_DIR");
  return source_options{
      .chunk_bytes = s.bytes("MILLRACE_READ_CHUNK"),
      .read_ahead = s.integer("MILLRACE_READ_AHEAD"),
      .read_depth = s.integer("MILLRACE_READ_DEPTH"),
      .direct = direct == "on"    ? direct_reads::always
                : direct == "off" ? direct_reads::never
                                  : direct_reads::automatic,
      .drop_cache = text("MILLRACE_DROP_CACHE") == "on",
      .spindles = s.integer("MILLRACE_SPINDLES"),
      .serialize =
          serialize == "auto" ? std::nullopt : std::optional(s.integer("MILLRACE_SERIALIZE")),
      .extent_bytes = s.bytes("MILLRACE_READ_EXTENT"),
      .gate_folder = folder == "auto" ? "" : folder,
      .gate_patience = s.seconds("MILLRACE_GATE_PATIENCE"),
      .read_timeout = s.seconds("MILLRACE_READ_TIMEOUT"),
      .http = std::move(*http),
      .allow_pipe = text("MILLRACE_ALLOW_PIPE") == "1",
      .cache = cache_options::from(s),
      .rewrites = std::move(*rewrites),
      .max_expansion = s.integer("MILLRACE_MAX_EXPANSION"),
  };
}

}  // namespace millrace
