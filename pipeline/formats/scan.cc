#include "pipeline/formats/scan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <set>

#include "engine/base/units.h"
#include "engine/base/words.h"
#include "engine/coroutines/condition.h"
#include "engine/memory/read_blocks.h"
#include "engine/threads/io_thread.h"
#include "engine/threads/offload.h"
#include "io/names/url.h"
#include "io/standard_sources.h"
#include "io/unpack/unpack.h"
#include "pipeline/formats/counting_source.h"
#include "pipeline/formats/group.h"
#include "pipeline/formats/tar_parser.h"
#include "pipeline/formats/untar.h"
#include "pipeline/samples/sample_name.h"

namespace millrace {
namespace {

// Reading through a file of this size costs more than opening the shard again after it.
constexpr std::uint64_t worth_a_jump = 8 << 20;
constexpr std::size_t unpacked_bytes = 4_MiB;
// For all shards, if their names do not say how they are compressed.
constexpr std::size_t usual_windows = 16_MiB;
constexpr std::size_t least_unpacked = 1_MiB;
constexpr std::uint64_t largest_checked = 1 << 30;
constexpr std::size_t least_checked = 4_MiB;

class shard_scan {
 public:
  // `list_bytes`: the most that the list of samples may take.
  shard_scan(run_context& run, const scan_options& options, std::size_t list_bytes,
             std::shared_ptr<memory_share> memory, unpack_memory unpacked,
             std::shared_ptr<memory_share> checked, std::string url)
      : run_(run),
        options_(options),
        list_bytes_(list_bytes),
        memory_(std::move(memory)),
        unpacked_(std::move(unpacked)),
        checked_(std::move(checked)) {
    facts_.url = std::move(url);
  }

  awaitable<shard_facts> opened() {
    auto source = co_await run_.sources.open(context(), facts_.url, {.begin = 0, .end = 1});
    while (source) {
      auto piece = co_await (*source)->read();
      if (!piece) source = piece.error();
      if (!piece || piece->empty()) break;
    }
    if (!source) problem(source.error());
    co_return std::move(facts_);
  }

  awaitable<shard_facts> whole() {
    auto ended = co_await open();
    while (ended) {
      const auto step = parser_.step(input_);
      if (!step) {
        problem(step.error());
        end_sample();
        parser_.resync();
        continue;
      }
      if (*step == tar_parser::event::need_input) {
        ended = co_await refill();
        if (ended && piece_.empty()) break;
      } else if (*step == tar_parser::event::archive_end) {
        end_sample();
      } else if (*step == tar_parser::event::header) {
        ended = on_header();
        if (collects_) co_await make_room();
        if (ended && jumps()) ended = co_await jump();
      } else if (*step == tar_parser::event::data && collects_) {
        const auto data = parser_.data();
        const std::size_t part = std::min(data.size(), content_.size() - collected_);
        std::memcpy(content_.data() + collected_, data.data(), part);
        collected_ += part;
      } else if (*step == tar_parser::event::member_end) {
        co_await on_member_end();
      }
    }
    const auto complete = ended ? parser_.finish() : ended;
    if (!complete) {
      problem(complete.error());
      if (std::exchange(building_, false)) {  // never list half a sample
        facts_.samples.pop_back();
        facts_.payload_bytes -= payload_of_sample_;
      }
    }
    end_sample();
    if (ended) {
      facts_.md5 = counted_->md5();
      facts_.bytes = counted_->position();
    }
    report_missing();
    co_return std::move(facts_);
  }

 private:
  source_context context() const {
    return {run_.threads, run_.io, run_.tasks, memory_, run_.source, run_.counters, version_};
  }

  awaitable<result<void>> open() {
    auto opened = co_await run_.sources.open(context(), facts_.url);
    if (!opened) co_return opened.error();
    read_from(std::move(*opened), 0);
    auto begun = co_await begin_reading(std::move(source_));
    if (!begun) co_return begun.error();
    source_ = std::move(begun->source);
    piece_ = std::move(begun->first);
    input_ = piece_.span();
    if (begun->how == compression::none) co_return result<void>();
    facts_.is_compressed = true;
    source_ = unpack(context(), unpacked_,
                     {begun->how, std::move(source_), std::move(piece_), facts_.url}, 0);
    input_ = {};
    co_return result<void>();
  }

  void read_from(std::unique_ptr<byte_source> source, std::uint64_t begin) {
    auto counting = std::make_unique<counting_source>(run_, std::move(source), begin, options_.md5);
    counted_ = counting.get();
    source_ = std::move(counting);
  }

