// The one translation unit of io/ that calls libarchive.
#include <archive.h>
#include <archive_entry.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>

#include "engine/coroutines/async.h"
#include "engine/coroutines/condition.h"
#include "engine/coroutines/posted_call.h"
#include "engine/host/start_thread.h"
#include "engine/memory/work_memory.h"
#include "engine/threads/io_thread.h"
#include "io/names/compression.h"
#include "io/unpack/unpack.h"
#include "io/unpack/unpacker.h"

namespace millrace {
namespace {

// libarchive asks for input by a callback that must return with it, so each stream has a thread
// that waits there. Spine and thread take turns: one works while the other waits.
class archive_filter final : public unpacker {
 public:
  archive_filter(const source_context& context, int filter)
      : filter_(filter),
        done_(std::make_shared<condition>(context.io.executor())),
        tell_(context.io.executor(), [done = done_] { done->notify_all(); }),
        thread_(start_thread("mr-unpack", [this] { run(); })) {}

  // Waits for the step under way, which takes no longer than filling a buffer.
  ~archive_filter() override {
    {
      const std::scoped_lock lock(mutex_);
      given_up_ = true;
    }
    turn_.notify_all();
    thread_.join();
  }
  archive_filter(const archive_filter&) = delete;
  archive_filter& operator=(const archive_filter&) = delete;

  void feed(bytes input) override {
    const std::scoped_lock lock(mutex_);
    input_ = std::move(input);
    has_input_ = true;
  }

  awaitable<result<progress>> step(std::shared_ptr<unpacker> /*self*/, buffer into) override {
    {
      const std::scoped_lock lock(mutex_);
      into_ = std::move(into);
      written_ = 0;
      threads_turn_ = true;
    }
    turn_.notify_all();
    const auto done = done_;
    for (;;) {
      {
        const std::scoped_lock lock(mutex_);
        if (!threads_turn_) {
          into_ = buffer();
          if (failed_ && written_ == 0) co_return *failed_;
          co_return progress{written_, wants_input_};
        }
      }
      co_await done->wait();
    }
  }

 private:
  // On the thread, with the lock held: lets the spine continue, and waits for its next step.
  void yield(std::unique_lock<std::mutex>& lock) {
    threads_turn_ = false;
    tell_.ask();
    turn_.wait(lock, [this] { return threads_turn_ || given_up_; });
  }

  static la_ssize_t read_more(archive* /*from*/, void* self, const void** data) {
    auto& f = *static_cast<archive_filter*>(self);
    std::unique_lock lock(f.mutex_);
    if (!f.next_piece(lock)) return ARCHIVE_FATAL;
    f.taken_ += f.in_use_.size();
    *data = f.in_use_.data();
    return static_cast<la_ssize_t>(f.in_use_.size());
  }

  // On the thread, with the lock held: takes the next input into use; it is empty at the end. False
  // if the whole stream was given up.
  bool next_piece(std::unique_lock<std::mutex>& lock) {
    const std::size_t kept = std::min(in_use_.size(), most_looked_at);
    before_ += in_use_.text().substr(in_use_.size() - kept);
    before_.erase(0, before_.size() - std::min(before_.size(), most_looked_at));
    in_use_ = bytes();
    if (!again_.empty()) {
      in_use_ = std::move(again_.front());
      again_.erase(again_.begin());
      return true;
    }
    while (!has_input_ && !given_up_) {
      wants_input_ = true;
      yield(lock);
    }
    wants_input_ = has_input_ = false;
    if (!given_up_) in_use_ = std::move(input_);
    return !given_up_;
  }

  void run() noexcept {
    {
      std::unique_lock lock(mutex_);
      turn_.wait(lock, [this] { return threads_turn_ || given_up_; });
      if (given_up_) return;
    }
    std::optional<error> failed;
    try {
      failed = unpack();
    } catch (const std::bad_alloc&) {
      failed = out_of_memory();
    }
    std::unique_lock lock(mutex_);
    failed_ = std::move(failed);
    while (!given_up_) yield(lock);
  }

  bool is_given_up() {
    const std::scoped_lock lock(mutex_);
    return given_up_;
  }

