#include "io/unpack.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace millrace {
namespace {

using namespace std::string_view_literals;

constexpr std::size_t piece_bytes = 256_KiB;
// A small file may grow as it likes.
constexpr std::uint64_t free_growth = 64_MiB;

constexpr std::array magics{std::pair{"\x1f\x8b"sv, compression::gzip},
                            std::pair{"BZh"sv, compression::bzip2},
                            std::pair{"\xfd\x37zXZ\0"sv, compression::xz},
                            std::pair{"\x28\xb5\x2f\xfd"sv, compression::zstd},
                            std::pair{"\x04\x22\x4d\x18"sv, compression::lz4},
                            std::pair{"\x1f\x9d"sv, compression::lzw}};

class unpacking_source final : public byte_source {
 public:
  unpacking_source(const source_context& context, std::shared_ptr<memory_share> memory, packed what,
                   std::uint64_t offset)
      : most_growth_(static_cast<std::uint64_t>(context.options.max_expansion)),
        memory_(std::move(memory)),
        what_(std::move(what)),
        to_discard_(offset),
        unpacker_(what_.how == compression::gzip ? make_gunzip(context)
                                                 : make_archive_filter(context)) {
    taken_ = what_.first.size();
    unpacker_->feed(std::move(what_.first));
  }

  awaitable<result<bytes>> read() override {
    for (;;) {
      auto piece = co_await memory_->acquire(piece_bytes);
      if (!piece) co_return piece.error();
      const auto got = co_await unpacker_->step(unpacker_, *piece);
      if (!got) co_return described(got.error());
      given_ += got->written;
      if (given_ > free_growth && given_ / most_growth_ > taken_) co_return too_large();
      bytes out = std::move(*piece).freeze(got->written);
      const auto unwanted =
          static_cast<std::size_t>(std::min<std::uint64_t>(to_discard_, out.size()));
      to_discard_ -= unwanted;
      if (unwanted < out.size()) co_return out.slice(unwanted);
      if (!got->wants_input && got->written == 0) co_return bytes();
      if (!got->wants_input) continue;
      auto input = co_await what_.source->read();
      if (!input) co_return input.error();
      taken_ += input->size();
      unpacker_->feed(std::move(*input));
    }
  }

 private:
  error described(error why) const { return why.at(what_.url).offset(given_).skippable(); }
  error too_large() const {
    return described(
        error(errc::too_large, fmt::format("{} compressed bytes unpack to more than {}", taken_,
                                           format_bytes(given_)))
            .hint("raise MILLRACE_MAX_EXPANSION if that is right"));
  }

  std::uint64_t most_growth_;
  std::shared_ptr<memory_share> memory_;
  packed what_;
  std::uint64_t to_discard_;
  std::uint64_t taken_ = 0;
  std::uint64_t given_ = 0;
  // Shared with the step under way, which may outlive a source that is given up.
  std::shared_ptr<unpacker> unpacker_;
};

}  // namespace

compression compression_of(std::span<const std::byte> first) {
  const std::string_view text(reinterpret_cast<const char*>(first.data()), first.size());
  for (const auto& [magic, how] : magics) {
    if (text.starts_with(magic)) return how;
  }
  return compression::none;
}

bool has_compressed_name(std::string_view url) {
  url = url.substr(0, url.find_first_of("?#"));
  constexpr std::array endings{".gz",  ".tgz", ".bz2",  ".tbz2", ".xz",
                               ".txz", ".zst", ".tzst", ".lz4",  ".Z"};
  return std::ranges::any_of(endings, [&](const char* end) { return url.ends_with(end); });
}

std::unique_ptr<byte_source> unpack(const source_context& context,
                                    std::shared_ptr<memory_share> memory, packed what,
                                    std::uint64_t offset) {
  return std::make_unique<unpacking_source>(context, std::move(memory), std::move(what), offset);
}

}  // namespace millrace
