#include "pipeline/images/sample_decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "engine/base/check_option.h"
#include "engine/base/words.h"
#include "engine/memory/work_memory.h"
#include "pipeline/images/decoded_cache.h"
#include "pipeline/samples/fields.h"
#include "pipeline/samples/label.h"

namespace millrace {
namespace {

error placed(error why, const sample& s) {
  if (why.where().empty()) {
    why.at(s.url ? *s.url : "").offset(static_cast<std::uint64_t>(s.where.offset));
  }
  if (why.sample_key().empty()) why.key(s.key);
  return why;
}

random_stream random_for(const decode_options& o, purpose what, const origin& where) {
  return {o.seed, what, static_cast<std::uint64_t>(where.epoch),
          static_cast<std::uint64_t>(where.position)};
}

constexpr int most_side = 16384;
constexpr int most_resize = 2 * most_side;
constexpr int most_int = std::numeric_limits<int>::max();

void check(const crop_options& o) {
  constexpr double most_aspect = 1000;
  check_option("crop_options.most_area", o.most_area, 0, 1);
  check_option("crop_options.least_area", o.least_area, 0, o.most_area);
  check_option("crop_options.most_aspect", o.most_aspect, 1 / most_aspect, most_aspect);
  check_option("crop_options.least_aspect", o.least_aspect, 1 / most_aspect, o.most_aspect);
  check_option("crop_options.flip", o.flip, 0, 1);
}

// Extensions are in lower case. One may begin with a dot, in "a..cls".
bool is_no_extension(std::string_view text) {
  return text.empty() || lowered(text) != text;
}

// "jpg,png": names of fields may have commas and blanks, but an image's is not the next one's.
bool is_other_list(std::string_view text) {
  const auto end = text.find_first_of(", ");
  return end != text.npos && is_image_extension(text.substr(0, end));
}

void check_fields(const decode_options& o) {
  constexpr std::string_view json = "json:";
  const std::string_view images = o.images;
  for (std::size_t from = 0; from <= images.size();) {
    const std::size_t end = std::min(images.find(';', from), images.size());
    const std::string_view one = images.substr(from, end - from);
    const bool is_wrong = is_no_extension(one) || is_other_list(one);
    from = end + 1;
    if (!is_wrong) continue;
    refuse_option("decode_options.images", "'" + o.images + "'",
                  "extensions in lower case, joined by ';'");
  }
  if (o.label.starts_with(json) ? o.label == json : is_no_extension(o.label)) {
    refuse_option("decode_options.label", "'" + o.label + "'",
                  "an extension in lower case, json:A.B, auto or none");
  }
}

// Names an image of another format among the fields, if there is one.
std::string other_image(const sample& s) {
  const auto other = std::ranges::find_if(s.fields, [](const field& f) {
    return is_image_extension(std::string_view(f.extension).substr(f.extension.rfind('.') + 1));
  });
  return other == s.fields.end() ? "" : ", but a " + other->extension;
}

}  // namespace

decode_options checked(decode_options o) {
  check_option("decode_options.size", o.size, 1, most_side);
  if (o.resize == 0) o.resize = (o.size * 256 + 112) / 224;
  check_option("decode_options.resize", o.resize, 1, most_resize);
  if (o.resize < o.size) {
    throw failure(
        error(errc::usage, fmt::format("a resize to {} below the size {}", o.resize, o.size))
            .hint("decode_options.resize is the shorter side before the crop: at least the size"));
  }
  if (o.growing.from != 0) {
    check_option("growing_size.from", o.growing.from, 1, o.size);
    check_option("growing_size.multiple", o.growing.multiple, 1, most_side);
    check_option("growing_size.epochs", o.growing.epochs, 1,
                 std::numeric_limits<std::int64_t>::max());
  }
  if ((o.image.raw_width != 0) || (o.image.raw_height != 0)) {
    check_option("image_options.raw_width", o.image.raw_width, 1, most_side);
    check_option("image_options.raw_height", o.image.raw_height, 1, most_side);
  }
  check_option("decode_options.classes", o.classes, 0, std::numeric_limits<std::int64_t>::max());
  if (o.classes > 0 && o.label == "none") {
    throw failure(error(errc::usage, fmt::format("{} classes of samples without label", o.classes))
                      .hint("name the label's field, or leave out the number of classes"));
  }
  check_fields(o);
  check(o.augment);
  check(o.crop);
  check_option("image_limits.max_pixels", o.image.limits.max_pixels, 1,
               std::numeric_limits<std::uint64_t>::max());
  check_option("image_limits.max_scans", o.image.limits.max_scans, 1, most_int);
  check_option("image_limits.max_cpu_seconds", o.image.limits.max_cpu_seconds, 0, 1e9);
  check_option("decode_options.encoded_share", o.encoded_share, 0, 1);
  check_option("decode_options.in_flight", o.in_flight, 0, 1 << 20);
  if (o.encoded_share > 0 && o.train && changes_pixels(o.augment)) {
    throw failure(error(errc::usage, "augmentations of images that the device decodes")
                      .hint("use only one of the two"));
  }
  return o;
}

int size_in(const decode_options& o, std::int64_t epoch) {
  const growing_size& g = o.growing;
  if (!o.train || g.from == 0 || epoch >= g.epochs) return o.size;
  const double part = static_cast<double>(epoch) / static_cast<double>(g.epochs);
  const double exact = g.from + part * (o.size - g.from);
  const auto rounded = static_cast<int>(std::lround(exact / g.multiple)) * g.multiple;
  return std::clamp(rounded, g.from, o.size);
}

view_of_image view_of(const decode_options& o, const origin& where, int width, int height) {
  if (!o.train) return resize_center_crop(width, height, o.resize, o.size);
  return random_resized_crop(width, height, size_in(o, where.epoch), o.crop,
                             random_for(o, purpose::augment, where));
}

const field* first_field(const sample& s, std::string_view names) {
  for (std::size_t from = 0; from <= names.size();) {
    const auto end = std::min(names.find(';', from), names.size());
    if (const field* f = s.find(names.substr(from, end - from))) return f;
    from = end + 1;
  }
  return nullptr;
}

// Returns the number of warnings.
result<int> sample_decoder::decode_image(const sample& s, const field& file,
                                         const decode_options& o, const view_chooser& choose,
                                         const pixel_place& place) {
  if (o.cache) {
    return metered([&] {
      auto decoded = by_cache(s, file, o, choose, place);
      drop_large(whole_);
      return decoded;
    });
  }
  if (auto done = images_.decode(file.data.span(), o.image, choose, place); !done)
    return done.error();
  return images_.warnings();
}

// An image that is not cached is decoded whole, cached if there is room, and then cut like a cached
// one, so the result does not depend on which images came first.
result<int> sample_decoder::by_cache(const sample& s, const field& file, const decode_options& o,
                                     const view_chooser& choose, const pixel_place& place) {
  const auto where = decoded_cache::place_of(s, file, o.image);
  auto picture = o.cache->find(where, whole_);
  if (!picture) {
    std::optional<view_of_image> kept;
    const auto choose_whole = [&](int width, int height) {
      kept = whole_image(width, height, o.cache->options().resize);
      const std::size_t bytes = output_bytes(*kept);
      // An image too large to hold whole is decoded each time, as without a cache.
      const bool can_be_held = bytes <= work_memory::current().limit() / 2;
      if (!can_be_held || !take_work_memory(bytes)) kept.reset();
      return kept ? *kept : choose(width, height);
    };
    const auto place_whole = [&](const view_of_image& v) {
      if (!kept) return place(v);
      whole_.resize(output_bytes(v));
      return std::span(whole_);
    };
    if (auto done = images_.decode(file.data.span(), o.image, choose_whole, place_whole); !done) {
      return done.error();
    }
    if (!kept) {
      o.cache->count_not_kept();
      return images_.warnings();
    }
    picture = {.rgb = std::as_bytes(std::span(whole_)),
               .width = kept->window.width,
               .height = kept->window.height,
               .warnings = images_.warnings()};
    o.cache->add(where, *picture);
  }
  image_options bare = o.image;
  bare.raw_width = picture->width;
  bare.raw_height = picture->height;
  if (auto done = kept_.decode(picture->rgb, bare, choose, place); !done) return done.error();
  return picture->warnings;
}

// Decides whether the device decodes this sample; if so, copies its file to `out`.
std::optional<encoded_image> sample_decoder::left_encoded(const sample& s,
                                                          std::span<const std::byte> file,
                                                          const decode_options& o,
                                                          std::uint8_t* out) {
  if (o.encoded_share == 0) return std::nullopt;
  if (random_for(o, purpose::device, s.where).uniform() >= o.encoded_share) return std::nullopt;
  const auto size = static_cast<std::size_t>(size_in(o, s.where.epoch));
  constexpr std::array soi = {std::byte{0xFF}, std::byte{0xD8}};
  if (file.size() > size * size * 3 || file.size() < soi.size()) return std::nullopt;
  if (!std::ranges::equal(file.first(soi.size()), soi)) return std::nullopt;
  headers_.read(file);
  const bool turns = o.image.orient && headers_.orientation.number != 1;
  const auto whole = jpeg_.read_size(file, o.image.limits);
  if (turns || !whole || headers_.may_be_preview) return std::nullopt;
  std::memcpy(out, file.data(), file.size());
  return encoded_image{.bytes = file.size(),
                       .view = view_of(o, s.where, whole->width, whole->height)};
}

result<sample_decoder::decoded> sample_decoder::decode(const sample& s, const decode_options& o,
                                                       std::uint8_t* out) {
  const field* file = first_field(s, o.images);
  if (file == nullptr) {
    const std::string what = fmt::format("no image among its fields (looked for {})", o.images);
    return placed(error(errc::missing_field, what + other_image(s)).skippable(), s);
  }
  const auto label = label_of(s, o.label, o.classes);
  if (!label) return label.error();
  const auto choose = [&](int width, int height) { return view_of(o, s.where, width, height); };
  const auto place = [&](const view_of_image& v) { return std::span(out, output_bytes(v)); };
  if (const auto encoded = left_encoded(s, file->data.span(), o, out)) {
    return decoded{.label = *label, .encoded = encoded};
  }
  const auto warnings = decode_image(s, *file, o, choose, place);
  if (!warnings) return placed(warnings.error(), s);
  if (o.train) {
    const int size = size_in(o, s.where.epoch);
    augment_.apply(o.augment, random_for(o, purpose::colors, s.where), {out, size, size});
  }
  return decoded{.label = *label, .warnings = *warnings};
}

}  // namespace millrace
