#include "pipeline/untar.h"

#include <fmt/format.h>

#include <cstring>

#include "io/gzip_source.h"
#include "pipeline/tar_parser.h"

namespace millrace {

bool is_meta_name(std::string_view name) {
  const auto top = name.substr(0, name.find('/'));
  const bool underscored = top.size() >= 4 && top.starts_with("__") && top.ends_with("__");
  return underscored && top.substr(2, top.size() - 4).find('/') == top.npos;
}

struct shard_reader::impl {
  impl(lane_context& l, shard_ref w, std::uint64_t offset)
      : lane(l),
        which(w),
        url(std::make_shared<const std::string>((*l.shards)[static_cast<std::size_t>(w.shard)])),
        parser(offset),
        next_header(static_cast<std::int64_t>(offset)) {}

  awaitable<result<void>> open();
  awaitable<result<bool>> refill();
  awaitable<result<void>> collect(tar_member& into);
  awaitable<result<buffer>> straddling_buffer();

  error described(error why) const {
    if (why.where().empty()) why.at(*url);
    return why;
  }

  lane_context& lane;
  shard_ref which;
  std::shared_ptr<const std::string> url;
  tar_parser parser;
  std::int64_t next_header;
  std::unique_ptr<byte_source> source;
  bytes piece;                       // what the parser is being fed
  std::span<const std::byte> input;  // the rest of `piece`
};

awaitable<result<void>> shard_reader::impl::open() {
  const bool compressed = is_gzip_name(*url);
  const std::uint64_t offset = parser.offset();
  auto opened = co_await lane.run.sources.open(lane.source(), *url,
                                               {.begin = compressed ? 0 : offset, .end = {}});
  if (!opened) co_return opened.error();
  source = std::move(*opened);
  if (compressed) {
    source = gunzip(lane.source(), lane.members, std::move(source), *url, offset);
  }
  co_return result<void>();
}

// False at the end of the source.
awaitable<result<bool>> shard_reader::impl::refill() {
  auto more = co_await source->read();
  if (!more) co_return described(more.error());
  piece = std::move(*more);
  input = piece.span();
  co_return !piece.empty();
}

awaitable<result<buffer>> shard_reader::impl::straddling_buffer() {
  const auto size = static_cast<std::size_t>(parser.current().size);
  if (lane.held_by_group + size > lane.members->limit()) {
    co_return described(
        error(errc::too_large, fmt::format("a sample of more than {}, which is what the budget "
                                           "leaves for one lane's samples",
                                           format_bytes(lane.members->limit())))
            .offset(parser.current().offset)
            .key(parser.current().name)
            .hint("raise MILLRACE_MEMORY or lower the number of lanes")
            .skippable());
  }
  co_return co_await lane.members->acquire(size);
}

// The member's data: a slice where it lies in one piece, else a copy.
awaitable<result<void>> shard_reader::impl::collect(tar_member& into) {
  buffer copy;
  std::size_t filled = 0;
  for (;;) {
    const auto step = parser.step(input);
    if (!step) co_return described(step.error());
    if (*step == tar_parser::event::member_end) break;
    if (*step == tar_parser::event::need_input) {
      const auto more = co_await refill();
      if (!more) co_return more.error();
      if (!*more) co_return described(parser.finish().error());
      continue;
    }
    const auto data = parser.data();
    if (!copy && data.size() == parser.current().size) {
      into.data = piece.slice(static_cast<std::size_t>(data.data() - piece.data()), data.size());
      continue;
    }
    if (!copy) {
      auto acquired = co_await straddling_buffer();
      if (!acquired) co_return acquired.error();
      copy = std::move(*acquired);
    }
    std::memcpy(copy.data() + filled, data.data(), data.size());
    filled += data.size();
  }
  if (copy) {
    into.data = std::move(copy).freeze(filled);
    into.copied = true;
  }
  co_return result<void>();
}

shard_reader::shard_reader(lane_context& lane, shard_ref which, std::uint64_t offset)
    : impl_(std::make_unique<impl>(lane, which, offset)) {}
shard_reader::~shard_reader() = default;

std::int64_t shard_reader::offset() const {
  return impl_->next_header;
}

awaitable<result<std::optional<tar_member>>> shard_reader::next() {
  impl& s = *impl_;
  if (!s.source) {
    if (auto opened = co_await s.open(); !opened) co_return opened.error();
  }
  for (;;) {
    const auto step = s.parser.step(s.input);
    if (!step) co_return s.described(step.error());
    if (*step == tar_parser::event::need_input) {
      const auto more = co_await s.refill();
      if (!more) co_return more.error();
      if (*more) continue;
      if (auto whole = s.parser.finish(); !whole) co_return s.described(whole.error());
      co_return std::optional<tar_member>();
    }
    if (*step != tar_parser::event::header) continue;
    const auto& found = s.parser.current();
    if (!found.is_file() || is_meta_name(found.name)) continue;  // its data events pass by
    tar_member member;
    member.name = found.name;
    member.offset = static_cast<std::int64_t>(found.offset);
    member.draw = s.which.draw;
    member.shard = s.which.shard;
    member.epoch = s.which.epoch;
    member.url = s.url;
    if (auto collected = co_await s.collect(member); !collected) co_return collected.error();
    const auto at = s.parser.offset();
    s.next_header = static_cast<std::int64_t>((at + tar_parser::block_size - 1) /
                                              tar_parser::block_size * tar_parser::block_size);
    co_return std::optional(std::move(member));
  }
}

namespace {

class untar_stream final : public stream<tar_member> {
 public:
  untar_stream(lane_context& lane, std::unique_ptr<stream<shard_ref>> shards)
      : lane_(lane), cursor_(lane.id("cursor")), shards_(std::move(shards)) {}

  awaitable<outcome> next() override {
    for (;;) {
      if (!reader_) {
        auto shard = co_await shards_->next();
        if (!shard) co_return shard.error();
        if (!*shard) co_return std::optional<tar_member>();
        current_ = **shard;
        reader_.emplace(lane_, current_, std::exchange(start_offset_, 0));
      }
      auto member = co_await reader_->next();
      if (!member) {
        reader_.reset();
        co_return member.error();
      }
      if (*member) co_return member;
      reader_.reset();
    }
  }

  void save(state& to) const override {
    shards_->save(to);
    if (reader_) to.put(cursor_, {current_.epoch, current_.draw, reader_->offset()});
    if (start_offset_ > 0) {  // restored, and not asked for anything yet
      state::record cursor = *to.find(cursor_);
      cursor[2] = static_cast<std::int64_t>(start_offset_);
      to.put(cursor_, std::move(cursor));
    }
  }
  void restore(const state& from) override {
    shards_->restore(from);
    start_offset_ = static_cast<std::uint64_t>((*from.find(cursor_))[2]);
  }

 private:
  lane_context& lane_;
  std::string cursor_;
  std::unique_ptr<stream<shard_ref>> shards_;
  shard_ref current_;
  std::uint64_t start_offset_ = 0;
  std::optional<shard_reader> reader_;
};

}  // namespace

lane_stage<shard_ref, tar_member> untar() {
  return {"untar",
          [](lane_context& lane,
             std::unique_ptr<stream<shard_ref>> shards) -> std::unique_ptr<stream<tar_member>> {
            return std::make_unique<untar_stream>(lane, std::move(shards));
          }};
}

}  // namespace millrace
