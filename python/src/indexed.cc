#include "indexed.h"

#include <millrace/millrace.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "decoded_sample.h"
#include "python/binding/interruptible_calls.h"
#include "python/binding/text.h"
#include "samples.h"
#include "spec.h"

namespace nb = nanobind;

namespace millrace::python {
namespace {

// A data set with its own engine, on its own thread.
class indexed {
 public:
  explicit indexed(const spec& of) : held_(std::make_shared<inside>()) {
    held_->options = engine_of(of);
    held_->url = of.shards.at(0);
  }
  ~indexed() {
    if (calls_.is_of_parent()) held_->itself = held_;  // left to the parent
  }
  indexed(const indexed&) = delete;
  indexed& operator=(const indexed&) = delete;

  std::int64_t size() {
    auto out = std::make_shared<std::int64_t>();
    calls_.call([held = held_, out] { *out = held->data().size(); });
    return *out;
  }

  nb::dict get(std::int64_t i) {
    auto out = std::make_shared<sample>();
    calls_.call([held = held_, i, out] { *out = undecoded(held->data().get(i)).value().s; });
    return dict_of(*out);
  }

  // The number of the sample; -1: there is none.
  std::int64_t find(const nb::str& name, const nb::str& first) {
    const std::string key = string_of(name);
    const std::string first_field = string_of(first);
    auto out = std::make_shared<std::int64_t>(-1);
    calls_.call([=, held = held_] { *out = held->find(key, first_field); });
    return *out;
  }

  void close() {
    if (calls_.is_of_parent()) return;
    if (!calls_.wait_for_callers(std::chrono::seconds(1)) || calls_.is_busy())
      return;  // that call ends it
    calls_.call([held = held_] { held->close(); });
  }
  bool is_of_parent() const { return calls_.is_of_parent(); }

 private:
  struct inside {
    std::shared_ptr<inside> itself;  // set: it is never destroyed
    engine_options options;
    std::string url;
    std::unique_ptr<engine> eng;
    std::optional<indexed_dataset> opened;

    indexed_dataset& data() {
      if (!opened) {
        eng = std::make_unique<engine>(options);
        opened.emplace(*eng, read_index(*eng, url));
      }
      return *opened;
    }

    std::int64_t find(const std::string& key, const std::string& first_field) {
      indexed_dataset& all = data();
      if (all.size() == 0) return -1;
      const std::string extension =
          first_field.empty() ? all.get(0).fields.at(0).extension : first_field;
      const std::uint16_t wanted = name_sum(key, extension);
      std::int64_t first = 0;
      for (const shard_index::shard& s : all.index().shards) {
        if (s.names.empty() && s.samples > 0) {
          throw failure(error(errc::unsupported, "the index has no names of samples")
                            .at(url)
                            .hint("make it with `millrace index --offsets`"));
        }
        for (std::size_t i = 0; i < s.names.size(); ++i) {
          const auto number = first + static_cast<std::int64_t>(i);
          if (s.names[i] == wanted && all.get(number).key == key) return number;
        }
        first += s.samples;
      }
      return -1;
    }

    void close() {
      opened.reset();
      eng.reset();
    }
  };

  std::shared_ptr<inside> held_;
  interruptible_calls calls_;
};

}  // namespace

void bind_indexed(nb::module_& to) {
  nb::class_<indexed>(to, "Indexed")
      .def(nb::init<const spec&>())
      .def("size", &indexed::size)
      .def("get", &indexed::get)
      .def("find", &indexed::find)
      .def("close", &indexed::close)
      .def("is_of_parent", &indexed::is_of_parent);
}

}  // namespace millrace::python
