#include "writer.h"

#include <millrace/tools.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "python/binding/text.h"

namespace nb = nanobind;

namespace millrace::python {
namespace {

nb::list list_of(const std::vector<written_shard>& shards) {
  nb::list out;
  for (const written_shard& s : shards) {
    nb::dict one;
    one["path"] = s.path;
    one["samples"] = s.samples;
    one["bytes"] = s.bytes;
    out.append(one);
  }
  return out;
}

class writer {
 public:
  writer(const std::string& pattern, std::int64_t most_count, std::uint64_t most_bytes,
         std::int64_t first_shard, bool overwrite)
      : out_(std::in_place, shard_writer_options{.pattern = pattern,
                                                 .most_count = most_count,
                                                 .most_bytes = most_bytes,
                                                 .first_shard = first_shard,
                                                 .overwrite = overwrite}) {}

  void write(const nb::str& name, const std::vector<std::pair<nb::str, nb::bytes>>& fields) {
    const std::string key = string_of(name);
    std::vector<std::string> extensions;
    extensions.reserve(fields.size());
    std::vector<field_view> views;
    views.reserve(fields.size());
    for (const auto& [extension, content] : fields) {
      views.emplace_back(
          extensions.emplace_back(string_of(extension)),
          std::string_view(static_cast<const char*>(content.data()), content.size()));
    }
    check_process();
    const nb::gil_scoped_release without;
    const std::scoped_lock lock(guard_);
    open().write(key, views);
  }
  nb::list close() {
    check_process();
    {
      const nb::gil_scoped_release without;
      const std::scoped_lock lock(guard_);
      open().close();
    }
    return shards();
  }
  // Removes the shard that is not complete. In a forked child, leaves it to the parent.
  void drop() {
    if (getpid() != process_) return;
    const nb::gil_scoped_release without;
    const std::scoped_lock lock(guard_);
    out_.reset();
  }
  nb::list shards() {
    if (getpid() != process_) return {};
    std::vector<written_shard> now;
    {
      const nb::gil_scoped_release without;
      const std::scoped_lock lock(guard_);
      now = open().shards();
    }
    return list_of(now);
  }

 private:
  // A thread of the parent may have held the lock when it forked.
  void check_process() const {
    if (getpid() == process_) return;
    throw failure(error(errc::usage,
                        "this writer was made before fork(), and its shards are written by the "
                        "parent process alone")
                      .hint("make one of other names in the child"));
  }
  shard_writer& open() {
    if (out_) return *out_;
    throw failure(error(errc::usage, "this writer is closed").hint("make a new one"));
  }

  const pid_t process_ = getpid();
  std::mutex guard_;                 // taken without the GIL
  std::optional<shard_writer> out_;  // guarded; nullopt after drop()
};

}  // namespace

void bind_writer(nb::module_& to) {
  nb::class_<writer>(to, "Writer")
      .def(nb::init<const std::string&, std::int64_t, std::uint64_t, std::int64_t, bool>())
      .def("write", &writer::write)
      .def("close", &writer::close)
      .def("drop", &writer::drop)
      .def("shards", &writer::shards);
}

}  // namespace millrace::python
