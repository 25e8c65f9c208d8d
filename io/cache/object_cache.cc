#include <fmt/format.h>

#include <utility>

#include "engine/host/log.h"
#include "io/cache/cached_source.h"
#include "io/names/url.h"

namespace millrace {
namespace {

// The server of the URL.
std::string origin_of(const std::string& text) {
  const auto where = parse_url(text);
  return where ? where->origin() + where->socket : text;
}

}  // namespace

object_cache::object_cache(cache_options options, std::shared_ptr<disk_table> disks)
    : folder_(std::move(options)), disks_(std::move(disks)) {}

void object_cache::prepared(const result<void>& made) {
  prepared_ = true;
  if (!made) fail(made.error());
}

void object_cache::lost() {
  if (!std::exchange(prepared_, false)) return;  // another reader has noticed it before
  error gone(errc::not_found, "the cache's folder was removed");
  gone.at(folder_.options().folder);
  if (std::exchange(made_again_, true)) return fail(gone);
  log_notice(gone.message() + "; creating it again");
}

void object_cache::say_once(notice what, const std::string& text) {
  if (said_.insert(what).second) log_notice(text);
}

bool object_cache::is_away(const std::string& url) const {
  const auto it = away_until_.find(origin_of(url));
  return it != away_until_.end() && steady_clock::now() < it->second;
}

void object_cache::found_away(const std::string& url, const error& why) {
  const auto until = steady_clock::now() + away_for;
  if (!away_until_.insert_or_assign(origin_of(url), until).second) return;
  log_notice(why.message() + "; reading cached copies of this server's objects until it answers");
}

void object_cache::found_back(const std::string& url) {
  if (!away_until_.empty()) away_until_.erase(origin_of(url));
}

void object_cache::fail(const error& why) {
  if (std::exchange(broken_, true)) return;
  log_notice(fmt::format("{}; reading without a cache", why.message()));
}

}  // namespace millrace