  // libarchive takes bytes that begin no bzip2 stream for the end, and an empty lz4 frame for the
  // end of everything. A new reader then continues after the padding.
  std::optional<error> unpack() {
    do {
      if (auto failed = unpack_streams()) return failed;
    } while (filter_ != ARCHIVE_FILTER_COMPRESS && !is_given_up() && has_more());
    return std::nullopt;
  }

  std::optional<error> unpack_streams() {
    const std::unique_ptr<archive, void (*)(archive*)> a(
        archive_read_new(), [](archive* one) { archive_read_free(one); });
    if (!a) return out_of_memory();
    // Not the filter that libarchive would detect: the unpacked bytes may look like another
    // compressed stream, whose windows were not checked. The filter for compress(1) reads as soon
    // as it is appended, before it has a source; it has no windows.
    const int set = filter_ == ARCHIVE_FILTER_COMPRESS
                        ? archive_read_support_filter_compress(a.get())
                        : archive_read_append_filter(a.get(), filter_);
    if (set != ARCHIVE_OK || archive_read_support_format_raw(a.get()) != ARCHIVE_OK ||
        archive_read_support_format_empty(a.get()) != ARCHIVE_OK) {
      return why_not(a.get());
    }
    archive_entry* entry = nullptr;
    int code = archive_read_open(a.get(), this, nullptr, read_more, nullptr);
    // To detect the format it has already read, and it takes a failed read for an empty file.
    if (archive_errno(a.get()) != 0) code = ARCHIVE_FATAL;
    if (code >= ARCHIVE_WARN) code = archive_read_next_header(a.get(), &entry);
    while (code != ARCHIVE_EOF && code >= ARCHIVE_WARN && !is_given_up()) {
      const void* data = nullptr;
      std::size_t size = 0;
      la_int64_t offset = 0;
      code = archive_read_data_block(a.get(), &data, &size, &offset);
      if (code >= ARCHIVE_WARN) give({static_cast<const std::byte*>(data), size});
    }
    if (code != ARCHIVE_EOF) return why_not(a.get());
    const auto used = static_cast<std::size_t>(archive_filter_bytes(a.get(), -1));
    const std::scoped_lock lock(mutex_);
    left_ = std::exchange(taken_, 0) - used;
    if (used > 0 || left_ == 0) return std::nullopt;
    return begins_no_stream(before_ + std::string(in_use_.text().substr(0, bzip2_head)));
  }

  // Whether anything but zero bytes follows what libarchive has used. It becomes the next input.
  bool has_more() {
    std::unique_lock lock(mutex_);
    const std::size_t in_use = std::min(left_, in_use_.size());
    const std::size_t before = std::min(left_ - in_use, before_.size());
    if (before > 0) again_.push_back(owned_bytes(before_.substr(before_.size() - before)));
    if (in_use > 0) again_.push_back(in_use_.slice(in_use_.size() - in_use));
    while (next_piece(lock) && !in_use_.empty()) {
      const std::size_t padding = std::min(in_use_.text().find_first_not_of('\0'), in_use_.size());
      if (padding == in_use_.size()) continue;
      again_.insert(again_.begin(), in_use_.slice(padding));
      in_use_ = bytes();
      before_.clear();
      return true;
    }
    return false;
  }

  // `left`: all bytes that are left, or as many as the head of a bzip2 stream has.
  error begins_no_stream(std::string_view left) const {
    constexpr std::string_view magic = magic_of(compression::bzip2);
    const bool is_cut = filter_ == ARCHIVE_FILTER_BZIP2 && left.size() < bzip2_head &&
                        left.substr(0, magic.size()) == magic.substr(0, left.size());
    const std::string what = "the compressed stream is damaged: ";
    if (is_cut) return {errc::truncated, what + "it ends too early"};
    return {errc::bad_archive, what + "no stream begins here"};
  }

  // On the thread: passes unpacked bytes to the spine, a buffer at a time.
  void give(std::span<const std::byte> data) {
    std::unique_lock lock(mutex_);
    while (!data.empty() && !given_up_) {
      const auto n = std::min(data.size(), into_.size() - written_);
      std::memcpy(into_.data() + written_, data.data(), n);
      written_ += n;
      data = data.subspan(n);
      if (written_ == into_.size()) yield(lock);
    }
  }

