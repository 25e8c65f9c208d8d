#include "pipeline/formats/read_sample.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "engine/base/units.h"
#include "pipeline/formats/group.h"
#include "pipeline/formats/tar_parser.h"
#include "pipeline/formats/untar.h"
#include "pipeline/samples/sample_name.h"
#include "pipeline/shards/shard_index.h"

namespace millrace {
namespace {

bool is_zero(std::span<const std::byte> all) {
  return std::ranges::all_of(all, [](std::byte b) { return b == std::byte{}; });
}

// Parses the bytes of an archive, which begin at offset `begin` of the shard, as one sample.
// `goes_on_after`: the archive continues after these bytes.
result<sample> sample_in(const bytes& archive, std::uint64_t begin, bool goes_on_after,
                         const std::shared_ptr<const std::string>& url) {
  sample made;
  made.url = url;
  made.where.offset = static_cast<std::int64_t>(begin);
  tar_parser parser(begin);
  auto input = archive.span();
  bool wanted = false;
  std::uint64_t end = begin;  // of the members so far
  for (;;) {
    const auto step = parser.step(input);
    if (!step) return error(step.error()).at(*url);
    if (*step == tar_parser::event::need_input) break;
    if (*step != tar_parser::event::archive_end) end = parser.offset();
    if (*step == tar_parser::event::header) {
      const auto& m = parser.current();
      const auto name = split_name(m.name);
      wanted = m.is_file() && !is_meta_name(m.name) && name;
      if (!wanted) continue;
      if (!m.refused.empty()) {
        return error(errc::bad_field, m.refused + " in a shard").at(*url).offset(m.offset);
      }
      if (!made.key.empty() && made.key != name->key) {
        return error(errc::integrity, "the shard has two samples where the index has one")
            .at(*url)
            .offset(m.offset)
            .key(name->key);
      }
      made.key = name->key;
      if (made.find(name->extension) != nullptr) {
        return error(errc::duplicate_field,
                     fmt::format("two members with the extension '{}'", name->extension))
            .at(*url)
            .offset(m.offset)
            .key(name->key)
            .skippable();
      }
      made.fields.push_back({name->extension, bytes()});
    } else if (*step == tar_parser::event::data && wanted) {
      const auto data = parser.data();
      made.fields.back().data =
          archive.slice(static_cast<std::size_t>(data.data() - archive.data()), data.size());
    }
  }
  if (auto whole = parser.finish(end_blocks::optional); !whole)
    return error(whole.error()).at(*url);
  const auto rest = archive.span().subspan(
      std::min<std::size_t>(round_up(end, tar_parser::block_size) - begin, archive.size()));
  // If another archive follows, the last sample of an archive is followed by its end blocks.
  const bool is_all = rest.empty() || (goes_on_after && is_zero(rest));
  if (made.fields.empty() || !is_all) {
    return error(errc::integrity, "the shard has no sample where the index says")
        .at(*url)
        .offset(begin)
        .key(made.key)
        .hint(index_again_hint);
  }
  return made;
}

// Whether `header` begins with a member of the sample `key`.
bool goes_on(std::span<const std::byte> header, const std::string& key) {
  tar_parser parser;
  const auto step = parser.step(header);
  return step && *step == tar_parser::event::header && parser.current().is_file() &&
         extension_after(key, parser.current().name);
}

}  // namespace

awaitable<result<sample>> read_sample(source_context context, const source_registry& sources,
                                      std::shared_ptr<memory_share> memory,
                                      std::shared_ptr<const std::string> url, indexed_place place) {
  byte_range where = place.range;
  const auto size = static_cast<std::size_t>(*where.end - where.begin);
  if (charge_of(size) > memory->limit()) {
    co_return error(errc::too_large,
                    fmt::format("a sample of {}, and the budget leaves {} for '{}'",
                                format_bytes(size), format_bytes(memory->limit()), memory->name()))
        .at(*url)
        .offset(where.begin)
        .hint("raise engine_options.memory_bytes (MILLRACE_MEMORY)")
        .skippable();
  }
  auto whole = co_await memory->acquire(std::max<std::size_t>(size, 1));
  if (!whole) co_return error(whole.error()).at(*url).offset(where.begin);
  // The next block shows whether the sample ends there.
  std::array<std::byte, tar_parser::block_size> after{};
  where.end = *where.end + after.size();
  auto opened = co_await sources.open(std::move(context), *url, where);
  if (!opened) co_return opened.error();
  std::size_t filled = 0;
  std::size_t filled_after = 0;
  for (;;) {
    auto piece = co_await (*opened)->read();
    if (!piece) co_return piece.error();
    if (piece->empty()) break;
    const auto n = std::min(piece->size(), size - filled);
    std::memcpy(whole->data() + filled, piece->data(), n);
    filled += n;
    const auto more = std::min(piece->size() - n, after.size() - filled_after);
    std::memcpy(after.data() + filled_after, piece->data() + n, more);
    filled_after += more;
  }
  if (filled < size) {
    co_return error(
        errc::truncated,
        fmt::format("the shard ends {} bytes before the end of this sample", size - filled))
        .at(*url)
        .offset(where.begin)
        .hint("the shard was cut or replaced since it was indexed");
  }
  const bool goes_on_after = !is_zero(std::span(after).first(filled_after));
  auto made = sample_in(std::move(*whole).freeze(filled), where.begin, goes_on_after, url);
  if (made && filled_after == after.size() && goes_on(after, made->key)) {
    co_return error(errc::integrity, "the sample is longer than the index says")
        .at(*url)
        .offset(where.begin)
        .key(made->key)
        .hint(index_again_hint)
        .skippable();
  }
  if (made && place.name && name_sum(made->key, made->fields.front().extension) != *place.name) {
    co_return error(errc::integrity, "the shard has another sample where the index has one")
        .at(*url)
        .offset(where.begin)
        .key(made->key)
        .hint(index_again_hint)
        .skippable();
  }
  co_return made;
}

}  // namespace millrace
