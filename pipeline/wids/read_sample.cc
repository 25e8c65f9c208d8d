#include "pipeline/wids/read_sample.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "pipeline/group.h"
#include "pipeline/tar_parser.h"
#include "pipeline/untar.h"

namespace millrace {
namespace {

// The sample that the bytes of an archive are, from `begin` of its shard on.
result<sample> sample_in(const bytes& archive, std::uint64_t begin,
                         const std::shared_ptr<const std::string>& url) {
  sample made;
  made.url = url;
  made.where.offset = static_cast<std::int64_t>(begin);
  tar_parser parser(begin);
  auto input = archive.span();
  bool wanted = false;
  for (;;) {
    const auto step = parser.step(input);
    if (!step) return error(step.error()).at(*url);
    if (*step == tar_parser::event::need_input) break;
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
      made.fields.push_back({name->extension, bytes()});
    } else if (*step == tar_parser::event::data && wanted) {
      const auto data = parser.data();
      made.fields.back().data =
          archive.slice(static_cast<std::size_t>(data.data() - archive.data()), data.size());
    }
  }
  if (auto whole = parser.finish(end_blocks::optional); !whole)
    return error(whole.error()).at(*url);
  if (made.fields.empty()) {
    return error(errc::integrity, "the shard has no sample where the index says")
        .at(*url)
        .offset(begin)
        .hint("the shard was replaced since it was indexed; index it again");
  }
  return made;
}

}  // namespace

awaitable<result<sample>> read_sample(source_context context, const source_registry& sources,
                                      std::shared_ptr<memory_share> memory,
                                      std::shared_ptr<const std::string> url, byte_range where) {
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
  auto opened = co_await sources.open(std::move(context), *url, where);
  if (!opened) co_return opened.error();
  std::size_t filled = 0;
  for (;;) {
    auto piece = co_await (*opened)->read();
    if (!piece) co_return piece.error();
    if (piece->empty()) break;
    const auto n = std::min(piece->size(), size - filled);
    std::memcpy(whole->data() + filled, piece->data(), n);
    filled += n;
  }
  if (filled < size) {
    co_return error(
        errc::truncated,
        fmt::format("the shard ends {} bytes before the end of this sample", size - filled))
        .at(*url)
        .offset(where.begin)
        .hint("the shard was cut or replaced since it was indexed");
  }
  co_return sample_in(std::move(*whole).freeze(filled), where.begin, url);
}

}  // namespace millrace
