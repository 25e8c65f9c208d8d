#include "pipeline/formats/shard_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <tuple>

#include "engine/base/units.h"
#include "io/unpack/unpack.h"
#include "pipeline/formats/same_shard.h"
#include "pipeline/formats/sample_source.h"
#include "pipeline/formats/tar_parser.h"
#include "pipeline/samples/sample_name.h"
#include "pipeline/shards/shard_index.h"

namespace millrace {

struct shard_reader::impl {
  impl(lane_context& l, std::shared_ptr<const untar_options> h, const shard_ref& w,
       std::uint64_t offset, std::int64_t given, shard_head had)
      : lane(l),
        how(std::move(h)),
        which(w),
        is_resumed(given > 0 || offset > static_cast<std::uint64_t>(w.begin)),
        passed(is_resumed ? w.skip : 0),
        begun(given),
        begun_before(given),
        url(std::make_shared<const std::string>((*l.shards)[static_cast<std::size_t>(w.shard)])),
        parser(offset),
        next_header(static_cast<std::int64_t>(offset)),
        head(w.shard == had.shard ? had : shard_head{.shard = w.shard, .begin = w.begin}) {}

  byte_range range_from(std::uint64_t offset) const {
    byte_range out{.begin = offset, .end = {}};
    if (which.end > 0) out.end = static_cast<std::uint64_t>(which.end);
    return out;
  }
  void see_head() {
    if (!head.is_known()) head.see(piece.span());
  }
  awaitable<result<compression>> open_at_begin(byte_range range);
  awaitable<result<void>> open();
  awaitable<result<bool>> refill();
  bool slice(tar_member& into);
  awaitable<result<void>> collect(tar_member& into);
  std::size_t room_for_members() const;
  awaitable<result<buffer>> straddling_buffer(const std::string& name);
  enum class turn { give, pass, end };
  turn turn_of(const std::string& name);
  error damaged(error why);
  void count_lost();
  result<bool> is_wanted(const tar_parser::member& found, std::string& name);
  error refuse(error why, const tar_parser::member& found, const std::string* name);

  result<void> check_end() const;
  result<void> end_of_source();
  result<void> check_count() const;

  error described(error why) const {
    if (why.where().empty()) why.at(*url);
    return why;
  }

  lane_context& lane;
  std::shared_ptr<const untar_options> how;
  shard_ref which;
  bool is_resumed;                 // begins in the middle of `which`
  std::int64_t passed;             // samples skipped so far, of which.skip
  std::int64_t begun;              // samples given so far, including the current one
  std::int64_t begun_before;       // the same, before `next_header`
  std::optional<std::string> key;  // of the current sample; nullopt: none in this archive yet
  std::shared_ptr<const std::string> url;
  tar_parser parser;
  std::int64_t next_header;
  // `next_header` and `begun_before` as they were before the last member, and before the sample.
  std::pair<std::int64_t, std::int64_t> before_last{next_header, begun_before};
  std::pair<std::int64_t, std::int64_t> sample_at;
  shard_head head;
  bool broken = false;
  bool after_damage = false;  // and no member has been given since
  std::optional<refused_file> refused;
  bool unpacks = false;   // the shard is compressed; offsets are in its unpacked data
  bool skipping = false;  // the current sample is not given
  std::uint64_t counted_lost = 0;
  std::unique_ptr<byte_source> source;
  bytes piece;                       // the parser's input
  std::span<const std::byte> input;  // the rest of `piece`
  std::uint64_t piece_number = 0;
  // The piece that members of the current sample are slices of. Only one, so that a sample under
  // construction never holds all read buffers.
  std::optional<std::uint64_t> sliced;

