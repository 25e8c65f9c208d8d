#include "pipeline/tools/scan.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <set>

#include "engine/offload.h"
#include "engine/read_blocks.h"
#include "io/hashes.h"
#include "io/unpack.h"
#include "pipeline/group.h"
#include "pipeline/tar_parser.h"
#include "pipeline/untar.h"

namespace millrace {
namespace {

// A file of that size costs more to read through than to open the shard again behind it.
constexpr std::uint64_t worth_a_jump = 8 << 20;
constexpr std::size_t unpacked_bytes = 4_MiB;
constexpr std::uint64_t largest_checked = 1 << 30;

// Hashes what passes, in the CPU pool.
class hashing_source final : public byte_source {
 public:
  hashing_source(run_context& run, std::unique_ptr<byte_source> inner)
      : run_(run), inner_(std::move(inner)) {}

  awaitable<result<bytes>> read() override {
    auto piece = co_await inner_->read();
    if (!piece || piece->empty()) co_return piece;
    read_ += piece->size();
    const auto work = [hash = hash_, data = *piece] { hash->add(data.span()); };
    co_await offload(run_.io, run_.threads.cpu(), work);
    co_return piece;
  }
  std::uint64_t bytes_read() const { return read_; }
  std::string finish() { return hex(hash_->finish()); }

 private:
  run_context& run_;
  std::unique_ptr<byte_source> inner_;
  // Shared with the work under way, which may outlive a source that is given up.
  std::shared_ptr<hasher> hash_ = std::make_shared<hasher>(hash_algorithm::md5);
  std::uint64_t read_ = 0;
};

class shard_scan {
 public:
  shard_scan(run_context& run, const scan_options& options, std::shared_ptr<memory_share> memory,
             std::shared_ptr<memory_share> unpacked, std::string url)
      : run_(run), options_(options), memory_(std::move(memory)), unpacked_(std::move(unpacked)) {
    facts_.url = std::move(url);
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
        on_header();
        if (jumps()) ended = co_await jump();
      } else if (*step == tar_parser::event::data && collects_) {
        const auto data = parser_.data();
        content_.insert(content_.end(), data.begin(), data.end());
      } else if (*step == tar_parser::event::member_end) {
        co_await on_member_end();
      }
    }
    if (!ended) {
      problem(ended.error());
    } else if (auto complete = parser_.finish(); !complete) {
      problem(complete.error());
      building_ = false;  // never half a sample
    }
    end_sample();
    if (hashing_ != nullptr && ended) {
      facts_.md5 = hashing_->finish();
      facts_.bytes = hashing_->bytes_read();
    }
    co_return std::move(facts_);
  }

 private:
  source_context context() const {
    return {run_.threads, run_.io, run_.tasks, memory_, run_.source, run_.counters};
  }

  awaitable<result<void>> open() {
    auto opened = co_await run_.sources.open(context(), facts_.url);
    if (!opened) co_return opened.error();
    source_ = std::move(*opened);
    if (options_.md5) {
      auto hashing = std::make_unique<hashing_source>(run_, std::move(source_));
      hashing_ = hashing.get();
      source_ = std::move(hashing);
    }
    if (auto first = co_await refill(); !first) co_return first.error();
    const auto how = compression_of(input_);
    if (how == compression::none) co_return result<void>();
    facts_.is_compressed = true;
    source_ =
        unpack(context(), unpacked_, {how, std::move(source_), std::move(piece_), facts_.url}, 0);
    input_ = {};
    co_return result<void>();
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
    facts_.problems.push_back(std::move(why));
  }

