#include <fmt/format.h>

#include <atomic>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/read_report.h"
#include "engine/base/units.h"
#include "engine/base/words.h"
#include "engine/host/host.h"
#include "io/shard_urls.h"
#include "tools/bench/http_bench.h"

namespace millrace::cli {
namespace {

struct bench_http_arguments {
  shard_arguments objects;
  http_bench_options what;
  std::string range;
  int split = 0;
  bool json = false;
};

nlohmann::json to_json(const http_bench_report& r) {
  const source_counters& c = r.counters;
  auto out = read_report_json(r);
  out.update({{"connections", r.connections},
              {"objects", r.objects},
              {"requests", c.requests},
              {"first_byte", durations_json(c.first_bytes)},
              {"retries", c.retries},
              {"resumed", c.resumed},
              {"stalls", c.stalls},
              {"hedges", c.hedges},
              {"hedges_won", c.hedges_won},
              {"wasted_bytes", c.wasted_bytes},
              {"limit", r.limit(allowed_cpus())},
              {"mb_per_s_per_connection", r.rate_of_connection}});
  return out;
}

void print(const http_bench_report& r) {
  const source_counters& c = r.counters;
  fmt::print("read      {} in full, by {}, {}\n",
             counted(r.objects, "object or range", "objects or ranges"),
             counted(static_cast<std::uint64_t>(r.connections), "reader"),
             counted(c.requests, "request"));
  print_rate(r);
  const auto& each = r.rate_of_connection;
  fmt::print(
      "each      {:.1f} MB/s for the slowest reader, {:.1f} for the median, {:.1f} for the "
      "fastest\n",
      each.front(), each[each.size() / 2], each.back());
  fmt::print("1st byte  p50 {:.2f} ms, p99 {:.2f} ms, max {:.2f} ms\n",
             1e3 * c.first_bytes.percentile(0.5), 1e3 * c.first_bytes.percentile(0.99),
             1e3 * c.first_bytes.most());
  print_cpu(r);
  fmt::print("faults    {}, {} of them in mid-transfer, {}; {} of {} won; {} wasted\n",
             counted(c.retries, "retry", "retries"), c.resumed, counted(c.stalls, "stall"),
             c.hedges_won, counted(c.hedges, "hedge"),
             format_bytes(static_cast<std::size_t>(c.wasted_bytes)));
  fmt::print("limit     {}\n", r.limit(allowed_cpus()));
}

int bench_http(const environment& e, const bench_http_arguments& a) {
  engine_options how = a.objects.engine(e);
  http_bench_options what = a.what;
  what.urls = a.objects.urls(e);
  for (const std::string& text : what.urls) {
    const auto where = parse_url(rewritten(text, how.source.rewrites));
    if (!where) throw failure(where.error());
    if (where->scheme == "file" || where->scheme == "-") {
      throw failure(error(errc::usage, "this is a file, not an object on a server")
                        .at(text)
                        .hint("millrace bench disk measures files"));
    }
  }
  if (!a.range.empty()) what.range_bytes = parse_bytes(a.range).value();
  if (a.split > 0) how.source.http.split = a.split;
  what.stop = stop_requested();  // before this, a signal ends it at once
  std::atomic<std::uint64_t> read = 0;
  what.read = &read;
  progress shown("bench http", {.seconds = what.once ? 0 : what.seconds},
                 [&] { return work_done{read, 0}; });
  const auto report = run_http_bench(how, what);
  shown.end();
  if (a.json) {
    print_json(to_json(report));
  } else {
    print(report);
  }
  return report.interrupted ? exit_code_of_interrupt() : 0;
}

}  // namespace

action add_bench_http(CLI::App& bench) {
  CLI::App* http = bench.add_subcommand(
      "http", "measures servers: MB/s, time to first byte, faults, and the bottleneck");
  auto a = std::make_shared<bench_http_arguments>();
  a->objects.add_to(*http);
  http->option_defaults()->group("Measurement");
  http->add_option("--connections", a->what.connections, "objects read at once")
      ->type_name("OBJECTS")
      ->capture_default_str()
      ->check(in_range(1, 100'000));
  http->add_option("--seconds", a->what.seconds, "seconds to read for")
      ->type_name("SECONDS")
      ->capture_default_str()
      ->check(in_range(0.1, 86400.0));
  http->add_flag("--once", a->what.once, "read every object once, whatever --seconds says");
  http->add_option("--range", a->range,
                   "read each object by requests of this many bytes: 1M [whole objects]")
      ->type_name("BYTES")
      ->check([](const std::string& text) {
        const auto size = parse_bytes(text);
        return size && *size > 0 ? std::string() : "'" + text + "' is not a number of bytes";
      });
  http->add_option("--split", a->split, "parts of one object fetched at once [MILLRACE_HTTP_SPLIT]")
      ->type_name("PARTS")
      ->check(in_range(1, 1024));
  add_json(*http, a->json);
  http->footer(
      "Example:\n  millrace bench http http://host/train-{000000..000009}.tar --connections 16");
  return [a](const environment& e) { return bench_http(e, *a); };
}

}  // namespace millrace::cli