  // Makes all of `data` a slice of the piece. False if the sample has slices of another piece.
  bool slice_into(tar_member& into, std::span<const std::byte> data) {
    if (sliced.value_or(piece_number) != piece_number) return false;
    sliced = piece_number;
    into.data = piece.slice(static_cast<std::size_t>(data.data() - piece.data()), data.size());
    return true;
  }
};

// Opens a range of the shard and returns the compression that its first bytes show. `piece` has
// these bytes; `source` continues after them.
awaitable<result<compression>> shard_reader::impl::open_at_begin(byte_range range) {
  auto opened = co_await lane.run.sources.open(lane.source(), *url, range);
  if (!opened) co_return opened.error();
  auto opening = co_await begin_reading(std::move(*opened));
  if (!opening) co_return described(opening.error());
  source = std::move(opening->source);
  piece = std::move(opening->first);
  input = piece.span();
  if (range.begin == 0 && !range.end && which.begin == 0) see_head();
  co_return opening->how;
}

awaitable<result<void>> shard_reader::impl::open() {
  const std::uint64_t offset = parser.offset();
  if (head.is_known()) {
    auto same = co_await check_head(lane, head);
    if (!same) co_return described(same.error());
  }
  // To begin in the middle of a shard, only its first bytes are read at first. If its name says
  // that it is compressed, all bytes before the offset are needed.
  const bool peeks = offset > 0 && compression_named(*url) == compression::none;
  if (which.end > 0) {  // a part by an index's offsets: not compressed
    auto is_part = co_await check_bounds(lane, *how, which);
    if (!is_part) co_return is_part.error();
    auto opened = co_await lane.run.sources.open(lane.source(), *url, range_from(offset));
    if (!opened) co_return opened.error();
    source = std::move(*opened);
    co_return result<void>();
  }
  auto packed = co_await open_at_begin(peeks ? byte_range{0, magic_bytes} : byte_range{});
  if (!packed) co_return packed.error();
  if (*packed == compression::none && offset == 0) co_return result<void>();
  if (*packed != compression::none && peeks) packed = co_await open_at_begin({});
  if (!packed) co_return packed.error();
  input = {};
  unpacks = *packed != compression::none;
  if (unpacks) {
    source =
        unpack(lane.source(), {lane.memory.members, lane.memory.members, lane.memory.held_members},
               {*packed, std::move(source), std::move(piece), *url}, offset);
    co_return result<void>();
  }
  piece = bytes();
  auto opened = co_await lane.run.sources.open(lane.source(), *url, range_from(offset));
  if (!opened) co_return opened.error();
  source = std::move(*opened);
  co_return result<void>();
}

// Fails if the source did not end where the shard, or the part of it that is read, ends, as far as
// that is known: from the length in the index, else from the archive's end blocks.
result<void> shard_reader::impl::check_end() const {
  const std::uint64_t at = parser.offset();
  if (which.end > 0) {
    if (auto between = parser.finish(end_blocks::optional); !between) return between;
    if (at >= static_cast<std::uint64_t>(which.end)) return {};
    return error(errc::truncated,
                 fmt::format(
                     "the shard ends before byte {}, where a sample ends according to the index",
                     which.end))
        .offset(at)
        .hint("the shard has been cut or replaced since it was indexed")
        .skippable();
  }
  const auto length =
      lane.index && !unpacks ? lane.index->shards[static_cast<std::size_t>(which.shard)].bytes : 0;
  const bool is_whole = length > 0 && at == static_cast<std::uint64_t>(length);
  if (auto ended = parser.finish(is_whole ? end_blocks::optional : how->end_blocks); !ended) {
    return ended;
  }
  if (length == 0 || is_whole) return {};
  return error(errc::integrity,
               fmt::format("the shard has {} bytes, the index says {}", at, length))
      .offset(at)
      .hint(std::string("fetch the shard again; if it was rewritten, ") + index_again_hint)
      .skippable();
}

// Names the member by its new name (untar_options.rename), if `why` names one.
error of_member(error why, const std::string& name) {
  if (!why.sample_key().empty()) why.key(name);
  return why;
}

// Reads the next piece. False at the end of the source.
awaitable<result<bool>> shard_reader::impl::refill() {
  piece = bytes();  // all of it is consumed, and its buffer may be the next one to read into
  input = {};
  ++piece_number;
  auto more = co_await source->read();
  if (!more) co_return described(more.error());
  piece = std::move(*more);
  input = piece.span();
  if (!unpacks && parser.offset() == static_cast<std::uint64_t>(which.begin)) see_head();
  co_return !piece.empty();
}

// The bytes of the share that members may take. Unpacked pieces are in the same share: a member
// that took all of it would wait forever for its next piece.
std::size_t shard_reader::impl::room_for_members() const {
  const std::size_t all = lane.memory.members->limit();
  return all - (unpacks ? std::min(all, room_for_pieces) : 0);
}

awaitable<result<buffer>> shard_reader::impl::straddling_buffer(const std::string& name) {
  const auto size = static_cast<std::size_t>(parser.current().size);
  // Includes the sample before it, which is complete once this member's name is read.
  const std::size_t room = room_for_members();
  const std::size_t held = *lane.memory.held_members - (lane.memory.members->limit() - room);
  if (held + charge_of(size) > room) {
    if (spare_memory* const spare = lane.memory.spare;
        spare != nullptr && spare->held + charge_of(size) <= spare->share->limit()) {
      spare->held += charge_of(size);
      co_return co_await spare->share->acquire(size);
    }
    const std::string after =
        held > 0 ? fmt::format(" after {} of samples", format_bytes(held)) : "";
    co_return described(
        error(errc::too_large,
              fmt::format("a field of {}{}, and the budget leaves {} for one lane's samples",
                          format_bytes(size), after, format_bytes(room)))
            .offset(parser.current().offset)
            .key(name)
            .hint(
                "raise engine_options.memory_bytes (MILLRACE_MEMORY) or lower the number of lanes")
            .skippable());
  }
  co_return co_await lane.memory.members->acquire(size);
}

// Makes the member's data a slice if it is in one piece: the usual case, which waits for nothing.
bool shard_reader::impl::slice(tar_member& into) {
  const std::uint64_t size = parser.current().size;
  if (size == 0 || input.size() < size || sliced.value_or(piece_number) != piece_number)
    return false;
  if (!parser.step(input)) return false;
  slice_into(into, parser.data());
  return parser.step(input).value() == tar_parser::event::member_end;
}

// Counts bytes of the lane's members as held, until the reader of samples counts them.
class counted_bytes {
 public:
  explicit counted_bytes(std::shared_ptr<std::size_t> among) : among_(std::move(among)) {}
  ~counted_bytes() { *among_ -= bytes_; }
  counted_bytes(const counted_bytes&) = delete;
  counted_bytes& operator=(const counted_bytes&) = delete;
  void add(std::size_t bytes) {
    bytes_ += bytes;
    *among_ += bytes;
  }

