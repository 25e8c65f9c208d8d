#include "io/source.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>
#include <sstream>

#include "io/cache/cached_source.h"
#include "io/disk.h"
#include "io/file_source.h"
#include "io/http/source.h"
#include "io/pipe_source.h"
#include "io/shard_urls.h"
#include "io/stores/store.h"

namespace millrace {

namespace {

result<http_options> http_options_from(const settings& s) {
  const auto text = [&](const char* name) {
    const std::string& value = s.text(name);
    return value == "auto" ? std::string() : value;
  };
  http_options o{
      .timeouts = {.connect = s.seconds("MILLRACE_HTTP_CONNECT_TIMEOUT"),
                   .tls = s.seconds("MILLRACE_HTTP_TLS_TIMEOUT"),
                   .first_byte = s.seconds("MILLRACE_HTTP_FIRST_BYTE_TIMEOUT"),
                   .progress = s.seconds("MILLRACE_HTTP_PROGRESS_TIMEOUT")},
      .attempts = s.integer("MILLRACE_HTTP_ATTEMPTS"),
      .backoff = s.seconds("MILLRACE_HTTP_BACKOFF"),
      .connections = s.integer("MILLRACE_HTTP_CONNECTIONS"),
      .idle = s.seconds("MILLRACE_HTTP_IDLE"),
      .receive_buffer_bytes = s.bytes("MILLRACE_HTTP_RECEIVE_BUFFER"),
      .part_bytes = s.bytes("MILLRACE_HTTP_PART"),
      .hedge = s.integer("MILLRACE_HTTP_HEDGE") / 100.0,
      .private_redirects = s.text("MILLRACE_HTTP_PRIVATE_REDIRECTS") == "on",
      .user_agent = s.text("MILLRACE_HTTP_USER_AGENT"),
      .tls = {.ca_file = text("MILLRACE_CA_FILE"),
              .client_cert = text("MILLRACE_CLIENT_CERT"),
              .client_key = text("MILLRACE_CLIENT_KEY")},
      .netrc = text("MILLRACE_NETRC"),
      .s3_unsigned = s.text("MILLRACE_S3_UNSIGNED") == "on",
      .s3_requester_pays = s.text("MILLRACE_S3_REQUESTER_PAYS") == "on",
      .environment = s.foreign(),
  };
  if (s.text("MILLRACE_HTTP_SPLIT") == "off") {
    o.split = 1;
  } else if (const int parts = s.integer("MILLRACE_HTTP_SPLIT"); parts > 0) {
    o.split = parts;
  }
  const std::string& path_style = s.text("MILLRACE_S3_PATH_STYLE");
  if (path_style != "auto") o.s3_path_style = path_style == "on";
  const std::string& netrc = o.variable("NETRC");
  const std::string& home = o.variable("HOME");
  if (o.netrc.empty() && !netrc.empty()) o.netrc = netrc;
  if (o.netrc.empty() && !home.empty()) o.netrc = home + "/.netrc";
  if (o.netrc == "off") o.netrc.clear();
  auto fields = parse_fields(text("MILLRACE_HTTP_HEADERS"));
  if (!fields) return fields.error();
  o.fields = std::move(*fields);
  auto tokens = parse_token_files(text("MILLRACE_HTTP_TOKENS"));
  if (!tokens) return tokens.error();
  o.tokens = std::move(*tokens);
  return o;
}

cache_options cache_options_from(const settings& s) {
  const auto text = [&](const char* name) {
    const std::string& value = s.text(name);
    return value == "auto" ? std::string() : value;
  };
  cache_options o{.folder = text("MILLRACE_CACHE"),
                  .most_bytes = s.bytes("MILLRACE_CACHE_SIZE"),
                  .least_free = s.bytes("MILLRACE_CACHE_FREE"),
                  .paths = {},
                  .patience = s.seconds("MILLRACE_GATE_PATIENCE")};
  std::istringstream paths(text("MILLRACE_CACHE_PATHS"));
  for (std::string path; std::getline(paths, path, ';');) {
    if (!path.empty()) o.paths.push_back(path);
  }
  return o;
}

}  // namespace

result<source_options> source_options::from(const settings& s) {
  auto http = http_options_from(s);
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
      .cache = cache_options_from(s),
      .rewrites = std::move(*rewrites),
      .max_expansion = s.integer("MILLRACE_MAX_EXPANSION"),
  };
}

source_memory memory_for(const source_options& options, std::span<const std::string> urls) {
  const auto ahead = static_cast<std::size_t>(options.read_ahead);
  // Parts of an object on a server that are fetched side by side wait in memory for their turn.
  const auto parts_at_once = static_cast<std::size_t>(options.http.split.value_or(4) + 1);
  const std::size_t parts = std::max(64_MiB, options.http.part_bytes * parts_at_once);
  source_memory most{2 * options.chunk_bytes, (1 + ahead) * options.chunk_bytes};
  std::set<std::array<bool, 3>> kinds;
  for (const std::string& url : urls) {
    const auto where = parse_url(rewritten(url, options.rewrites));
    if (!where) continue;  // opening it will say so
    const bool is_file = where->scheme == "file";
    const bool splits = !where->host.empty() && options.http.split != 1;
    const bool cached = is_cached(*where, options.cache);
    if (!kinds.insert({is_file, splits, cached}).second) continue;
    source_memory need = most;
    if (is_file) {
      need = file_memory(options, where->path);
    } else if (splits) {
      need.most = std::max(need.most, parts);
    }
    if (cached) need = with_cache(need, options);
    most = {std::max(most.least, need.least), std::max(most.most, need.most)};
  }
  return most;
}

