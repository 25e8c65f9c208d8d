#include "io/source.h"

#include <fmt/format.h>

#include <filesystem>

#include "io/disk.h"
#include "io/file_source.h"
#include "io/http_source.h"

namespace millrace {

source_options source_options::from(const settings& s) {
  const auto text = [&](const char* name) { return s.text(name); };
  const std::string serialize = text("MILLRACE_SERIALIZE");
  const std::string direct = text("MILLRACE_DIRECT");
  const std::string folder = text("MILLRACE_GATE_DIR");
  return {
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
      .http_connect_timeout = s.seconds("MILLRACE_HTTP_CONNECT_TIMEOUT"),
      .http_first_byte_timeout = s.seconds("MILLRACE_HTTP_FIRST_BYTE_TIMEOUT"),
      .http_progress_timeout = s.seconds("MILLRACE_HTTP_PROGRESS_TIMEOUT"),
      .http_attempts = s.integer("MILLRACE_HTTP_ATTEMPTS"),
      .http_backoff = s.seconds("MILLRACE_HTTP_BACKOFF"),
  };
}

source_memory memory_for(const source_options& options, const std::string& url) {
  const auto where = parse_url(url);
  if (where && where->scheme == "file") return file_memory(options, where->path);
  const auto ahead = static_cast<std::size_t>(options.read_ahead);
  return {2 * options.chunk_bytes, (1 + ahead) * options.chunk_bytes};
}

std::optional<std::string> rate_lost(const source_options& options, const std::string& url,
                                     std::size_t share_bytes, std::size_t shards,
                                     std::size_t budget_bytes) {
  const auto where = parse_url(url);
  const auto found = where && where->scheme == "file" ? storage_of(where->path) : std::nullopt;
  if (!found) return std::nullopt;
  return rate_lost(with_overrides(*found, options), options, share_bytes, shards, budget_bytes);
}

std::uint64_t working_set_of(const std::vector<std::string>& urls) {
  if (urls.empty()) return 0;
  const auto first = parse_url(urls.front());
  if (!first || first->scheme != "file") return 0;
  std::error_code none;
  const auto size = std::filesystem::file_size(first->path, none);
  return none ? 0 : size * urls.size();
}

void source_registry::add(std::string scheme, source_factory factory) {
  factories_[std::move(scheme)] = std::move(factory);
}

awaitable<result<std::unique_ptr<byte_source>>> source_registry::open(source_context context,
                                                                      std::string text,
                                                                      std::uint64_t offset) const {
  auto where = parse_url(text);
  if (!where) co_return where.error();
  const auto found = factories_.find(where->scheme);
  if (found == factories_.end()) {
    std::string known;
    for (const auto& [scheme, factory] : factories_) {
      known += fmt::format("{}{}", known.empty() ? "" : ", ", scheme);
    }
    co_return error(errc::unsupported, fmt::format("no source for '{}:'", where->scheme))
        .at(text)
        .hint("this build reads " + known);
  }
  co_return co_await found->second(std::move(context), std::move(text), std::move(*where), offset);
}

source_registry standard_sources(io_thread& io, const source_options& options) {
  source_registry made;
  const auto disks = std::make_shared<disk_table>(io.executor(), options);
  made.add("file", file_source_factory(disks));
  made.add("-", stdin_source_factory(disks));
  made.add("http", http_source_factory(make_http_client()));
  return made;
}

}  // namespace millrace
