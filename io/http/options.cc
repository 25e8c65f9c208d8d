#include "io/http/options.h"

#include <sstream>

#include "engine/process_wide.h"

namespace millrace {
namespace {

template <class F>
result<void> for_each_part(const std::string& text, char separator, F each) {
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, separator);) {
    if (part.empty()) continue;
    if (auto done = each(part); !done) return done;
  }
  return {};
}

}  // namespace

result<std::map<std::string, std::string>> parse_token_files(const std::string& text) {
  std::map<std::string, std::string> tokens;
  const auto parsed = for_each_part(text, ';', [&](const std::string& part) -> result<void> {
    const auto equals = part.find('=');
    if (equals == 0 || equals == std::string::npos || equals + 1 == part.size()) {
      return error(errc::bad_setting, "MILLRACE_HTTP_TOKENS has a part without host or file")
          .hint("write host=file;host=file");
    }
    tokens[part.substr(0, equals)] = part.substr(equals + 1);
    return {};
  });
  if (!parsed) return parsed.error();
  return tokens;
}

result<http_fields> parse_fields(const std::string& text) {
  http_fields fields;
  const auto parsed = for_each_part(text, '|', [&](const std::string& part) -> result<void> {
    const auto colon = part.find(':');
    if (colon == 0 || colon == std::string::npos) {
      return error(errc::bad_setting, "MILLRACE_HTTP_HEADERS has a part without a name")
          .hint("write 'Name: value|Name: value'");
    }
    const auto value = part.find_first_not_of(' ', colon + 1);
    fields.push_back({part.substr(0, colon), value == std::string::npos ? "" : part.substr(value)});
    return {};
  });
  if (!parsed) return parsed.error();
  return fields;
}

result<http_options> http_options::from(const settings& s) {
  const auto text = [&](const char* name) {
    const std::string& value = s.text(name);
    return value == "auto" ? std::string() : value;
  };
  http_options o{
      .timeouts = {.connect = s.seconds("MILLRACE_HTTP_CONNECT_TIMEOUT"),
                   .tls = s.seconds("MILLRACE_HTTP_TLS_TIMEOUT"),
                   .first_byte = s.seconds("MILLRACE_HTTP_FIRST_BYTE_TIMEOUT"),
                   .progress = s.seconds("MILLRACE_HTTP_PROGRESS_TIMEOUT")},
      .attempts = s.integer("MILLRACE_HTTP_ATTEMPTS"),
      .backoff = s.seconds("MILLRACE_HTTP_BACKOFF"),
      .connections = s.integer("MILLRACE_HTTP_CONNECTIONS"),
      .idle = s.seconds("MILLRACE_HTTP_IDLE"),
      .receive_buffer_bytes = s.bytes("MILLRACE_HTTP_RECEIVE_BUFFER"),
      .part_bytes = s.bytes("MILLRACE_HTTP_PART"),
      .hedge = s.integer("MILLRACE_HTTP_HEDGE") / 100.0,
      .private_redirects = s.text("MILLRACE_HTTP_PRIVATE_REDIRECTS") == "on",
      .user_agent = s.text("MILLRACE_HTTP_USER_AGENT"),
      .tls = {.ca_file = text("MILLRACE_CA_FILE"),
              .client_cert = text("MILLRACE_CLIENT_CERT"),
              .client_key = text("MILLRACE_CLIENT_KEY")},
      .netrc = text("MILLRACE_NETRC"),
      .s3_unsigned = s.text("MILLRACE_S3_UNSIGNED") == "on",
      .s3_requester_pays = s.text("MILLRACE_S3_REQUESTER_PAYS") == "on",
      .environment = s.foreign(),
  };
  if (s.text("MILLRACE_HTTP_SPLIT") == "off") {
    o.split = 1;
  } else if (const int parts = s.integer("MILLRACE_HTTP_SPLIT"); parts > 0) {
    o.split = parts;
  }
  const std::string& path_style = s.text("MILLRACE_S3_PATH_STYLE");
  if (path_style != "auto") o.s3_path_style = path_style == "on";
  const std::string& netrc = o.variable("NETRC");
  const std::string& home = o.variable("HOME");
  if (o.netrc.empty() && !netrc.empty()) o.netrc = netrc;
  if (o.netrc.empty() && !home.empty()) o.netrc = home + "/.netrc";
  if (o.netrc == "off") o.netrc.clear();
  auto fields = parse_fields(text("MILLRACE_HTTP_HEADERS"));
  if (!fields) return fields.error();
  o.fields = std::move(*fields);
  auto tokens = parse_token_files(text("MILLRACE_HTTP_TOKENS"));
  if (!tokens) return tokens.error();
  o.tokens = std::move(*tokens);
  return o;
}

const std::string& http_options::variable(const std::string& name) const {
  static const never_destroyed<std::string> none;
  const auto found = environment.find(name);
  return found == environment.end() ? *none : found->second;
}

}  // namespace millrace