std::optional<std::string> rate_lost(const source_options& options, const std::string& url,
                                     std::size_t share_bytes, std::size_t shards,
                                     std::size_t budget_bytes) {
  const auto where = parse_url(rewritten(url, options.rewrites));
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

void source_counters::add(const source_counters& other) {
  bytes += other.bytes;
  requests += other.requests;
  retries += other.retries;
  resumed += other.resumed;
  stalls += other.stalls;
  hedges += other.hedges;
  hedges_won += other.hedges_won;
  wasted_bytes += other.wasted_bytes;
  direct_bytes += other.direct_bytes;
  seeks_avoided += other.seeks_avoided;
  cache_hits += other.cache_hits;
  cache_misses += other.cache_misses;
  cache_healed += other.cache_healed;
  gate_wait_s += other.gate_wait_s;
  memory_wait_s += other.memory_wait_s;
  most_depth += other.most_depth;
  first_byte_wait_s += other.first_byte_wait_s;
  reads.add(other.reads);
  first_bytes.add(other.first_bytes);
}

namespace {

// What code of the program's has thrown, with the URL that it was about.
awaitable<error> thrown_at(std::exception_ptr thrown, std::string url) {
  error why = co_await error_unless_stopped(std::move(thrown), "the source");
  if (why.where().empty()) why.at(url);
  co_return why;
}

class guarded_source final : public byte_source {
 public:
  guarded_source(std::unique_ptr<byte_source> from, std::string url)
      : from_(std::move(from)), url_(std::move(url)) {}
  awaitable<result<bytes>> read() override {
    std::exception_ptr thrown;
    try {
      co_return co_await from_->read();
    } catch (...) {
      thrown = std::current_exception();
    }
    co_return co_await thrown_at(std::move(thrown), url_);
  }

 private:
  std::unique_ptr<byte_source> from_;
  std::string url_;
};

awaitable<result<std::unique_ptr<byte_source>>> open_guarded(source_factory factory,
                                                             source_context context,
                                                             std::string text, url where,
                                                             byte_range range) {
  std::exception_ptr thrown;
  try {
    auto opened = co_await factory(std::move(context), text, std::move(where), range);
    if (!opened) co_return opened.error();
    if (*opened) co_return std::make_unique<guarded_source>(std::move(*opened), text);
    co_return error(errc::usage, "the source factory of this scheme opened nothing")
        .at(text)
        .hint("return a source, or an error");
  } catch (...) {
    thrown = std::current_exception();
  }
  co_return co_await thrown_at(std::move(thrown), text);
}

// Those of millrace throw nothing but a stop, and need no guard.
struct own_factory {
  source_factory open;
  awaitable<result<std::unique_ptr<byte_source>>> operator()(source_context context,
                                                             std::string text, url where,
                                                             byte_range range) const {
    return open(std::move(context), std::move(text), std::move(where), range);
  }
};

}  // namespace

void source_registry::add(std::string scheme, source_factory factory) {
  if (factory.target<own_factory>() != nullptr) {
    factories_[std::move(scheme)] = std::move(factory);
    return;
  }
  factories_[std::move(scheme)] = [factory = std::move(factory)](source_context context,
                                                                 std::string text, url where,
                                                                 byte_range range) {
    return open_guarded(factory, std::move(context), std::move(text), std::move(where), range);
  };
}

awaitable<result<std::unique_ptr<byte_source>>> source_registry::open(source_context context,
                                                                      std::string text,
                                                                      byte_range range) const {
  text = rewritten(text, context.options.rewrites);
  auto where = parse_url(text);
  if (!where) co_return where.error();
  const auto found = factories_.find(where->scheme);
  if (found == factories_.end()) {
    std::string known;
    for (const auto& [scheme, factory] : factories_) {
      known += fmt::format("{}{}", known.empty() ? "" : ", ", scheme);
    }
    co_return error(errc::unsupported, fmt::format("'{}:' URLs are not supported", where->scheme))
        .at(text)
        .hint("this build supports " + known);
  }
  co_return co_await found->second(std::move(context), std::move(text), std::move(*where), range);
}

source_registry standard_sources(io_thread& io, const source_options& options) {
  source_registry made;
  const auto disks = std::make_shared<disk_table>(io.executor(), options);
  const auto cache = std::make_shared<object_cache>(options.cache, disks);
  made.add("file", own_factory{cached_files(cache, file_source_factory(disks))});
  made.add("pipe", own_factory{pipe_source_factory()});
  made.add("-", own_factory{stdin_source_factory(disks)});
  const auto stack = std::make_shared<http_stack>(
      options.http, real_network(options.http.receive_buffer_bytes), real_time());
  made.add("http", own_factory{http_source_factory(stack, cache)});
  made.add("https", own_factory{http_source_factory(stack, cache)});
  for (const auto& [scheme, store] : object_stores(stack)) {
    made.add(scheme, own_factory{store_source_factory(stack, store, cache)});
  }
  return made;
}

}  // namespace millrace
