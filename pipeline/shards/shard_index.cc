#include "pipeline/shards/shard_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <numeric>
#include <optional>
#include <span>
#include <utility>

#include "engine/base/json_tree.h"
#include "engine/base/nesting.h"
#include "engine/base/words.h"
#include "engine/coroutines/scope.h"
#include "io/cache/entry_name.h"
#include "io/names/url_scheme.h"
#include "io/shard_urls.h"
#include "io/stores/known_stores.h"

namespace millrace {
namespace {

// Query parameters that identify an object. Any other parameter may authorise a request.
constexpr std::array<std::string_view, 23> naming_parameters = {
    "alt",   "dataset",  "download", "file",   "filename", "format",     "generation", "id",
    "index", "name",     "number",   "offset", "part",     "partnumber", "path",       "raw",
    "ref",   "revision", "shard",    "split",  "v",        "version",    "versionid"};
constexpr std::uint64_t most_samples = std::uint64_t{1} << 40;

error bad(std::string what, const std::string& where) {
  return error(errc::bad_index, std::move(what)).at(where).hint(index_again_hint);
}

// The folder part of a path or URL.
std::string folder_of_url(const std::string& url) {
  auto path = url.substr(0, url.find_first_of("?#"));
  const auto slash = path.rfind('/');
  if (slash == path.npos) return "";
  const auto scheme = path.find("://");
  if (scheme != path.npos && slash < scheme + 3) return path;
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string text_or_none(const json_tree& from, const char* key) {
  return std::string(from.text_of(key));
}

bool is_object(const json_tree& what) {
  return what.as<json_tree::object>() != nullptr;
}

// The items of a list; nullopt if `what` is not a list.
std::optional<std::span<const json_tree>> items_of(const json_tree& what) {
  if (const auto* const items = what.as<json_tree::list>()) return *items;
  const auto* const numbers = what.as<json_tree::integers>();
  if (numbers == nullptr) return std::nullopt;
  // An index never lists numbers: returns one invalid entry.
  static const json_tree number;
  return std::span(&number, numbers->empty() ? 0 : 1);
}

result<std::int64_t> count_in(const json_tree& from, const char* key, const std::string& what,
                              const std::string& where) {
  const json_tree* const there = from.find(key);
  if (there == nullptr) return 0;
  const auto* const count = there->as<std::int64_t>();
  if (count == nullptr || *count < 0 || static_cast<std::uint64_t>(*count) > most_samples) {
    return bad(fmt::format("'{}' of {} is {}, which is not a count", key, what, there->excerpt()),
               where);
  }
  return *count;
}

// The hint for lack of memory.
constexpr const char* raise_memory = "raise engine_options.memory_bytes (MILLRACE_MEMORY)";

// The origin of the URLs of an index.
struct place {
  std::string where;      // the index
  std::string base;       // prefix of relative URLs
  bool is_given = false;  // whether the user gave the base
};

// Whether the index is the user's own: a file, or standard input.
bool is_local(const std::string& index) {
  const auto where = parse_url(index);
  return where && (where->scheme == "file" || where->scheme == "-");
}

std::ptrdiff_t steps_up(const url& path) {
  const std::filesystem::path parts(path.path);
  return std::ranges::count(parts, "..");
}

// Whether a path that was joined to a folder is inside it. A path with more ".." than the folder is
// not, because a link in it may lead elsewhere.
bool is_within(const url& folder, const url& file) {
  if (steps_up(file) != steps_up(folder)) return false;
  const auto from = std::filesystem::path(folder.path).lexically_normal();
  const auto way = std::filesystem::path(file.path).lexically_normal().lexically_relative(from);
  return !way.empty() && *way.begin() != "..";
}

// Whether an index from an untrusted source may name this URL, which is checked as it will be
// opened. `is_relative`: joined to the index's base.
bool may_name(const place& index, const url& whole, bool is_relative) {
  if (is_on_network(whole)) return true;
  const auto base = parse_url(index.base);
  if (!is_relative || !base || base->scheme != whole.scheme) return false;
  if (!whole.socket.empty()) {  // the user must have named the socket, or the index come from it
    const auto own = parse_url(index.where);
    return (index.is_given && whole.socket == base->socket) || (own && whole.socket == own->socket);
  }
  return index.is_given && whole.scheme == "file" && is_within(*base, whole);
}

// Returns a URL of an index as it is to be opened. An index that is not a local file may come from
// anyone: it may not name commands or local files, except relative ones joined to a base that the
// user gave.
result<std::string> named_by(const place& index, const std::string& url) {
  std::string whole = url_in_base(index.base, url);
  if (is_local(index.where)) return whole;
  const auto parts = parse_url(whole);
  if (!parts) return bad("a shard's URL: " + parts.error().what(), index.where);
  if (may_name(index, *parts, !has_scheme(url) && !url.starts_with('/'))) return whole;
  return bad(
      fmt::format("an index that is not a local file names '{}', which is not on the network",
                  redacted(url)),
      index.where);
}

// Bytes of an entry, including the slack of a list that doubles.
std::size_t memory_of(const shard_index::shard& one) {
  return 3 * sizeof one + one.url.capacity() + one.md5.capacity() + one.dataset.capacity();
}

// A part's name and base are repeated in each of its shards. `room` is reduced by the memory they
// take.
result<void> add_shards(shard_index& to, const json_tree* list, const place& from,
                        const std::string& dataset, std::size_t& room) {
  const std::string& where = from.where;
  const auto entries = list == nullptr ? std::nullopt : items_of(*list);
  if (!entries) return bad("'shardlist' is not a list", where);
  for (const json_tree& entry : *entries) {
    const std::string what = fmt::format("shard {}", to.shards.size());
    if (!is_object(entry) || text_or_none(entry, "url").empty()) {
      return bad(what + " has no 'url'", where);
    }
    if (entry.find("nsamples") == nullptr) return bad(what + " has no 'nsamples'", where);
    const auto samples = count_in(entry, "nsamples", what, where);
    if (!samples) return samples.error();
    const auto bytes = count_in(entry, "filesize", what, where);
    if (!bytes) return bytes.error();
    auto url = named_by(from, text_or_none(entry, "url"));
    if (!url) return url.error();
    to.shards.push_back({.url = std::move(*url),
                         .samples = *samples,
                         .bytes = *bytes,
                         .md5 = text_or_none(entry, "md5sum"),
                         .dataset = dataset,
                         .blocks = {}});
    const std::size_t taken = memory_of(to.shards.back());
    if (taken > room) {
      return error(errc::too_large, "the list of its shards takes more memory than is allowed")
          .at(where)
          .hint(raise_memory);
    }
    room -= taken;
  }
  return {};
}

result<json_tree> parsed_index(std::string_view text, const std::string& where, std::size_t most) {
  if (const auto why = why_not_parsed(text)) {
    const bool is_object = text.find('{') == text.find_first_not_of(" \t\r\n");
    return bad("not an index: " + (is_object ? *why : "it is not a JSON object"), where);
  }
  auto parsed = json_tree::read(text, {.most = most});
  if (!parsed && parsed.error().kind() == errc::too_large) {
    return error(parsed.error()).at(where).hint(raise_memory);
  }
  if (!parsed || !is_object(*parsed)) return bad("it is not a JSON object", where);
  const json_tree* const version = parsed->find("wids_version");
  const std::string told = version == nullptr ? "null" : version->excerpt();
  if (told != "1" && told != "1.0") {
    return bad(fmt::format("'wids_version' is {}, this build reads 1", told), where);
  }
  return parsed;
}

}  // namespace

std::int64_t shard_index::samples() const {
  return std::accumulate(shards.begin(), shards.end(), std::int64_t{0},
                         [](std::int64_t sum, const shard& s) { return sum + s.samples; });
}

std::int64_t shard_index::bytes() const {
  return std::accumulate(shards.begin(), shards.end(), std::int64_t{0},
                         [](std::int64_t sum, const shard& s) { return sum + s.bytes; });
}

bool shard_index::has_offsets() const {
  return !shards.empty() && std::ranges::none_of(shards, [](const shard& s) {
    return s.samples > 0 && s.blocks.empty();
  });
}

std::vector<std::int64_t> shard_index::first_samples() const {
  std::vector<std::int64_t> out;
  std::int64_t before = 0;
  for (const shard& s : shards) {
    out.push_back(before);
    before += s.samples;
  }
  return out;
}

std::string url_in_base(const std::string& base, const std::string& url) {
  if (base.empty() || has_scheme(url)) return url;
  const bool is_pattern = base.find("%s") != base.npos || base.find("{}") != base.npos;
  if (is_pattern) return with_base(base, url);
  const auto scheme = base.find("://");
  const auto host_end = scheme == base.npos ? 0 : base.find('/', scheme + 3);
  const std::string origin = base.substr(0, scheme == base.npos ? 0 : host_end);
  std::string path = scheme == base.npos             ? base
                     : host_end == std::string::npos ? ""
                                                     : base.substr(host_end);
  if (url.starts_with('/')) return origin + url;
  // "x/../y" becomes "y"; what climbs out of a relative path is kept.
  std::string merged = path + (path.ends_with('/') ? "" : "/") + url;
  for (auto up = merged.find("/../"); up != merged.npos && up > 0; up = merged.find("/../")) {
    const auto parent = merged.rfind('/', up - 1);
    const auto from = parent == merged.npos ? 0 : parent + 1;
    if (merged.substr(from, up - from) == "..") break;
    merged.erase(from, up + 4 - from);
  }
  return origin + merged;
}

namespace {

// Adds one of an index's parts: embedded, or at a URL.
result<void> add_part(shard_index& to, const json_tree& part, const place& top,
                      const text_loader& load, std::size_t most, std::size_t& room) {
  if (!is_object(part)) return bad("an entry of 'datasets' is not an object", top.where);
  std::optional<json_tree> included;
  place from = top;
  if (const std::string source = text_or_none(part, "source_url"); !source.empty()) {
    const auto url = named_by(top, source);
    if (!url) return url.error();
    const auto loaded = load(*url);
    if (!loaded) return loaded.error();
    auto parsed = parsed_index(*loaded, *url, most);
    if (!parsed) return parsed.error();
    included = std::move(*parsed);
    if (included->find("datasets") != nullptr) {
      return bad("an included index includes other indices", *url);
    }
    from = {.where = *url, .base = folder_of_url(*url)};
  }
  const json_tree& whole = included ? *included : part;
  if (const std::string own = text_or_none(whole, "base"); !own.empty()) {
    from.base = own;
    from.is_given = false;
  }
  const std::string named =
      text_or_none(part, "name").empty() ? text_or_none(whole, "name") : text_or_none(part, "name");
  return add_shards(to, whole.find("shardlist"), from, named, room);
}

}  // namespace

result<shard_index> parse_index(std::string_view text, const std::string& where,
                                const std::string& base, const text_loader& load,
                                std::size_t most) {
  std::size_t room = most / 2;
  auto parsed = parsed_index(text, where, most / 2);
  if (!parsed) return parsed.error();
  shard_index made;
  made.name = text_or_none(*parsed, "name");
  made.info = text_or_none(*parsed, "info");
  made.base = !base.empty()                            ? base
              : !text_or_none(*parsed, "base").empty() ? text_or_none(*parsed, "base")
                                                       : folder_of_url(where);
  const place top{.where = where, .base = made.base, .is_given = !base.empty()};
  if (const json_tree* const list = parsed->find("shardlist")) {
    if (auto added = add_shards(made, list, top, made.name, room); !added) return added.error();
  }
  const json_tree* const datasets = parsed->find("datasets");
  const auto parts = datasets == nullptr ? std::span<const json_tree>() : items_of(*datasets);
  if (!parts) return bad("'datasets' is not a list", where);
  for (const json_tree& part : *parts) {
    if (auto added = add_part(made, part, top, load, most / 2, room); !added) {
      return added.error();
    }
  }
  if (made.shards.empty()) return bad("the index lists no shards", where);
  return made;
}

std::string url_without_secrets(const std::string& url) {
  const auto question = url.find('?');
  if (!has_scheme(url) || (question == url.npos && url.find('@') == url.npos)) return url;
  std::string named = canonical_url(url);
  // In a store's key, '?' may be part of the name: without '=' there are no parameters.
  const bool has_parameters = named.find('=', named.find('?')) != named.npos;
  const auto where = parse_url(named);
  if (!(where && is_web(*where)) && !has_parameters) return named;
  std::string out = named.substr(0, named.find('?'));
  char before = '?';
  const std::string_view query = std::string_view(named).substr(out.size());
  for (const std::string& one : split(query.substr(std::min<std::size_t>(1, query.size())), '&')) {
    const std::string name = lowered(one.substr(0, one.find('=')));
    const bool names_object = std::ranges::find(naming_parameters, name) != naming_parameters.end();
    if (names_object) out += std::exchange(before, '&') + one;
  }
  return out;
}

}  // namespace millrace
