#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "io/cache/cache_folder.h"
#include "io/hashes.h"

namespace millrace::cli {
namespace {

cache_folder opened_folder(const environment& e) {
  cache_folder folder(source_options::from(e.variables).value().cache);
  if (folder.options().folder.empty()) {
    throw failure(
        error(errc::bad_setting, "MILLRACE_CACHE is not set").hint("set it to the cache's folder"));
  }
  if (const auto usable = folder.prepare(); !usable) throw failure(usable.error());
  return folder;
}

int list(const environment& e, bool json) {
  const cache_folder folder = opened_folder(e);
  auto all = nlohmann::json::array();
  std::uint64_t sum = 0;
  for (cache_entry& entry : folder.entries()) {
    sum += entry.bytes;
    if (entry.complete) entry.url = folder.url_of(entry.name);
    const std::string& what = entry.complete ? entry.url : "(being filled, or left unfinished)";
    if (json) {
      all.push_back({{"name", entry.name},
                     {"url", entry.url},
                     {"bytes", entry.bytes},
                     {"used", entry.used_ns / 1'000'000'000},
                     {"complete", entry.complete}});
    } else {
      fmt::print("{}  {:>10}  {:%Y-%m-%d %H:%M}  {}\n", entry.name.substr(0, 12),
                 format_bytes(entry.bytes), fmt::localtime(entry.used_ns / 1'000'000'000), what);
    }
  }
  if (json) {
    fmt::print("{}\n", nlohmann::json{{"bytes", sum}, {"entries", std::move(all)}}.dump());
  } else {
    fmt::print("{} in {}\n", format_bytes(sum), folder.options().folder);
  }
  return 0;
}

int clean(const environment& e, bool all) {
  const cache_folder folder = opened_folder(e);
  const std::uint64_t freed = all ? folder.clean() : folder.evict(0);
  fmt::print("{} freed in {}\n", format_bytes(freed), folder.options().folder);
  return 0;
}

// The first block that is not what was written; nullopt where all are.
std::optional<std::uint64_t> damaged_block(const cached_file& file) {
  std::vector<std::byte> block(cache_block_bytes);
  for (std::uint64_t i = 0; i < file.blocks(); ++i) {
    const std::uint64_t at = i * cache_block_bytes;
    const auto size =
        static_cast<std::size_t>(std::min<std::uint64_t>(cache_block_bytes, file.bytes() - at));
    const ssize_t got = pread(file.fd(), block.data(), size, static_cast<off_t>(at));
    if (got != static_cast<ssize_t>(size) || !file.has_sum(i, crc32c({block.data(), size})))
      return i;
  }
  return std::nullopt;
}

int verify(const environment& e) {
  const cache_folder folder = opened_folder(e);
  int wrong = 0;
  std::uint64_t right = 0;
  for (const cache_entry& entry : folder.entries()) {
    if (!entry.complete) continue;
    const auto file = folder.open(entry.name);
    const auto block = file ? damaged_block(*file) : std::optional<std::uint64_t>(0);
    if (!block) {
      right += file->bytes();
      continue;
    }
    ++wrong;
    fmt::print("damaged: {} ({}), block {}; removed\n", entry.name,
               file ? file->url() : "unreadable", *block);
    folder.remove(entry.name);
  }
  fmt::print("{} are as they were written, {} entries were not\n", format_bytes(right), wrong);
  return wrong > 0 ? exit_code(errc::integrity) : 0;
}

}  // namespace

action add_cache(CLI::App& app) {
  CLI::App* command = app.add_subcommand("cache", "what MILLRACE_CACHE holds");
  command->require_subcommand(1);
  CLI::App* ls = command->add_subcommand("ls", "entries, the one used least recently first");
  CLI::App* cleaning = command->add_subcommand(
      "clean", "removes what is beyond MILLRACE_CACHE_SIZE and MILLRACE_CACHE_FREE");
  command->add_subcommand("verify", "reads all, removes what is damaged; exit 5 where any was");
  auto json = std::make_shared<bool>();
  auto all = std::make_shared<bool>();
  ls->add_flag("--json", *json, "print one JSON object on the last line");
  cleaning->add_flag("--all", *all, "everything that is not being read");
  return [command, json, all](const environment& e) {
    const std::string what = command->get_subcommands().front()->get_name();
    if (what == "ls") return list(e, *json);
    return what == "clean" ? clean(e, *all) : verify(e);
  };
}

}  // namespace millrace::cli
