#include "io/http/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <vector>

#include "engine/base/option_list.h"
#include "engine/base/process_wide.h"
#include "engine/base/units.h"
#include "engine/base/words.h"
#include "engine/coroutines/scope.h"
#include "io/http/secret_file.h"

namespace millrace {
namespace {

// Proxies, and what object stores share.
constexpr auto foreign = std::to_array<foreign_variable>({
    {"HOME", "where ~/.netrc, ~/.aws and other files of credentials are"},
    {"NETRC", "file with names and passwords for hosts (MILLRACE_NETRC precedes it)"},
    {"http_proxy", "proxy for http: URLs"},
    {"https_proxy", "proxy for https: URLs"},
    {"HTTPS_PROXY", "proxy for https: URLs"},
    {"all_proxy", "proxy for all URLs without one of their own"},
    {"ALL_PROXY", "proxy for all URLs without one of their own"},
    {"no_proxy", "hosts that are reached without a proxy, separated by commas"},
    {"NO_PROXY", "hosts that are reached without a proxy, separated by commas"},
});

std::string shown_path(const std::string& value) {
  const std::string shown = redacted(shown_file(value));
  return shown.empty() ? "..." : shown;
}

std::string shown_fields(const std::string& value) {
  std::vector<std::string> shown;
  for (const std::string& part : split(value, '|')) {
    const auto colon = part.find(':');
    const std::string name = part.substr(0, std::min(colon, part.size()));
    const bool has_name = colon != std::string::npos && is_field_name(name);
    shown.push_back(has_name ? name + ": ..." : "...");
  }
  return fmt::format("{}", fmt::join(shown, "|"));
}

std::string shown_token_files(const std::string& value) {
  std::vector<std::string> shown;
  for (const std::string& part : split(value, ';')) {
    const auto equals = std::min(part.find('='), part.size());
    const std::string host = part.substr(0, equals);
    const std::string file = part.substr(std::min(equals + 1, part.size()));
    const bool is_host = host == "localhost" || host.find_first_of(".:") != host.npos;
    // Without a host it may be the token itself.
    const std::string before = is_host && !file.empty() ? redacted(host) + "=" : "";
    const bool is_url = redacted(part) != part;
    shown.push_back(is_url ? redacted(part) : before + (before.empty() ? "..." : shown_path(file)));
  }
  return fmt::format("{}", fmt::join(shown, ";"));
}

void add_transfers(option_list<http_options>& list) {
  using o = http_options;
  list.group("HTTP transfers")
      .add(
          "timeouts.connect", [](auto& to) -> auto& { return to.timeouts.connect; },
          seconds_setting("MILLRACE_HTTP_CONNECT_TIMEOUT", 0.001, 86400,
                          "seconds for a name look-up and a connection"))
      .add(
          "timeouts.tls", [](auto& to) -> auto& { return to.timeouts.tls; },
          seconds_setting("MILLRACE_HTTP_TLS_TIMEOUT", 0.001, 86400,
                          "seconds for the TLS handshake"))
      .add(
          "timeouts.first_byte", [](auto& to) -> auto& { return to.timeouts.first_byte; },
          seconds_setting("MILLRACE_HTTP_FIRST_BYTE_TIMEOUT", 0.001, 86400,
                          "seconds from a request to the first byte of its answer"))
      .add(
          "timeouts.progress", [](auto& to) -> auto& { return to.timeouts.progress; },
          seconds_setting("MILLRACE_HTTP_PROGRESS_TIMEOUT", 0.001, 86400,
                          "seconds in which a transfer must bring 64 KiB"))
      .add("attempts", &o::attempts,
           integer_setting("MILLRACE_HTTP_ATTEMPTS", 1, 1000,
                           "attempts in a row that may bring nothing before a transfer fails"))
      .add(
          "backoff", &o::backoff,
          seconds_setting("MILLRACE_HTTP_BACKOFF", 0, 86400,
                          "seconds of the first pause between attempts; doubles, with full jitter, "
                          "to 30 s"))
      .add("connections", &o::connections,
           integer_setting("MILLRACE_HTTP_CONNECTIONS", 1, 4096,
                           "connections at once to one server, of each I/O thread"))
      .add("idle", &o::idle,
           seconds_setting("MILLRACE_HTTP_IDLE", 0, 86400,
                           "seconds for which an unused connection is kept"));
}

void add_parts(option_list<http_options>& list) {
  using o = http_options;
  setting split =
      choice_setting("MILLRACE_HTTP_SPLIT", "auto|off",
                     "parts of one object fetched at once (auto: by the measured throughput)");
  split.type = setting_type::choice_or_integer;
  split.least = 1;
  split.most = 1024;
  list.add("split", &o::split, split)
      .add("part_bytes", &o::part_bytes,
           size_setting("MILLRACE_HTTP_PART", 4_KiB, 1_GiB,
                        "bytes of one part (auto: by the time to its first byte)"))
      .add("hedge", &o::hedge,
           integer_setting("MILLRACE_HTTP_HEDGE", 0, 100,
                           "percent of the bytes that may be requested twice when a part is late"))
      .add("receive_buffer_bytes", &o::receive_buffer_bytes,
           size_setting("MILLRACE_HTTP_RECEIVE_BUFFER", 4_KiB, 1_GiB,
                        "SO_RCVBUF of connections (auto: the kernel's own tuning)"));
}

option_list<tls_options> of_tls() {
  using o = tls_options;
  option_list<tls_options> list("tls_options");
  list.group("HTTP requests and credentials")
      .add("ca_file", &o::ca_file,
           text_setting("MILLRACE_CA_FILE",
                        "certificates (PEM) to trust in addition to the host's (auto: none)",
                        shown_path))
      .add("client_cert", &o::client_cert,
           text_setting("MILLRACE_CLIENT_CERT",
                        "client certificate (PEM) to show to servers (auto: none)", shown_path))
      .add("client_key", &o::client_key,
           text_setting("MILLRACE_CLIENT_KEY",
                        "its private key (PEM; auto: in MILLRACE_CLIENT_CERT)", shown_path));
  return list;
}

void add_requests(option_list<http_options>& list) {
  using o = http_options;
  list.group("HTTP requests and credentials")
      .add("user_agent", &o::user_agent,
           text_setting("MILLRACE_HTTP_USER_AGENT", "User-Agent of requests"))
      .add_text(
          text_setting("MILLRACE_HTTP_HEADERS",
                       "sent to the hosts that URLs name: 'Name: value|Name: value' (auto: none)",
                       shown_fields),
          [](http_options& to, const std::string& text) -> result<void> {
            auto fields = parse_fields(text);
            if (!fields) return fields.error();
            to.fields = std::move(*fields);
            return {};
          })
      .add_text(text_setting(
                    "MILLRACE_HTTP_TOKENS",
                    "files with bearer tokens: 'host=file;host=file', read again when they change",
                    shown_token_files),
                [](http_options& to, const std::string& text) -> result<void> {
                  auto tokens = parse_token_files(text);
                  if (!tokens) return tokens.error();
                  to.tokens = std::move(*tokens);
                  return {};
                })
      .add(
          "private_redirects", &o::private_redirects,
          choice_setting("MILLRACE_HTTP_PRIVATE_REDIRECTS", "on|off",
                         "follow redirects of public servers to loopback and link-local addresses"))
      .add(
          "netrc", &o::netrc,
          text_setting("MILLRACE_NETRC",
                       "names and passwords for hosts (auto: $NETRC or ~/.netrc; off)", shown_path))
      .group("Object stores")
      .add("s3_path_style", &o::s3_path_style,
           choice_setting(
               "MILLRACE_S3_PATH_STYLE", "auto|on|off",
               "bucket in the path rather than in the host (auto: where an endpoint is set)"))
      .add("s3_unsigned", &o::s3_unsigned,
           choice_setting("MILLRACE_S3_UNSIGNED", "on|off",
                          "access S3 and Google stores without credentials, for public buckets"))
      .add("s3_requester_pays", &o::s3_requester_pays,
           choice_setting("MILLRACE_S3_REQUESTER_PAYS", "on|off",
                          "agree to pay for requests to requester-pays buckets"))
      .add_part(&o::tls, of_tls());
}

option_list<http_options> all_variables() {
  option_list<http_options> list("http_options");
  add_transfers(list);
  add_parts(list);
  add_requests(list);
  return list;
}

}  // namespace

const option_list<http_options>& http_options::variables() {
  static const auto& list = *new auto(all_variables());
  return list;
}

std::span<const foreign_variable> http_options::foreign_variables() {
  return foreign;
}

result<std::map<std::string, std::string>> parse_token_files(const std::string& text) {
  std::map<std::string, std::string> tokens;
  for (const std::string& part : split(text, ';')) {
    const auto equals = part.find('=');
    if (equals == 0 || equals == std::string::npos || equals + 1 == part.size()) {
      return error(errc::bad_setting, "MILLRACE_HTTP_TOKENS has a part without host or file")
          .hint("write host=file;host=file");
    }
    tokens[part.substr(0, equals)] = part.substr(equals + 1);
  }
  return tokens;
}

result<http_fields> parse_fields(const std::string& text) {
  http_fields fields;
  for (const std::string& part : split(text, '|')) {
    const auto colon = part.find(':');
    const std::string name = part.substr(0, colon);
    const bool has_name = colon != 0 && colon != std::string::npos;
    if (!has_name || !is_field_name(name)) {
      return error(errc::bad_setting,
                   fmt::format("MILLRACE_HTTP_HEADERS has a part {}",
                               has_name ? "whose name has a blank or another invalid character"
                                        : "without a name"))
          .hint("write 'Name: value|Name: value', without blanks around the names");
    }
    const auto value = part.find_first_not_of(' ', colon + 1);
    fields.push_back({name, value == std::string::npos ? "" : part.substr(value)});
  }
  return fields;
}

void http_options::use_environment(const std::map<std::string, std::string>& foreign) {
  environment = foreign;
  if (netrc.empty()) netrc = variable("NETRC");
  if (const std::string& home = variable("HOME"); netrc.empty() && !home.empty()) {
    netrc = home + "/.netrc";
  }
  if (netrc == "off") netrc.clear();
}

const std::string& http_options::variable(const std::string& name) const {
  static const never_destroyed<std::string> none;
  const auto found = environment.find(name);
  return found == environment.end() ? *none : found->second;
}

}  // namespace millrace