  void on_header() {
    const auto& m = parser_.current();
    collects_ = in_sample_ = false;
    if (!m.is_file()) {
      if (m.type >= '1' && m.type <= '6' && m.type != '5') ++facts_.not_files;
      return;
    }
    if (is_meta_name(m.name)) return;
    const auto name = split_name(m.name);
    if (!name) {
      ++facts_.without_key;
      return;
    }
    if (building_ && facts_.samples.back().key != name->key) end_sample();
    if (!building_) {
      const auto begin = static_cast<std::int64_t>(m.offset);
      facts_.samples.push_back({name->key, begin, begin});
      building_ = true;
    }
    if (!m.refused.empty()) {
      problem(error(errc::bad_field, m.refused + " in a shard").offset(m.offset).key(m.name));
    }
    if (!extensions_.insert(name->extension).second) {
      problem(error(errc::duplicate_field,
                    fmt::format("two members with the extension '{}'", name->extension))
                  .offset(m.offset)
                  .key(name->key));
    }
    in_sample_ = true;
    ++facts_.files;
    facts_.payload_bytes += m.size;
    collects_ = options_.wants && m.size <= largest_checked && options_.wants(name->extension);
    content_.clear();
  }

  awaitable<void> on_member_end() {
    if (in_sample_) {
      facts_.samples.back().end =
          static_cast<std::int64_t>(round_up(parser_.offset(), tar_parser::block_size));
    }
    if (!collects_) co_return;
    collects_ = false;
    const auto work = [check = options_.check,
                       content = std::make_shared<std::vector<std::byte>>(std::move(content_))] {
      return check(*content);
    };
    content_ = {};
    const std::uint64_t offset = parser_.current().offset;
    const std::string name = parser_.current().name;
    auto fine = co_await offload(run_.io, run_.threads.cpu(), work);
    if (!fine) problem(error(fine.error()).offset(offset).key(name));
  }

  void end_sample() {
    // Cut before its first file was whole.
    if (!building_ && !facts_.samples.empty() &&
        facts_.samples.back().end == facts_.samples.back().begin) {
      facts_.samples.pop_back();
    }
    building_ = false;
    extensions_.clear();
  }

  bool jumps() const {
    return hashing_ == nullptr && !facts_.is_compressed && !collects_ &&
           parser_.current().size >= worth_a_jump + input_.size() &&
           parser_.current().refused.empty();
  }

  // Opens the shard behind the data of the current member.
  awaitable<result<void>> jump() {
    const std::uint64_t next =
        round_up(parser_.offset() + parser_.current().size, tar_parser::block_size);
    if (in_sample_) facts_.samples.back().end = static_cast<std::int64_t>(next);
    source_.reset();
    piece_ = bytes();
    input_ = {};
    auto opened = co_await run_.sources.open(context(), facts_.url, {.begin = next, .end = {}});
    if (!opened) co_return opened.error();
    source_ = std::move(*opened);
    parser_ = tar_parser(next);
    co_return result<void>();
  }

  run_context& run_;
  const scan_options& options_;
  std::shared_ptr<memory_share> memory_;
  std::shared_ptr<memory_share> unpacked_;
  shard_facts facts_;
  std::unique_ptr<byte_source> source_;
  hashing_source* hashing_ = nullptr;  // within source_
  bytes piece_;
  std::span<const std::byte> input_;
  tar_parser parser_;
  bool building_ = false;
  bool in_sample_ = false;
  bool collects_ = false;
  std::set<std::string> extensions_;
  std::vector<std::byte> content_;
};

class scan_stream final : public stream<shard_facts> {
  struct job {
    std::optional<shard_facts> facts;
  };

 public:
  scan_stream(run_context& run, std::vector<std::string> urls, const scan_options& options)
      : run_(run), urls_(std::move(urls)), options_(options), changed_(run.io.executor()) {
    const source_memory need = memory_for(run.source, urls_.front());
    for (int i = 0; i < std::min<int>(options.at_once, static_cast<int>(urls_.size())); ++i) {
      reads_.push_back(run.memory.share(fmt::format("scan {}", i), need.least, need.most,
                                        read_block_allocator::instance()));
      unpacked_.push_back(
          run.memory.share(fmt::format("scan {} unpacked", i), 1_MiB, unpacked_bytes));
    }
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
    shard_scan one(run_, options_, reads_[slot], unpacked_[slot], std::move(url));
    j->facts = co_await one.whole();
    changed_.notify_all();
  }

  run_context& run_;
  std::vector<std::string> urls_;
  scan_options options_;
  std::vector<std::shared_ptr<memory_share>> reads_;
  std::vector<std::shared_ptr<memory_share>> unpacked_;
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

}  // namespace millrace
