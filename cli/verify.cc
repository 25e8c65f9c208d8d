#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "cli/command.h"
#include "pipeline/images/image_decoder.h"
#include "pipeline/tools/scan.h"
#include "pipeline/wids/shard_index.h"

namespace millrace::cli {
namespace {

constexpr std::array<std::string_view, 7> image_fields = {"jpg", "jpeg", "png", "webp",
                                                          "ppm", "pgm",  "pnm"};

struct arguments {
  shard_arguments shards;
  std::string index;
  bool images = false;
  bool json = false;
};

// Decodes all of an image at its own size.
result<void> check_image(std::span<const std::byte> file) {
  thread_local image_decoder decoder;
  thread_local std::vector<std::uint8_t> pixels;
  const auto whole = [](int width, int height) { return whole_image(width, height); };
  const auto out = [&](const view_of_image& v) {
    pixels.resize(output_bytes(v));
    return std::span(pixels);
  };
  return decoder.decode(file, {}, whole, out);
}

// What differs between a shard and what the index says of it.
std::vector<error> against(const shard_index::shard& said, const shard_facts& f) {
  std::vector<error> out;
  const auto differs = [&](std::string what) {
    out.push_back(error(errc::integrity, std::move(what))
                      .at(f.url)
                      .hint("the shard or the index is not the right one"));
  };
  if (said.samples != std::ssize(f.samples)) {
    differs(fmt::format("{} samples, the index says {}", f.samples.size(), said.samples));
  }
  if (said.bytes > 0 && f.bytes > 0 && said.bytes != static_cast<std::int64_t>(f.bytes)) {
    differs(fmt::format("{} bytes, the index says {}", f.bytes, said.bytes));
  }
  if (!said.md5.empty() && !f.md5.empty() && said.md5 != f.md5) {
    differs(fmt::format("its MD5 is {}, the index says {}", f.md5, said.md5));
  }
  for (std::size_t i = 0; i + 1 < said.blocks.size() && i < f.samples.size(); ++i) {
    if (said.blocks[i] * std::int64_t{512} == f.samples[i].begin) continue;
    differs(fmt::format("sample {} begins at byte {}, the index says {}", i, f.samples[i].begin,
                        said.blocks[i] * std::int64_t{512}));
    break;
  }
  return out;
}

int verify(const environment& e, const arguments& a) {
  engine eng(a.shards.engine(e));
  std::optional<shard_index> index;
  if (!a.index.empty()) index = read_index(eng, a.index, a.shards.base);
  std::vector<std::string> urls;
  if (!a.shards.specs.empty()) urls = a.shards.urls(e);
  if (urls.empty() && !index) {
    throw failure(error(errc::usage, "no shards").hint("name shards, or an --index"));
  }
  std::map<std::string, const shard_index::shard*> said;
  if (index) {
    for (const auto& s : index->shards) {
      said[s.url] = &s;
      if (a.shards.specs.empty()) urls.push_back(s.url);
    }
  }
  scan_options how{.md5 = index.has_value()};
  if (a.images) {
    how.wants = [](std::string_view x) {
      const auto last = x.substr(x.rfind('.') + 1);
      return std::ranges::find(image_fields, last) != image_fields.end();
    };
    how.check = check_image;
  }
  std::unordered_map<std::string, std::size_t> shard_of_key;
  auto problems = nlohmann::json::array();
  const auto tell = [&](const error& why) {
    problems.push_back(why.message());
    if (!a.json) fmt::print("{}\n", why.message());
  };
  std::uint64_t samples = 0;
  std::uint64_t payload = 0;
  std::size_t shard = 0;
  for (const shard_facts& f : eng.run(scan(urls, how))) {
    for (const error& why : f.problems) tell(why);
    if (const auto it = said.find(f.url); it != said.end()) {
      for (const error& why : against(*it->second, f)) tell(why);
    } else if (index) {
      tell(error(errc::integrity, "the index does not list this shard").at(f.url));
    }
    for (const sample_place& s : f.samples) {
      const auto [first, is_new] = shard_of_key.emplace(s.key, shard);
      if (is_new) continue;
      const bool same_shard = first->second == shard;
      tell(error(errc::duplicate_field,
                 same_shard ? "the key is in this shard already: its files do not stand together"
                            : fmt::format("the key is in {} as well", urls[first->second]))
               .at(f.url)
               .offset(static_cast<std::uint64_t>(s.begin))
               .key(s.key));
    }
    samples += f.samples.size();
    payload += f.payload_bytes;
    ++shard;
  }
  if (a.json) {
    fmt::print("{}\n", nlohmann::json{{"shards", urls.size()},
                                      {"samples", samples},
                                      {"bytes", payload},
                                      {"ok", problems.empty()},
                                      {"problems", problems}}
                           .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  } else {
    fmt::print("{} shards, {} samples, {} bytes: {}\n", urls.size(), samples, payload,
               problems.empty() ? "all is well" : fmt::format("{} problems", problems.size()));
  }
  return problems.empty() ? 0 : 1;
}

}  // namespace

action add_verify(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "verify", "structure, images and digests of shards; a list and exit 1 where one is wrong");
  auto a = std::make_shared<arguments>();
  a->shards.add_to(*command, false);
  command->add_option("--index", a->index,
                      "compare counts, sizes, MD5s and offsets with this index");
  command->add_flag("--images", a->images, "decode every image as well");
  command->add_flag("--json", a->json, "print one JSON object on the last line");
  return [a](const environment& e) { return verify(e, *a); };
}

}  // namespace millrace::cli