  awaitable<result<void>> refill() {
    auto more = co_await source_->read();
    if (!more) co_return more.error();
    piece_ = std::move(*more);
    input_ = piece_.span();
    co_return result<void>();
  }

  void problem(error why) {
    if (why.where().empty()) why.at(facts_.url);
    if (facts_.problems.size() == shard_facts::most_problems) {
      ++facts_.more_problems;
      return;
    }
    facts_.problems.push_back(std::move(why));
  }

  result<void> on_header() {
    const auto& m = parser_.current();
    collects_ = in_sample_ = false;
    if (!m.is_file()) {
      if (m.type >= '1' && m.type <= '6' && m.type != '5') ++facts_.not_files;
      return {};
    }
    if (is_meta_name(m.name)) {
      ++facts_.meta_files;
      return {};
    }
    const auto name = split_name(m.name);
    if (!name) {
      ++facts_.without_key;
      return {};
    }
    if (building_ && key_ != name->key) end_sample();
    if (!building_) {
      if (auto begun = begin_sample(*name); !begun) return begun;
    }
    on_file(*name);
    return {};
  }

  result<void> begin_sample(const key_and_extension& first) {
    const std::string& key = first.key;
    const auto begin = static_cast<std::int64_t>(parser_.current().offset);
    listed_bytes_ += sizeof(sample_place) + (options_.keys ? charge_of_key(key) : 0);
    if (listed_bytes_ > list_bytes_) {
      return error(errc::too_large, fmt::format("there is no room in memory to list more than {}",
                                                counted(facts_.samples.size(), "sample")))
          .offset(parser_.current().offset)
          .hint("raise engine_options.memory_bytes (MILLRACE_MEMORY), or make smaller shards");
    }
    key_ = key;
    payload_of_sample_ = 0;
    facts_.samples.push_back({.key = options_.keys ? key : std::string(),
                              .begin = begin,
                              .name = name_sum(key, first.extension)});
    names_ = key.size();
    told_too_large_ = false;
    building_ = true;
    return {};
  }

  // Bytes of a key in addition to the std::string.
  static std::size_t charge_of_key(const std::string& key) {
    constexpr std::size_t kept_within = 15;
    constexpr std::size_t of_allocator = 16;
    return key.size() > kept_within ? round_up(key.size() + 1, of_allocator) + of_allocator : 0;
  }

  void on_file(const key_and_extension& name) {
    const auto& m = parser_.current();
    if (!m.refused.empty()) {
      problem(error(errc::bad_field, m.refused + " in a shard").offset(m.offset).key(m.name));
    }
    names_ += name.extension.size();
    if (extensions_.size() == most_fields || names_ > most_name_bytes) {
      if (!std::exchange(told_too_large_, true)) {
        problem(error(errc::too_large, "a sample with more fields, or longer names, than are read")
                    .offset(m.offset)
                    .key(name.key));
      }
    } else if (!extensions_.insert(name.extension).second) {
      problem(error(errc::duplicate_field,
                    fmt::format("two members with the extension '{}'", name.extension))
                  .offset(m.offset)
                  .key(name.key)
                  .hint("give one of them another extension"));
    }
    in_sample_ = true;
    ++facts_.files;
    facts_.payload_bytes += m.size;
    payload_of_sample_ += m.size;
    collects_ = options_.wants && options_.wants(name.extension);
  }

  // Acquires memory for the current file; that of other shards' files is released without this
  // shard's help. A file that gets none is a problem, because it was not checked.
  awaitable<void> make_room() {
    collected_ = 0;
    content_ = {};
    auto room = co_await room_for(parser_.current().size);
    collects_ = room.has_value();
    if (room) {
      content_ = std::move(*room);
    } else {
      problem(error(room.error()).offset(parser_.current().offset).key(parser_.current().name));
    }
  }

  awaitable<result<buffer>> room_for(std::uint64_t size) {
    if (size > largest_checked || charge_of(size) > checked_->limit()) {
      error why(errc::too_large,
                fmt::format("a file of {} is not checked: there is no room for it in memory",
                            format_bytes(size)));
      if (size <= largest_checked) why.hint("raise engine_options.memory_bytes (MILLRACE_MEMORY)");
      co_return why;
    }
    co_return co_await checked_->acquire(std::max<std::size_t>(1, size));
  }

