#include "io/cache/entry_name.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "engine/base/words.h"
#include "io/hashes.h"

namespace millrace {
namespace {

constexpr std::size_t name_length = 64;

// A way to sign URLs: the prefix or the names of its parameters, and the parameters without which
// it is not a signature.
struct signing {
  std::string_view prefix;
  std::vector<std::string_view> names;
  std::vector<std::string_view> all_of;
  std::vector<std::string_view> one_of;
};

// Never destroyed: threads use it until the process ends.
const std::array<signing, 4>& signings() {
  static const auto& known = *new std::array<signing, 4>{{
      {"x-amz-", {}, {"x-amz-signature"}, {}},
      {"x-goog-", {}, {"x-goog-signature"}, {}},
      {"",  // Azure's shared access signatures
       {"sig", "sv",    "ss",    "srt", "sr",  "sp",  "st",  "se",    "sip",   "spr", "si",
        "sdd", "skoid", "sktid", "skt", "ske", "sks", "skv", "saoid", "suoid", "scid"},
       {"sig", "sv"},
       {}},
      {"",  // CloudFront, and the older ones of AWS and Google
       {"signature", "expires", "policy", "key-pair-id", "awsaccesskeyid", "googleaccessid"},
       {"signature"},
       {"key-pair-id", "awsaccesskeyid", "googleaccessid"}},
  }};
  return known;
}

std::vector<std::string_view> parameters(std::string_view query) {
  std::vector<std::string_view> out;
  while (!query.empty()) {
    const auto end = std::min(query.find('&'), query.size());
    out.push_back(query.substr(0, end));
    query.remove_prefix(std::min(end + 1, query.size()));
  }
  return out;
}

std::string name_of(std::string_view parameter) {
  return lowered(parameter.substr(0, parameter.find('=')));
}

bool is_signed_by(const signing& how, const std::vector<std::string>& names) {
  const auto there = [&](std::string_view name) {
    return std::ranges::find(names, name) != names.end();
  };
  return std::ranges::all_of(how.all_of, there) &&
         (how.one_of.empty() || std::ranges::any_of(how.one_of, there));
}

std::string without_signature(std::string_view query) {
  const auto all = parameters(query);
  std::vector<std::string> names;
  names.reserve(all.size());
  for (const auto one : all) names.push_back(name_of(one));
  std::vector<bool> signs(all.size());
  for (const signing& how : signings()) {
    if (!is_signed_by(how, names)) continue;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const bool begins = !how.prefix.empty() && names[i].starts_with(how.prefix);
      if (begins || std::ranges::find(how.names, names[i]) != how.names.end()) signs[i] = true;
    }
  }
  if (std::ranges::find(signs, true) == signs.end()) return "?" + std::string(query);
  std::string kept;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!signs[i]) kept += (kept.empty() ? "?" : "&") + std::string(all[i]);
  }
  return kept;
}

std::string text_of(const object_version& v) {
  return fmt::format("{}\n{}\n{}", v.total.value_or(0), v.etag.value_or(""),
                     v.etag ? "" : v.last_modified.value_or(""));
}

}  // namespace

bool identifies(const object_version& version) {
  return !version.etag.value_or("").empty() || !version.last_modified.value_or("").empty();
}

std::string canonical_url(const std::string& url) {
  auto where = parse_url(url);
  if (!where || where->host.empty()) return url;
  where->userinfo.clear();
  // A store's key may contain a '?'.
  const auto question = is_web(*where) ? where->path.find('?') : std::string::npos;
  if (question == std::string::npos) return to_string(*where);
  const std::string query = without_signature(std::string_view(where->path).substr(question + 1));
  where->path.resize(question);
  return to_string(*where) + query;
}

std::string cache_name(const std::string& url, const object_version& version) {
  return hex(digest_of(hash_algorithm::sha256, canonical_url(url) + "\n" + text_of(version)));
}

std::string seen_name(const std::string& url) {
  return hex(digest_of(hash_algorithm::sha256, canonical_url(url))) + ".seen";
}

bool is_cache_name(const std::string& file) {
  return file.size() == name_length &&
         file.find_first_not_of("0123456789abcdef") == std::string::npos;
}

}  // namespace millrace
