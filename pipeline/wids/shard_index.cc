#include "pipeline/wids/shard_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <numeric>

#include "io/hashes.h"
#include "pipeline/engine.h"
#include "pipeline/raw_bytes.h"

namespace millrace {
namespace {

using nlohmann::json;

constexpr std::string_view magic = "millrace offsets 1\n";
constexpr std::uint64_t most_samples = std::uint64_t{1} << 40;

error bad(std::string what, const std::string& where) {
  return error(errc::bad_index, std::move(what))
      .at(where)
      .hint("`millrace index create` writes one that is right");
}

// The folder part of a path or URL.
std::string folder_of(const std::string& url) {
  auto path = url.substr(0, url.find_first_of("?#"));
  const auto slash = path.rfind('/');
  if (slash == path.npos) return "";
  const auto scheme = path.find("://");
  if (scheme != path.npos && slash < scheme + 3) return path;
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string text_or_none(const json& from, const char* key) {
  const auto it = from.find(key);
  return it != from.end() && it->is_string() ? it->get<std::string>() : std::string();
}

result<std::int64_t> count_in(const json& from, const char* key, const std::string& what,
                              const std::string& where) {
  const auto it = from.find(key);
  if (it == from.end()) return 0;
  if (!it->is_number_integer() || it->get<std::int64_t>() < 0 ||
      static_cast<std::uint64_t>(it->get<std::int64_t>()) > most_samples) {
    return bad(fmt::format("'{}' of {} is {}, which is no count", key, what, it->dump()), where);
  }
  return it->get<std::int64_t>();
}

result<void> add_shards(shard_index& to, const json& list, const std::string& base,
                        const std::string& dataset, const std::string& where) {
  if (!list.is_array()) return bad("'shardlist' is no list", where);
  for (const json& entry : list) {
    const std::string what = fmt::format("shard {}", to.shards.size());
    if (!entry.is_object() || text_or_none(entry, "url").empty()) {
      return bad(what + " has no 'url'", where);
    }
    if (!entry.contains("nsamples")) return bad(what + " has no 'nsamples'", where);
    const auto samples = count_in(entry, "nsamples", what, where);
    if (!samples) return samples.error();
    const auto bytes = count_in(entry, "filesize", what, where);
    if (!bytes) return bytes.error();
    to.shards.push_back({.url = url_in_base(base, text_or_none(entry, "url")),
                         .samples = *samples,
                         .bytes = *bytes,
                         .md5 = text_or_none(entry, "md5sum"),
                         .dataset = dataset,
                         .blocks = {}});
  }
  return {};
}

result<json> parsed_index(std::string_view text, const std::string& where) {
  json parsed = json::parse(text.begin(), text.end(), nullptr, false);
  if (!parsed.is_object()) return bad("this is no JSON object", where);
  if (parsed.value("wids_version", json()) != 1) {
    return bad(fmt::format("'wids_version' is {}, this build reads 1",
                           parsed.value("wids_version", json()).dump()),
               where);
  }
  return parsed;
}

void put_number(std::string& to, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) to.push_back(static_cast<char>(value | 0x80));
  to.push_back(static_cast<char>(value));
}

std::optional<std::uint64_t> take_number(std::string_view& from) {
  std::uint64_t value = 0;
  for (int shift = 0; shift < 64 && !from.empty(); shift += 7) {
    const auto byte = static_cast<unsigned char>(from.front());
    from.remove_prefix(1);
    value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
    if ((byte & 0x80) == 0) return value;
  }
  return std::nullopt;
}

std::string crc_of(std::string_view text) {
  return fmt::format("{:08x}", crc32c(std::as_bytes(std::span(text.data(), text.size()))));
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
  const bool is_whole =
      url.find("://") != url.npos || url.starts_with("pipe:") || url.starts_with("file:");
  if (base.empty() || is_whole) return url;
  const auto scheme = base.find("://");
  const auto host_end = scheme == base.npos ? 0 : base.find('/', scheme + 3);
  const std::string origin = base.substr(0, scheme == base.npos ? 0 : host_end);
  std::string path = scheme == base.npos             ? base
                     : host_end == std::string::npos ? ""
                                                     : base.substr(host_end);
  if (url.starts_with('/')) return origin + url;
  // "x/../y" is "y"; what climbs out of a relative path stays as it is.
  std::string merged = path + (path.ends_with('/') ? "" : "/") + url;
  for (auto up = merged.find("/../"); up != merged.npos && up > 0; up = merged.find("/../")) {
    const auto parent = merged.rfind('/', up - 1);
    const auto from = parent == merged.npos ? 0 : parent + 1;
    if (merged.substr(from, up - from) == "..") break;
    merged.erase(from, up + 4 - from);
  }
  return origin + merged;
}

result<shard_index> parse_index(std::string_view text, const std::string& where,
                                const std::string& base, const text_loader& load) {
  auto parsed = parsed_index(text, where);
  if (!parsed) return parsed.error();
  shard_index made;
  made.name = text_or_none(*parsed, "name");
  made.info = text_or_none(*parsed, "info");
  made.base = !base.empty()                            ? base
              : !text_or_none(*parsed, "base").empty() ? text_or_none(*parsed, "base")
                                                       : folder_of(where);
  if (const auto list = parsed->find("shardlist"); list != parsed->end()) {
    if (auto added = add_shards(made, *list, made.base, made.name, where); !added) {
      return added.error();
    }
  }
  const json parts = parsed->value("datasets", json::array());
  for (const json& part : parts) {
    json whole = part;
    std::string from = made.base;
    if (const std::string source = text_or_none(part, "source_url"); !source.empty()) {
      const std::string url = url_in_base(made.base, source);
      const auto loaded = load(url);
      if (!loaded) return loaded.error();
      auto included = parsed_index(*loaded, url);
      if (!included) return included.error();
      if (included->contains("datasets")) {
        return bad("an index within an index that includes others itself", url);
      }
      whole = std::move(*included);
      from = folder_of(url);
    }
    const std::string own = text_or_none(whole, "base");
    const std::string named = text_or_none(part, "name").empty() ? text_or_none(whole, "name")
                                                                 : text_or_none(part, "name");
    if (auto added = add_shards(made, whole.value("shardlist", json()), own.empty() ? from : own,
                                named, where);
        !added) {
      return added.error();
    }
  }
  if (made.shards.empty()) return bad("the index lists no shards", where);
  return made;
}

std::string read_text(engine& eng, const std::string& url) {
  std::string out;
  auto data = eng.run(raw_bytes({url}));
  for (const bytes& piece : data) out += piece.text();
  return out;
}

std::string sidecar_of(const std::string& index_url) {
  constexpr std::string_view json_ending = ".json";
  const bool is_json = index_url.ends_with(json_ending);
  return index_url.substr(0, index_url.size() - (is_json ? json_ending.size() : 0)) + ".offsets";
}

shard_index read_index(engine& eng, const std::string& url, const std::string& base) {
  const auto load = [&](const std::string& part) -> result<std::string> {
    try {
      return read_text(eng, part);
    } catch (const failure& f) {
      return f.why();
    }
  };
  shard_index made = parse_index(load(url).value(), url, base, load).value();
  const std::string beside = sidecar_of(url);
  const auto offsets = load(beside);
  if (offsets) {
    add_offsets(made, *offsets, beside).value();
  } else if (offsets.error().kind() != errc::not_found) {
    throw failure(offsets.error());
  }
  return made;
}

std::string offsets_text(const shard_index& index) {
  std::string out(magic);
  put_number(out, index.shards.size());
  for (const auto& s : index.shards) {
    put_number(out, static_cast<std::uint64_t>(s.bytes));
    put_number(out, static_cast<std::uint64_t>(s.samples));
    put_number(out, s.blocks.size());
    std::uint32_t before = 0;
    for (const std::uint32_t block : s.blocks) {
      put_number(out, block - before);
      before = block;
    }
  }
  return out + crc_of(out);
}

result<void> add_offsets(shard_index& index, std::string_view text, const std::string& where) {
  constexpr std::size_t crc_digits = 8;
  if (!text.starts_with(magic) || text.size() < magic.size() + crc_digits ||
      crc_of(text.substr(0, text.size() - crc_digits)) != text.substr(text.size() - crc_digits)) {
    return bad("the offsets are damaged, or of another version", where);
  }
  auto rest = text.substr(magic.size(), text.size() - magic.size() - crc_digits);
  const auto another = [&] { return bad("the offsets belong to another index", where); };
  if (take_number(rest) != index.shards.size()) return another();
  for (auto& s : index.shards) {
    const auto bytes = take_number(rest);
    const auto samples = take_number(rest);
    if (!bytes || !samples || *samples != static_cast<std::uint64_t>(s.samples) ||
        (s.bytes > 0 && *bytes != static_cast<std::uint64_t>(s.bytes))) {
      return another();
    }
    const auto blocks = take_number(rest);
    // Bounded by the text itself: a byte at least for each.
    if (!blocks || *blocks > rest.size() || (*blocks != 0 && *blocks != *samples + 1)) {
      return another();
    }
    s.blocks.resize(*blocks);
    std::uint64_t block = 0;
    for (auto& b : s.blocks) {
      const auto step = take_number(rest);
      if (!step || *step > ~std::uint32_t{0} - block) return another();
      block += *step;
      b = static_cast<std::uint32_t>(block);
    }
  }
  return {};
}

}  // namespace millrace
