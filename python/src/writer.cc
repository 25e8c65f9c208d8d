#include "writer.h"

#include <millrace/tools.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
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
    check_usable();
    const caller counted(callers_);
    const nb::gil_scoped_release without;
    const std::scoped_lock lock(guard_);
    open().write(key, views);
  }
  nb::list close() {
    check_usable();
    const caller counted(callers_);
    {
      const nb::gil_scoped_release without;
      const std::scoped_lock lock(guard_);
      open().close();
    }
    return shards();
  }
  // Removes the shard that is not complete. In a forked child, leaves it to the parent.
  void drop() {
    if (getpid() != process_ || has_ended_) return;
    const caller counted(callers_);
    const nb::gil_scoped_release without;
    const std::scoped_lock lock(guard_);
    out_.reset();
  }
  // Before the interpreter ends, which a thread without the GIL does not survive: refuses further
  // calls, and waits for those of other threads, up to ten seconds.
  void end() {
    has_ended_ = true;
    if (getpid() != process_) return;
    const nb::gil_scoped_release without;
    std::unique_lock lock(callers_.mutex);
    callers_.left.wait_for(lock, std::chrono::seconds(10), [this] { return callers_.count == 0; });
  }
  nb::list shards() {
    if (getpid() != process_ || has_ended_) return {};
    const caller counted(callers_);
    std::vector<written_shard> now;
    {
      const nb::gil_scoped_release without;
      const std::scoped_lock lock(guard_);
      now = open().shards();
    }
    return list_of(now);
  }

 private:
  struct counted_callers {
    std::mutex mutex;
    std::condition_variable left;
    int count = 0;  // guarded
  };
  // Counts a thread that is in a call, from before it releases the GIL until it has it again.
  struct caller {
    counted_callers& of;
    explicit caller(counted_callers& all) : of(all) {
      const std::scoped_lock lock(of.mutex);
      ++of.count;
    }
    ~caller() {
      {
        const std::scoped_lock lock(of.mutex);
        --of.count;
      }
      of.left.notify_all();
    }
    caller(const caller&) = delete;
    caller& operator=(const caller&) = delete;
  };

  void check_usable() const {
    if (has_ended_) throw closed();
    // A thread of the parent may have held the lock when it forked.
    if (getpid() == process_) return;
    throw failure(error(errc::usage,
                        "this writer was made before fork(), and its shards are written by the "
                        "parent process alone")
                      .hint("make one of other names in the child"));
  }
  shard_writer& open() {
    if (out_) return *out_;
    throw closed();
  }
  static failure closed() {
    return failure(error(errc::usage, "this writer is closed").hint("make a new one"));
  }

  const pid_t process_ = getpid();
  std::mutex guard_;                 // taken without the GIL
  std::optional<shard_writer> out_;  // guarded; nullopt after drop()
  counted_callers callers_;
  bool has_ended_ = false;  // guarded by the GIL
};

}  // namespace

void bind_writer(nb::module_& to) {
  nb::class_<writer>(to, "Writer")
      .def(nb::init<const std::string&, std::int64_t, std::uint64_t, std::int64_t, bool>())
      .def("write", &writer::write)
      .def("close", &writer::close)
      .def("drop", &writer::drop)
      .def("shards", &writer::shards)
      .def("end", &writer::end);
}

}  // namespace millrace::python
