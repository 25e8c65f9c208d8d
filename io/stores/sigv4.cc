#include "io/stores/sigv4.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <map>
#include <vector>

#include "engine/base/words.h"
#include "io/hashes.h"
#include "io/http/client.h"

namespace millrace {
namespace {

// The query's parameters, sorted. They are already encoded, as the target is.
std::string canonical_query(std::string_view query) {
  std::vector<std::string> parameters;
  while (!query.empty()) {
    const auto end = std::min(query.find('&'), query.size());
    std::string one(query.substr(0, end));
    if (one.find('=') == std::string::npos) one += '=';
    if (one != "=") parameters.push_back(std::move(one));
    query.remove_prefix(std::min(end + 1, query.size()));
  }
  std::ranges::sort(parameters);
  return fmt::format("{}", fmt::join(parameters, "&"));
}

std::string host_of(const url& target) {
  const std::string origin = target.origin();
  return origin.substr(origin.find("://") + 3);
}

}  // namespace

std::string uri_encoded(std::string_view text, bool keep_slashes) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = std::isalnum(byte) != 0 || c == '-' || c == '.' || c == '_' || c == '~' ||
                       (c == '/' && keep_slashes);
    out += plain ? std::string(1, c) : fmt::format("%{:02X}", byte);
  }
  return out;
}

std::string compact_time(std::int64_t unix_seconds) {
  const std::time_t seconds = unix_seconds;
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  return fmt::format("{:04}{:02}{:02}T{:02}{:02}{:02}Z", utc.tm_year + 1900, utc.tm_mon + 1,
                     utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec);
}

http_fields sigv4_fields(const http_request& what, const aws_keys& keys, const sigv4_scope& scope) {
  const std::string time = compact_time(scope.unix_seconds);
  const std::string date = time.substr(0, 8);
  const std::string body_hash = hex(digest_of(hash_algorithm::sha256, what.body));
  http_fields added{{"X-Amz-Date", time}};
  if (scope.service == "s3") added.push_back({"X-Amz-Content-Sha256", body_hash});
  if (!keys.session_token.empty()) added.push_back({"X-Amz-Security-Token", keys.session_token});

  std::map<std::string, std::string> headers{{"host", host_of(what.target)}};
  for (const http_fields* fields : {&what.fields, static_cast<const http_fields*>(&added)}) {
    for (const http_field& f : *fields) headers[lowered(f.name)] = f.value;
  }
  std::string header_lines;
  std::string names;
  for (const auto& [name, value] : headers) {
    header_lines.append(name).append(":").append(value).append("\n");
    names += (names.empty() ? "" : ";") + name;
  }
  const auto question = what.target.path.find('?');
  std::string path = what.target.path.substr(0, question);
  if (scope.service != "s3") path = uri_encoded(path, true);
  const std::string query =
      question == std::string::npos ? "" : canonical_query(what.target.path.substr(question + 1));
  const std::string canonical = fmt::format("{}\n{}\n{}\n{}\n{}\n{}", what.method, path, query,
                                            header_lines, names, body_hash);
  const std::string credential_scope =
      fmt::format("{}/{}/{}/aws4_request", date, scope.region, scope.service);
  const std::string to_sign = fmt::format("AWS4-HMAC-SHA256\n{}\n{}\n{}", time, credential_scope,
                                          hex(digest_of(hash_algorithm::sha256, canonical)));
  std::string key = "AWS4" + keys.secret;
  for (const std::string& part : {date, scope.region, scope.service, std::string("aws4_request")}) {
    key = hmac_sha256(key, part);
  }
  added.push_back({"Authorization",
                   fmt::format("AWS4-HMAC-SHA256 Credential={}/{}, SignedHeaders={}, Signature={}",
                               keys.id, credential_scope, names, hex(hmac_sha256(key, to_sign)))});
  return added;
}

}  // namespace millrace
