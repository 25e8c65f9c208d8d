#include "io/standard_sources.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>

#include "engine/base/units.h"
#include "engine/threads/io_thread.h"
#include "io/cache/cached_source.h"
#include "io/disks/disk.h"
#include "io/files/file_source.h"
#include "io/files/pipe_source.h"
#include "io/http/transport.h"
#include "io/names/rewrites.h"
#include "io/stores/http.h"
#include "io/stores/store.h"

namespace millrace {

source_registry standard_sources(io_thread& io, const source_options& options) {
  source_registry made;
  const auto disks = std::make_shared<disk_table>(io.executor(), options);
  const auto cache = std::make_shared<object_cache>(options.cache, disks);
  made.add_unguarded("file", cached_files(cache, file_source_factory(disks)));
  made.add_unguarded("pipe", pipe_source_factory());
  made.add_unguarded("-", stdin_source_factory(disks));
  const auto stack = std::make_shared<http_stack>(
      options.http, real_network(options.http.receive_buffer_bytes), real_time());
  made.add_unguarded("http", http_source_factory(stack, cache));
  made.add_unguarded("https", http_source_factory(stack, cache));
  for (const auto& [scheme, store] : object_stores(stack)) {
    made.add_unguarded(scheme, store_source_factory(stack, store, cache));
  }
  return made;
}

source_memory memory_for(const source_options& options, std::span<const std::string> urls) {
  const auto ahead = static_cast<std::size_t>(options.read_ahead);
  // Parts of an object on a server that are fetched in parallel wait in memory for their turn.
  const auto parts_at_once = static_cast<std::size_t>(options.http.split.value_or(4) + 1);
  const std::size_t parts = std::max(64_MiB, options.http.part_bytes * parts_at_once);
  source_memory most{2 * options.chunk_bytes, (1 + ahead) * options.chunk_bytes};
  std::set<std::array<bool, 3>> kinds;
  for (const std::string& url : urls) {
    const auto where = parse_url(rewritten(url, options.rewrites));
    if (!where) continue;  // opening it will report the error
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
  const auto found =
      where && where->scheme == "file" ? storage_of(where->path) : result<storage>(error());
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

}  // namespace millrace
