#include "pipeline/wids/read_sample.h"

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
        return error(errc::integrity, "where the index has one sample the shard has two")
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
  if (auto whole = parser.finish(); !whole) return error(whole.error()).at(*url);
  if (made.fields.empty()) {
    return error(errc::integrity, "the shard has no sample where the index says")
        .at(*url)
        .offset(begin)
        .hint("the shard was replaced since it was indexed; index it anew");
  }
  return made;
}

}  // namespace

awaitable<result<sample>> read_sample(source_context context, const source_registry& sources,
                                      std::shared_ptr<memory_share> memory,
                                      std::shared_ptr<const std::string> url, byte_range where) {
  const auto size = static_cast<std::size_t>(*where.end - where.begin);
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
  co_return sample_in(std::move(*whole).freeze(filled), where.begin, url);
}

}  // namespace millrace