  // Extends the sample to this byte. No member has more blocks than fit the counter: a shard that
  // says so was truncated.
  void goes_on_to(std::uint64_t end) {
    sample_place& last = facts_.samples.back();
    const std::uint64_t blocks =
        (end - static_cast<std::uint64_t>(last.begin)) / shard_index::block_bytes;
    last.blocks = static_cast<std::uint32_t>(std::min<std::uint64_t>(blocks, ~std::uint32_t{0}));
  }

  awaitable<void> on_member_end() {
    if (in_sample_) goes_on_to(round_up(parser_.offset(), tar_parser::block_size));
    if (!collects_) co_return;
    collects_ = false;
    const auto work = [check = options_.check, memory = run_.memory_for_decoding(),
                       content = std::exchange(content_, {}), size = collected_] {
      const work_memory_scope in(*memory);
      return check(content.span().first(size));
    };
    const std::uint64_t offset = parser_.current().offset;
    const std::string name = parser_.current().name;
    auto fine = co_await offload(run_.io, run_.threads.cpu(), work);
    if (!fine) problem(error(fine.error()).offset(offset).key(name));
  }

  void end_sample() {
    // The shard was truncated before the sample's first file was complete.
    if (!building_ && !facts_.samples.empty() && facts_.samples.back().blocks == 0) {
      facts_.samples.pop_back();
    }
    if (building_) look_for_required();
    building_ = false;
    extensions_.clear();
  }

  void look_for_required() {
    missing_.resize(options_.required.size());
    for (std::size_t i = 0; i < missing_.size(); ++i) {
      const auto& any = options_.required[i];
      if (std::ranges::any_of(any, [&](const auto& x) { return extensions_.contains(x); }))
        continue;
      if (missing_[i].count++ > 0) continue;
      missing_[i].first = facts_.samples.back();
      missing_[i].first.key = key_;
    }
  }

  void report_missing() {
    for (std::size_t i = 0; i < missing_.size(); ++i) {
      if (missing_[i].count == 0) continue;
      std::string any;
      for (const auto& x : options_.required[i]) any += (any.empty() ? "" : " or ") + x;
      problem(error(errc::missing_field,
                    fmt::format("{} of {} without a field '{}', the first of them",
                                missing_[i].count, counted(facts_.samples.size(), "sample"), any))
                  .at(facts_.url)
                  .offset(static_cast<std::uint64_t>(missing_[i].first.begin))
                  .key(missing_[i].first.key));
    }
  }

  bool jumps() const {
    return !options_.md5 && !facts_.is_compressed && !collects_ &&
           parser_.current().size >= worth_a_jump + input_.size() &&
           parser_.current().refused.empty() && version_->can_be_opened_within();
  }

  // Opens the shard again after the data of the current member: the same version of it.
  awaitable<result<void>> jump() {
    const std::uint64_t next =
        round_up(parser_.offset() + parser_.current().size, tar_parser::block_size);
    if (in_sample_) goes_on_to(next);
    source_.reset();
    piece_ = bytes();
    input_ = {};
    auto opened = co_await run_.sources.open(context(), facts_.url, {.begin = next, .end = {}});
    if (!opened) co_return opened.error();
    read_from(std::move(*opened), next);
    parser_ = tar_parser(next);
    co_return result<void>();
  }

  run_context& run_;
  const scan_options& options_;
  std::size_t list_bytes_;
  std::size_t listed_bytes_ = 0;
  std::shared_ptr<memory_share> memory_;
  std::shared_ptr<opened_version> version_ = std::make_shared<opened_version>();
  unpack_memory unpacked_;
  std::shared_ptr<memory_share> checked_;  // files being checked, of all shards
  shard_facts facts_;
  std::unique_ptr<byte_source> source_;
  counting_source* counted_ = nullptr;  // owned by source_
  bytes piece_;
  std::span<const std::byte> input_;
  tar_parser parser_;
  bool building_ = false;
  std::uint64_t payload_of_sample_ = 0;  // of the one that is being read
  std::string key_;                      // of the current sample
  bool in_sample_ = false;
  bool collects_ = false;
  std::set<std::string> extensions_;  // of the current sample
  std::size_t names_ = 0;
  bool told_too_large_ = false;
  struct missing_field {
    std::uint64_t count = 0;
    sample_place first;
  };
  std::vector<missing_field> missing_;  // one for each required extension
  buffer content_;
  std::size_t collected_ = 0;  // bytes of content_ that are filled
};

// Everything but standard input.
bool can_open_again(const std::string& url) {
  const auto parts = parse_url(url);
  return parts && parts->scheme != "-";
}

class scan_stream final : public stream<shard_facts> {
  struct job {
    std::optional<shard_facts> facts;
  };

