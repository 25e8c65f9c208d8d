#include "pipeline/run/engine_options.h"

#include <unistd.h>

#include "engine/base/option_list.h"
#include "engine/base/units.h"
#include "engine/host/log.h"
#include "io/stores/known_stores.h"

namespace millrace {
namespace {

setting log_setting() {
  setting s = choice_setting("MILLRACE_LOG", "quiet|notice|debug",
                             "what is printed on stderr in addition to errors");
  s.initial = "notice";
  s.group = "Messages";
  return s;
}

// Read by scripts only, but accepted in any program's environment.
setting torch_setting() {
  setting s =
      choice_setting("MILLRACE_TORCH", "on|off",
                     "read by ./setup, ./run and ./test only: off builds everything but train/");
  s.initial = "on";
  s.group = "Building";
  return s;
}

option_list<engine_options> all_variables() {
  using o = engine_options;
  option_list<engine_options> list("engine_options");
  list.group("Memory and threads")
      .add("memory_bytes", &o::memory_bytes,
           size_setting(
               "MILLRACE_MEMORY", 16_MiB, 1024_GiB,
               "budget for all payload memory (auto: a quarter of what the cgroup allows, <= 4G)"),
           1)
      .add("cpu_threads", &o::cpu_threads,
           integer_setting("MILLRACE_CPU_THREADS", 1, 1024,
                           "threads that decode (auto: up to the CPUs that the cgroup allows, as "
                           "few as suffice)"))
      .add("io_threads", &o::io_threads,
           integer_setting("MILLRACE_IO_THREADS", 1, 64,
                           "threads that run the coroutines; a run uses one, so more are for "
                           "several runs at once"))
      .add("io", &o::io,
           choice_setting("MILLRACE_IO", "auto|uring|pread",
                          "how files are read (auto: io_uring where the kernel allows it)"))
      .add("register_buffers", &o::register_buffers,
           choice_setting("MILLRACE_REGISTERED_BUFFERS", "on|off",
                          "pin read buffers for io_uring once, as many as `ulimit -l` allows"))
      .add_part(&o::source, source_options::variables());
  return list;
}

}  // namespace

const option_list<engine_options>& engine_options::variables() {
  static const auto& list = *new auto(all_variables());
  return list;
}

engine_options engine_options::from(const settings& s) {
  engine_options o;
  o.tell_skipped = false;
  variables().read(s, o).value();
  o.source.http.use_environment(s.foreign());
  return o;
}

engine_options engine_options::from_environment() {
  const settings s = read_settings(environ).value();
  if (const auto* level = s.find("MILLRACE_LOG")) set_log_level(level->text);
  engine_options o = from(s);
  o.tell_skipped = true;
  return o;
}

const std::vector<setting>& all_settings() {
  static const auto& all = *new auto([] {
    auto list = engine_options::variables().all();
    list.push_back(log_setting());
    list.push_back(torch_setting());
    return list;
  }());
  return all;
}

result<settings> read_settings(const char* const* environment) {
  return settings::from_environment(environment, all_settings(), foreign_variables());
}

}  // namespace millrace
