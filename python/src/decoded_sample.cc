#include "decoded_sample.h"

#include <memory>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace millrace::python {

result<decoded_sample> undecoded(sample s) {
  for (const field& f : s.fields) {
    if (f.extension != "__key__" && f.extension != "__url__") continue;
    return of_sample(s, error(errc::duplicate_field,
                              "a file that is named like what a dict has of "
                              "its sample: ." +
                                  f.extension)
                            .hint("give it another extension"));
  }
  decoded_sample out;
  out.key = s.key;
  out.where = s.where;
  out.url = s.url;
  out.s = std::move(s);
  return out;
}

result<decoded_sample> with_images(sample s, bool orient) {
  static const auto* known = new std::string(decoded_extensions());  // threads use it to the end
  thread_local image_decoder decoder;
  auto made = undecoded(std::move(s));
  if (!made) return made;
  decoded_sample& out = *made;
  for (std::size_t i = 0; i < out.s.fields.size(); ++i) {
    const field& f = out.s.fields[i];
    const std::string_view name = f.extension;
    if (!matches_any(*known, name.substr(name.rfind('.') + 1))) continue;
    pixels_of_field image{.field = i, .pixels = {}};
    const auto choose = [](int width, int height) { return whole_image(width, height); };
    const auto place = [&image](const view_of_image& v) {
      image.height = static_cast<std::size_t>(v.window.height);
      image.width = static_cast<std::size_t>(v.window.width);
      image.pixels = std::make_unique_for_overwrite<std::uint8_t[]>(image.bytes());
      return std::span(image.pixels.get(), image.bytes());
    };
    if (auto done = decoder.decode(f.data.span(), {.orient = orient}, choose, place); !done) {
      return of_sample(out.s, done.error());
    }
    out.s.fields[i].data = {};  // its pixels come instead
    out.images.push_back(std::move(image));
  }
  return made;
}

std::optional<std::size_t> with_own_bytes(decoded_sample& item) {
  constexpr std::size_t most = 16 << 10;  // beyond, a call costs no more than the copy
  const std::size_t size = item.s.payload_bytes();
  if (size > most) return std::nullopt;
  bytes whole;
  try {
    std::string all;
    all.reserve(size);
    for (const field& f : item.s.fields) all += f.data.text();
    whole = owned_bytes(std::move(all));
  } catch (const std::bad_alloc&) {
    return std::nullopt;  // the item is given as it is, and is not lost
  }
  std::size_t at = 0;
  for (field& f : item.s.fields) {
    const std::size_t length = f.data.size();
    f.data = whole.slice(at, length);
    at += length;
  }
  std::size_t pixels = 0;
  for (const pixels_of_field& image : item.images) pixels += image.bytes();
  return size + pixels;
}

}  // namespace millrace::python