 public:
  scan_stream(run_context& run, std::vector<std::string> urls, const scan_options& options)
      : run_(run), urls_(std::move(urls)), options_(options), changed_(run.io.executor()) {
    const source_memory need = memory_for(run.source, urls_);
    // Fewer concurrently if memory is small; one is enough.
    const std::size_t budget = run.memory.budget() / (options.check ? 2 : 1);
    const std::size_t fitting = std::max<std::size_t>(1, budget / (need.least + least_unpacked));
    const std::size_t at_once =
        std::min({static_cast<std::size_t>(options.at_once), urls_.size(), fitting});
    for (std::size_t i = 0; i < at_once; ++i) {
      reads_.push_back(run.memory.share(fmt::format("shard {} read", i), need.least, need.most,
                                        read_block_allocator::instance()));
      unpacked_.push_back(
          run.memory.share(fmt::format("shard {} unpacked", i), least_unpacked, unpacked_bytes));
    }
    const std::size_t windows = memory_for_windows(urls_) * reads_.size();
    windows_ = run.memory.share("decompression", 0, std::max(windows, usual_windows));
    if (!options.check) return;
    checked_ = run.memory.share("files looked at", least_checked,
                                std::max(least_checked, run.memory.budget() / 4));
    run.memory_for_decoding();  // reserves its share before the budget is divided
  }

  awaitable<outcome> next() override {
    while (jobs_.size() < reads_.size() && begun_ < urls_.size()) {
      jobs_.push_back(std::make_shared<job>());
      const std::size_t slot = begun_ % reads_.size();
      run_.tasks.spawn(run_one(jobs_.back(), slot, urls_[begun_++]));
    }
    if (jobs_.empty()) co_return std::optional<shard_facts>();
    while (!jobs_.front()->facts) co_await changed_.wait();
    std::optional<shard_facts> out = std::move(jobs_.front()->facts);
    jobs_.pop_front();
    co_return out;
  }
  void save(state& /*to*/) const override {
    throw failure(error(errc::unsupported, "a scan has no state to save"));
  }
  void restore(const state& /*from*/) override {
    throw failure(error(errc::unsupported, "a scan has no state to restore"));
  }

 private:
  awaitable<void> run_one(std::shared_ptr<job> j, std::size_t slot, std::string url) {
    // If a decoder's window could not grow while others had memory, the shard is read again with
    // the memory for it from the start, waiting for that while holding nothing.
    const auto at_first = std::make_shared<std::size_t>(0);
    for (;;) {
      const std::size_t room = *at_first;
      auto one = std::make_unique<shard_scan>(
          run_, options_, run_.memory.budget() / 2 / reads_.size(), reads_[slot],
          unpack_memory{.pieces = unpacked_[slot], .windows = windows_, .at_first = at_first},
          checked_, url);
      auto facts = options_.only_open ? co_await one->opened() : co_await one->whole();
      if (*at_first > room && can_open_again(url)) continue;
      j->facts = std::move(facts);
      break;
    }
    changed_.notify_all();
  }

  run_context& run_;
  std::vector<std::string> urls_;
  scan_options options_;
  std::vector<std::shared_ptr<memory_share>> reads_;
  std::vector<std::shared_ptr<memory_share>> unpacked_;
  std::shared_ptr<memory_share> windows_;  // of all shards; one that waits for it holds none of it
  std::shared_ptr<memory_share> checked_;
  std::deque<std::shared_ptr<job>> jobs_;
  std::size_t begun_ = 0;
  condition changed_;
};

}  // namespace

plan<shard_facts> scan(std::vector<std::string> urls, const scan_options& options) {
  if (urls.empty()) throw failure(error(errc::usage, "a scan of no shards"));
  return {[urls = std::move(urls), options](run_context& run) {
    return detail::measured<shard_facts>(run, "scan",
                                         std::make_unique<scan_stream>(run, urls, options));
  }};
}

void list_places(const shard_facts& from, shard_index::shard& to) {
  to.blocks.clear();
  to.names.clear();
  if (from.is_compressed || from.samples.empty()) return;
  const auto block_of = [](std::int64_t byte) {
    return static_cast<std::uint32_t>(byte / shard_index::block_bytes);
  };
  for (const sample_place& s : from.samples) {
    to.blocks.push_back(block_of(s.begin));
    to.names.push_back(s.name);
  }
  to.blocks.push_back(block_of(from.samples.back().end()));
}

}  // namespace millrace
