#include "io/gzip_source.h"

#include <zlib.h>

#include <algorithm>

#include "engine/offload.h"

namespace millrace {
namespace {

constexpr std::size_t piece_bytes = 256_KiB;
constexpr int gzip_only = 15 + 16;  // zlib: largest window, gzip header

// A zlib stream with what it works on; stepped in the pool, one step at a time.
class inflater {
 public:
  inflater() { inflateInit2(&z_, gzip_only); }
  ~inflater() { inflateEnd(&z_); }
  inflater(const inflater&) = delete;
  inflater& operator=(const inflater&) = delete;

  bool wants_input() const { return z_.avail_in == 0; }
  bool between_members() const { return between_; }

  void feed(bytes input) {
    input_ = std::move(input);
    z_.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(input_.data()));
    z_.avail_in = static_cast<uInt>(input_.size());
  }

  // Fills `into` as far as the input goes; bytes written, or zlib's message.
  result<std::size_t> step(std::span<std::byte> into) {
    z_.next_out = reinterpret_cast<Bytef*>(into.data());
    z_.avail_out = static_cast<uInt>(into.size());
    while (z_.avail_in > 0 && z_.avail_out > 0) {
      if (between_) inflateReset(&z_);
      between_ = false;
      const int code = inflate(&z_, Z_NO_FLUSH);
      if (code == Z_STREAM_END) {
        between_ = true;
      } else if (code != Z_OK && code != Z_BUF_ERROR) {
        return error(errc::bad_archive, std::string("the gzip stream is damaged: ") +
                                            (z_.msg ? z_.msg : "no message"));
      }
    }
    return into.size() - z_.avail_out;
  }

 private:
  z_stream z_{};
  bytes input_;
  bool between_ = true;
};

class gzip_source final : public byte_source {
 public:
  gzip_source(source_context context, std::shared_ptr<memory_share> memory,
              std::unique_ptr<byte_source> compressed, std::string url, std::uint64_t offset)
      : context_(std::move(context)),
        memory_(std::move(memory)),
        compressed_(std::move(compressed)),
        url_(std::move(url)),
        to_discard_(offset) {}

  awaitable<result<bytes>> read() override {
    for (;;) {
      if (inflater_->wants_input()) {
        auto input = co_await compressed_->read();
        if (!input) co_return input.error();
        if (input->empty()) co_return ended();
        inflater_->feed(std::move(*input));
      }
      auto piece = co_await memory_->acquire(piece_bytes);
      if (!piece) co_return piece.error();
      const auto work = [state = inflater_, to = *piece] { return state->step(to.span()); };
      const auto got = co_await offload(context_.io, context_.threads.cpu(), work);
      if (!got) co_return described(got.error());
      given_ += *got;
      bytes out = std::move(*piece).freeze(*got);
      const auto unwanted = static_cast<std::size_t>(std::min<std::uint64_t>(to_discard_, *got));
      to_discard_ -= unwanted;
      if (unwanted < *got) co_return out.slice(unwanted);
    }
  }

 private:
  error described(error why) const { return why.at(url_).offset(given_).skippable(); }

  result<bytes> ended() const {
    if (inflater_->between_members()) return bytes();
    return described(error(errc::truncated, "the gzip stream ends too early"));
  }

  source_context context_;
  std::shared_ptr<memory_share> memory_;
  std::unique_ptr<byte_source> compressed_;
  std::string url_;
  std::uint64_t to_discard_;
  std::uint64_t given_ = 0;
  // Shared with the step under way, which outlives a source that is given up.
  std::shared_ptr<inflater> inflater_ = std::make_shared<inflater>();
};

}  // namespace

bool is_gzip_name(std::string_view url) {
  url = url.substr(0, url.find_first_of("?#"));
  return url.ends_with(".gz") || url.ends_with(".tgz");
}

std::unique_ptr<byte_source> gunzip(source_context context, std::shared_ptr<memory_share> memory,
                                    std::unique_ptr<byte_source> compressed, std::string url,
                                    std::uint64_t offset) {
  return std::make_unique<gzip_source>(std::move(context), std::move(memory), std::move(compressed),
                                       std::move(url), offset);
}

}  // namespace millrace