  static error why_not(archive* a) {
    // There is no message if there is no memory for one.
    const char* const said = archive_error_string(a);
    if (archive_errno(a) == ENOMEM || said == nullptr) return out_of_memory();
    const std::string text = said;
    const bool cut =
        std::ranges::any_of(std::array{"runcated", "remature", "No progress is possible"},
                            [&](const char* words) { return text.find(words) != text.npos; });
    return {cut ? errc::truncated : errc::bad_archive, "the compressed stream is damaged: " + text};
  }

  // What libarchive examines before it accepts another bzip2 stream: the heads of a stream and a
  // block.
  static constexpr std::size_t bzip2_head = 14;
  // Its decoders look ahead at most this far before they consume bytes.
  static constexpr std::size_t most_looked_at = 64;

  const int filter_;
  std::shared_ptr<condition> done_;
  wake_up tell_;
  std::mutex mutex_;
  std::condition_variable turn_;
  // Guarded by mutex_.
  bool threads_turn_ = false;
  bool given_up_ = false;
  bool has_input_ = false;
  bool wants_input_ = false;
  bytes input_;
  buffer into_;
  std::size_t written_ = 0;
  std::optional<error> failed_;
  bytes in_use_;              // owned by the thread while libarchive reads it
  std::string before_;        // the end of the previous input
  std::vector<bytes> again_;  // earlier input, to be used first
  std::size_t taken_ = 0;     // by libarchive, since it was opened
  std::size_t left_ = 0;      // the part of it that was not used
  std::thread thread_;
};

}  // namespace

result<std::vector<std::pair<std::string, std::string>>> unzip_all(
    std::span<const std::byte> content, std::size_t most) {
  const std::unique_ptr<archive, void (*)(archive*)> a(
      archive_read_new(), [](archive* one) { archive_read_free(one); });
  if (!a) return out_of_memory();
  archive_read_support_format_zip(a.get());
  std::vector<std::pair<std::string, std::string>> out;
  std::size_t all = 0;
  int code = archive_read_open_memory(a.get(), content.data(), content.size());
  archive_entry* entry = nullptr;
  while (code >= ARCHIVE_WARN && code != ARCHIVE_EOF) {
    code = archive_read_next_header(a.get(), &entry);
    if (code < ARCHIVE_WARN || code == ARCHIVE_EOF) break;
    const char* name = archive_entry_pathname(entry);
    std::string file;
    // Names, and the growth of the list of files.
    constexpr std::size_t an_entry = 512;
    if (!take_work_memory(an_entry))
      return error(errc::no_memory, "not enough memory to unpack it");
    const void* data = nullptr;
    std::size_t size = 0;
    la_int64_t offset = 0;
    while ((code = archive_read_data_block(a.get(), &data, &size, &offset)) == ARCHIVE_OK) {
      if (all += size; all > most) {
        return error(errc::too_large, "it unpacks to more than is allowed");
      }
      if (file.capacity() - file.size() < size) {
        const std::size_t before = file.capacity();
        const std::size_t capacity = std::max(before * 2, file.size() + size);
        if (!take_work_memory(capacity)) {
          return error(errc::no_memory, "not enough memory to unpack it");
        }
        file.reserve(capacity);
        give_work_memory(before);
      }
      file.append(static_cast<const char*>(data), size);
    }
    if (code != ARCHIVE_EOF) break;
    code = ARCHIVE_OK;
    out.emplace_back(name != nullptr ? name : "", std::move(file));
  }
  if (code != ARCHIVE_EOF && archive_errno(a.get()) == ENOMEM) return out_of_memory();
  if (code != ARCHIVE_EOF) {
    const char* why = archive_error_string(a.get());
    return error(errc::bad_archive,
                 std::string("the zip archive is damaged: ") + (why != nullptr ? why : ""));
  }
  return out;
}

std::shared_ptr<unpacker> make_archive_filter(const source_context& context, int filter) {
  return std::make_shared<archive_filter>(context, filter);
}

}  // namespace millrace
