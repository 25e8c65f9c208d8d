#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <new>

#include "engine/base/units.h"
#include "engine/memory/work_memory.h"
#include "engine/threads/offload.h"
#include "io/unpack/unpack.h"
#include "io/unpack/unpacker.h"

namespace millrace {
namespace {

constexpr int gzip_only = 15 + 16;  // zlib: largest window, gzip header
constexpr Bytef gzip_begin = 0x1f;  // zlib looks at two bytes, of which one may be missing

void begin(z_stream& z) {
  if (inflateInit2(&z, gzip_only) != Z_OK) throw std::bad_alloc();
}

// Skips zero bytes after a stream, up to the next stream or the end.
void pass_padding(z_stream& z) {
  for (; z.avail_in > 0 && *z.next_in == 0; --z.avail_in) ++z.next_in;
}

class gunzip final : public unpacker {
 public:
  explicit gunzip(const source_context& context) : threads_(context.threads), io_(context.io) {
    begin(z_);
  }
  ~gunzip() override { inflateEnd(&z_); }
  gunzip(const gunzip&) = delete;
  gunzip& operator=(const gunzip&) = delete;

  void feed(bytes input) override {
    at_end_ = input.empty();
    input_ = std::move(input);
    z_.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(input_.data()));
    z_.avail_in = static_cast<uInt>(input_.size());
  }

  awaitable<result<progress>> step(std::shared_ptr<unpacker> self, buffer into) override {
    const auto work = [this, self, into] { return inflate_into(into.span()); };
    co_return co_await offload(io_, threads_.cpu(), work);
  }

 private:
  // Runs in the pool.
  result<progress> inflate_into(std::span<std::byte> into) {
    if (failed_) return *failed_;
    if (at_end_) {
      if (between_streams_) return progress{};
      return error(errc::truncated, "the gzip stream ends too early").hint(cut_stream_hint);
    }
    z_.next_out = reinterpret_cast<Bytef*>(into.data());
    z_.avail_out = static_cast<uInt>(into.size());
    if (between_streams_) pass_padding(z_);
    while (z_.avail_in > 0 && z_.avail_out > 0) {
      if (between_streams_ && *z_.next_in != gzip_begin) {
        failed_ = error(errc::bad_archive, "the gzip stream is damaged: no stream begins here");
        break;
      }
      if (between_streams_) inflateReset(&z_);
      between_streams_ = false;
      const int code = inflate(&z_, Z_NO_FLUSH);
      if (code == Z_STREAM_END) {
        between_streams_ = true;
        pass_padding(z_);
      } else if (code == Z_MEM_ERROR) {
        throw std::bad_alloc();
      } else if (code != Z_OK && code != Z_BUF_ERROR) {
        failed_ = error(errc::bad_archive, std::string("the gzip stream is damaged: ") +
                                               (z_.msg ? z_.msg : "no message"));
        break;
      }
    }
    // Bytes before the damage are delivered before the error.
    if (failed_ && z_.avail_out == into.size()) return *failed_;
    if (failed_) return progress{into.size() - z_.avail_out, false};
    return progress{into.size() - z_.avail_out, z_.avail_in == 0};
  }

  runtime& threads_;
  io_thread& io_;
  z_stream z_{};
  bytes input_;
  bool at_end_ = false;
  bool between_streams_ = true;
  std::optional<error> failed_;
};

}  // namespace

result<std::string> gunzip_all(std::span<const std::byte> compressed, std::size_t most) {
  z_stream z{};
  begin(z);
  const std::unique_ptr<z_stream, int (*)(z_stream*)> ended(&z, inflateEnd);
  z.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(compressed.data()));
  z.avail_in = static_cast<uInt>(compressed.size());
  std::string out;
  std::size_t filled = 0;
  for (int code = Z_OK; z.avail_in > 0 || code != Z_STREAM_END;) {
    if (code == Z_STREAM_END) inflateReset(&z);
    if (filled == out.size()) {
      if (filled > most) {
        return error(errc::too_large,
                     fmt::format("it unpacks to more than {}", format_bytes(most)));
      }
      // One byte above the limit shows that there is more.
      const std::size_t before = out.size();
      const std::size_t size = std::min(std::max(before * 2, std::size_t{4_KiB}), most + 1);
      if (!take_work_memory(size + 1))
        return error(errc::no_memory, "not enough memory to unpack it");
      out.reserve(size);  // the old text exists until this returns
      out.resize(size);
      give_work_memory(before);
    }
    z.next_out = reinterpret_cast<Bytef*>(out.data() + filled);
    z.avail_out = static_cast<uInt>(out.size() - filled);
    code = inflate(&z, Z_NO_FLUSH);
    if (code == Z_STREAM_END) pass_padding(z);
    filled = out.size() - z.avail_out;
    if (code == Z_BUF_ERROR && z.avail_in == 0 && z.avail_out > 0) {
      return error(errc::truncated, "the gzip stream ends too early").hint(cut_stream_hint);
    }
    if (code == Z_MEM_ERROR) throw std::bad_alloc();
    if (code != Z_OK && code != Z_STREAM_END && code != Z_BUF_ERROR) {
      return error(errc::bad_archive, "the gzip stream is damaged");
    }
  }
  out.resize(filled);
  return out;
}

std::shared_ptr<unpacker> make_gunzip(const source_context& context) {
  return std::make_shared<gunzip>(context);
}

}  // namespace millrace
