// A plan of your own for Python: 16-bit WAV files of shards as arrays of floats, parsed by threads
// of C++. read.py iterates it.
#include <millrace/python.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

namespace nb = nanobind;
using namespace millrace;

namespace {

struct waveform {
  std::string key;
  std::int64_t rate = 0;  // values of a channel in a second
  std::size_t channels = 1;
  std::vector<float> values;  // -1 to 1; those of one moment together
  origin where;               // a resumed run finds the sample by it
};

// A number of one to four bytes, the lowest first.
std::uint32_t number(std::string_view of) {
  std::uint32_t out = 0;
  for (std::size_t i = of.size(); i > 0; --i)
    out = out << 8U | static_cast<unsigned char>(of[i - 1]);
  return out;
}

// The content of the first chunk of a name; empty: there is none.
std::string_view chunk(std::string_view file, std::string_view name) {
  if (file.size() < 12 || file.substr(0, 4) != "RIFF" || file.substr(8, 4) != "WAVE") return {};
  std::string_view rest = file.substr(12);
  while (rest.size() >= 8) {
    const std::size_t size = number(rest.substr(4, 4));
    if (rest.substr(0, 4) == name) return rest.substr(8, size);
    rest.remove_prefix(std::min(rest.size(), 8 + size + size % 2));
  }
  return {};
}

result<waveform> parsed(const sample& s) {
  const field* wav = s.find("wav");
  if (wav == nullptr) return of_sample(s, error(errc::missing_field, "no field 'wav'"));
  const std::string_view file = wav->data.text();
  const std::string_view format = chunk(file, "fmt ");
  const std::string_view data = chunk(file, "data");
  if (format.size() < 16 || number(format.substr(14, 2)) != 16 ||
      number(format.substr(2, 2)) == 0) {
    return of_sample(s, error(errc::bad_field, "no WAV file of 16-bit values"));
  }
  waveform out{.key = s.key, .where = s.where};
  out.channels = number(format.substr(2, 2));
  out.rate = number(format.substr(4, 4));
  out.values.resize(data.size() / 2 / out.channels * out.channels);
  for (std::size_t i = 0; i < out.values.size(); ++i) {
    const auto value = static_cast<std::int16_t>(number(data.substr(2 * i, 2)));
    out.values[i] = static_cast<float>(value) / 32768;
  }
  return out;
}

// (key, rate, array of moments x channels), without a copy of the values.
nb::tuple given(waveform w) {
  auto* held = new std::vector<float>(std::move(w.values));
  const nb::capsule owner(held,
                          [](void* p) noexcept { delete static_cast<std::vector<float>*>(p); });
  const nb::ndarray<nb::numpy, float> values(held->data(), {held->size() / w.channels, w.channels},
                                             owner);
  return nb::make_tuple(w.key, w.rate, values);
}

}  // namespace

NB_MODULE(waveforms, m) {
  python::bind_plan(
      m, "Waveforms",
      [](python::plan_start start, const std::string& spec, std::uint64_t seed, std::size_t held) {
        start.list.seed = seed;
        const auto urls = find_shards({spec}, "", start.eng.options().source).value();
        return shards(urls, start.list) | untar() | group_by_key() | keep_fields("wav") |
               shuffle({.samples = held, .seed = seed}) | map(parsed, {.threads = 2});
      },
      [](waveform w) { return given(std::move(w)); },  //
      nb::arg("shards"), nb::arg("seed") = 0, nb::arg("shuffle") = 1000,
      "WAV files of shards: (key, rate, array of moments x channels). `shards` is a path, a URL or "
      "a "
      "spec such as sound-{000000..000009}.tar; `shuffle` the number of samples held.");
}
