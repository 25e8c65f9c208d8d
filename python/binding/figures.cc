#include "python/binding/figures.h"

#include <nanobind/stl/string.h>

#include <string>

#include "python/binding/text.h"

namespace nb = nanobind;

namespace millrace::python {
namespace {

nb::dict kinds_of(const std::map<errc, std::uint64_t>& skipped) {
  nb::dict out;
  for (const auto& [kind, count] : skipped) {
    const std::string name(kind_name(kind));
    out[name.c_str()] = count;
  }
  return out;
}

}  // namespace

nb::dict dict_of(const run_stats& s, double waited) {
  nb::list stages;
  for (const stage_stats& stage : s.stages) {
    nb::dict one;
    one["name"] = stage.name;
    one["items"] = stage.items;
    one["bytes"] = stage.bytes;
    one["busy"] = stage.busy;
    one["waiting_input"] = stage.waiting_input;
    one["waiting_output"] = stage.waiting_output;
    stages.append(one);
  }
  nb::dict out;
  out["seconds"] = s.seconds;
  out["waited"] = waited;
  out["bytes_read"] = s.sources.bytes;
  out["io_thread_cpu"] = s.spine_cpu;
  out["threads"] = s.pool_threads;
  out["threads_used"] = s.pool_used;
  out["threads_busy"] = s.pool_busy;
  out["threads_cpu"] = s.pool_cpu;
  out["stages"] = stages;
  return out;
}

nb::dict dict_of(const ledger& counts) {
  nb::list messages;
  for (const std::string& m : counts.first_skipped) messages.append(text_of(m));
  nb::dict out;
  ledger::each_count(
      [&](const char* name, std::uint64_t ledger::* count) { out[name] = counts.*count; });
  out["skipped"] = kinds_of(counts.skipped);
  out["messages"] = messages;
  return out;
}

}  // namespace millrace::python