 private:
  std::shared_ptr<std::size_t> among_;
  std::size_t bytes_ = 0;
};

// Reads the member's data: a slice or a copy.
awaitable<result<void>> shard_reader::impl::collect(tar_member& into) {
  buffer copy;
  counted_bytes of_copy(
      lane.memory.held_members);  // a decoder that needs more must not wait for these
  std::size_t filled = 0;
  for (;;) {
    const auto step = parser.step(input);
    if (!step) co_return damaged(of_member(step.error(), into.name));
    if (*step == tar_parser::event::member_end) break;
    if (*step == tar_parser::event::need_input) {
      const auto more = co_await refill();
      broken = !more || !*more;
      if (!more) co_return more.error();
      if (!*more) co_return described(of_member(parser.finish().error(), into.name));
      continue;
    }
    const auto data = parser.data();
    if (!copy && data.size() == parser.current().size && slice_into(into, data)) continue;
    if (!copy) {
      auto acquired = co_await straddling_buffer(into.name);
      if (!acquired) co_return acquired.error();
      copy = std::move(*acquired);
      of_copy.add(charge_of(static_cast<std::size_t>(parser.current().size)));
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

shard_reader::shard_reader(lane_context& lane, std::shared_ptr<const untar_options> how,
                           const shard_ref& which, std::uint64_t offset, std::int64_t given,
                           shard_head had)
    : impl_(std::make_unique<impl>(lane, std::move(how), which, offset, given, had)) {}
shard_reader::~shard_reader() = default;

std::int64_t shard_reader::offset() const {
  return impl_->next_header;
}

std::int64_t shard_reader::given() const {
  return impl_->begun_before;
}

shard_head shard_reader::head() const {
  const shard_head& read = impl_->head;
  return offset() >= read.begin + read.bytes ? read : shard_head();
}

bool shard_reader::is_broken() const {
  return impl_->broken;
}

bool shard_reader::is_after_damage() const {
  return impl_->after_damage;
}

const std::optional<shard_reader::refused_file>& shard_reader::refused() const {
  return impl_->refused;
}

// Fails if the shard has fewer samples than this lane was assigned, although all was read and
// nothing was damaged or left out: the lane would have fewer than others. After a resume with
// `resync`, this is not checked: damage may have been skipped before the state was saved.
result<void> shard_reader::impl::check_count() const {
  const bool may_lack_some = counted_lost > 0 || (is_resumed && how->resync);
  const bool counts_all = !may_lack_some && !how->select;
  if (which.samples < 0 || begun >= which.samples || !counts_all) return {};
  return differs_from_index(which, *url, "fewer").offset(parser.offset());
}

// Returns the error to report for damage. With `resync`, the reader continues after it.
error shard_reader::impl::damaged(error why) {
  broken = !how->resync;
  if (!broken) parser.resync();
  after_damage = true;
  // What follows may belong to the current sample, which counts only once.
  if (key && !skipping) std::tie(next_header, begun_before) = sample_at;
  return described(std::move(why));
}

void shard_reader::impl::count_lost() {
  lane.run.counts.lost_bytes += parser.lost_bytes() - counted_lost;
  counted_lost = parser.lost_bytes();
}

// Returns the error to report if a function of untar_options threw. `name`: the new name; null if
// rename threw. Then the shard is broken: the file may belong to the sample before or after it.
error shard_reader::impl::refuse(error why, const tar_parser::member& found,
                                 const std::string* name) {
  refused.emplace();
  if (name != nullptr) refused->name = *name;
  broken = name == nullptr;
  if (why.sample_key().empty()) why.key(name != nullptr ? *name : found.name);
  if (!why.byte_offset()) why.offset(found.offset);
  if (broken && why.is_skippable() && why.what_to_do().empty()) {
    why.hint(
        "the rest of the shard is left out, because a file without a name may belong to any "
        "sample: let untar_options.rename name every file, and refuse files in "
        "untar_options.select");
  }
  return described(std::move(why));
}

// Whether a member is a file to be given. Sets `name` to its new name. Fails if a function of
// untar_options threw.
result<bool> shard_reader::impl::is_wanted(const tar_parser::member& found, std::string& name) {
  if (!found.is_file()) {
    const bool folder_or_label = found.type == '5' || found.type == 'V' || found.type == 'D';
    if (!folder_or_label) ++lane.run.counts.not_files;
    return false;
  }
  if (is_meta_name(found.name)) {
    ++lane.run.counts.meta_files;
    return false;
  }
  const untar_options& o = *how;
  name = found.name;
  bool is_named = !o.rename;
  try {
    if (!is_named) name = o.rename(found.name);
    is_named = true;
    return !o.select || o.select(name);
  } catch (...) {
    const auto* const who = is_named ? "untar_options.select" : "untar_options.rename";
    return refuse(error_of(std::current_exception(), who), found, is_named ? &name : nullptr);
  }
}

// Counts a sample if this member begins one. Returns whether to give the member or end before it.
shard_reader::impl::turn shard_reader::impl::turn_of(const std::string& name) {
  if (key && extension_after(*key, name)) return skipping ? turn::pass : turn::give;
  const auto split = split_name(name);
  // A file of no sample is given by the lane that has the samples around it; tar_reader counts it.
  // A state resumes after what was given, so nothing is given before all skipped samples.
  if (!split) return skipping || passed < which.skip ? turn::pass : turn::give;
  if (key != split->key) {
    if (passed < which.skip) {
      ++passed;
      skipping = true;
    } else if (which.samples >= 0 && begun == which.samples) {
      return turn::end;
    } else {
      // Also for a sample whose files are not given: a reader that resumes here begins before it.
      next_header = static_cast<std::int64_t>(parser.current().offset);
      begun_before = begun++;
      sample_at = {next_header, begun_before};
      skipping = false;
    }
    key = split->key;
    sliced.reset();
  }
  return skipping ? turn::pass : turn::give;
}

result<void> shard_reader::impl::end_of_source() {
  auto whole = check_end();
  if (whole) whole = check_count();
  broken = !whole;
  // If the shard ends before the next header, a resumed reader reads the last member again.
  const bool is_short = parser.offset() < static_cast<std::uint64_t>(next_header);
  if (!whole && is_short) std::tie(next_header, begun_before) = before_last;
  return whole;
}

awaitable<result<std::optional<tar_member>>> shard_reader::next() {
  impl& s = *impl_;
  s.refused.reset();
  if (!s.source) {
    auto opened = co_await s.open();
    s.broken = !opened;
    if (!opened) co_return opened.error();
  }
  for (;;) {
    if (s.lane.run.is_stopped()) co_return run_stopped();
    const auto step = s.parser.step(s.input);
    if (!step) co_return s.damaged(step.error());
    if (*step == tar_parser::event::need_input) {
      const auto more = co_await s.refill();
      s.broken = !more;
      if (!more) co_return more.error();
      if (*more) continue;
      s.count_lost();
      const auto whole = s.end_of_source();
      // Between members, or in one that is skipped: the last sample may be complete or not, so the
      // error has no key.
      if (!whole) co_return s.described(error(whole.error()).key(""));
      co_return std::optional<tar_member>();
    }
    tar_member member;
    member.ends_archive = *step == tar_parser::event::archive_end;
    if (member.ends_archive) {
      s.key.reset();
      s.after_damage = false;
      co_return std::optional(std::move(member));
    }
    if (*step != tar_parser::event::header) continue;
    s.count_lost();
    const auto& found = s.parser.current();
    const auto wanted = s.is_wanted(found, member.name);
    if (!wanted && s.broken) co_return wanted.error();
    if (wanted && !*wanted) continue;  // its data events are skipped
    const auto turn = s.turn_of(member.name);
    if (turn == impl::turn::end) {
      s.broken = s.which.end > 0 || ends_with_shard(s.lane, s.which);
      if (!s.broken) co_return std::optional<tar_member>();
      co_return differs_from_index(s.which, *s.url, "more").offset(found.offset).key(member.name);
    }
    if (turn == impl::turn::pass) continue;
    if (!wanted) co_return wanted.error();
    if (!found.refused.empty()) {
      co_return s.described(error(errc::bad_field, found.refused + " in a shard")
                                .offset(found.offset)
                                .key(member.name)
                                .hint("write the shard with plain files")
                                .skippable());
    }
    member.offset = static_cast<std::int64_t>(found.offset);
    member.number = s.begun - 1;
    if (!s.slice(member)) {
      if (auto collected = co_await s.collect(member); !collected) co_return collected.error();
    }
    const auto at = s.parser.offset();
    s.before_last = {s.next_header, s.begun_before};
    s.next_header = static_cast<std::int64_t>(round_up(at, tar_parser::block_size));
    s.begun_before = s.begun;
    member.after_damage = std::exchange(s.after_damage, false);
    co_return std::optional(std::move(member));
  }
}

}  // namespace millrace
