#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "engine/base/result.h"
#include "io/http/message.h"
#include "io/http/timeouts.h"
#include "io/http/tls_options.h"
#include "millrace/version.h"

namespace millrace {

struct foreign_variable;
template <class Options>
class option_list;

// Options of fetching objects over HTTP. Every field but the last one is also a MILLRACE_ variable.
struct http_options {
  http_timeouts timeouts = {};  // of the steps of one request
  int attempts = 6;             // in a row that may bring nothing before a transfer fails
  std::chrono::milliseconds backoff{500};  // first pause; doubles to 30 s
  int connections = 64;                    // at once to one origin, of each I/O thread
  std::chrono::milliseconds idle{15'000};  // how long an unused connection is kept
  std::size_t receive_buffer_bytes = 0;    // SO_RCVBUF; 0: the kernel's
  std::optional<int> split = {};  // parts of one object at once; 0 or 1: one; unset: by measurement
  std::size_t part_bytes = 0;     // of one part; 0: by measurement
  double hedge = 0.05;  // fraction of the bytes that may be requested twice when a part is late
  bool private_redirects = false;  // follow redirects of public servers to loopback and link-local
  std::string user_agent = "millrace/" MILLRACE_VERSION;  // "User-Agent"
  http_fields fields = {};  // sent with every request to the host that the user named
  tls_options tls = {};     // certificates
  std::string netrc = {};   // file with names and passwords; empty: none
  std::map<std::string, std::string> tokens = {};  // host -> file with a bearer token
  std::optional<bool> s3_path_style = {};  // bucket in the path; unset: if an endpoint is set
  bool s3_unsigned = false;        // S3 and Google stores without credentials, for public buckets
  bool s3_requester_pays = false;  // agree to pay for requests to such buckets
  // The variables of other programs that millrace reads: proxies, credentials of object stores
  // (io/stores/known_stores.h). Empty: none of them.
  std::map<std::string, std::string> environment = {};

  static const option_list<http_options>& variables();
  // Those of `environment` that belong to no store.
  static std::span<const foreign_variable> foreign_variables();
  // Sets `environment`, and `netrc` if that is empty: to $NETRC or ~/.netrc. "off" then means none.
  void use_environment(const std::map<std::string, std::string>& foreign);
  // The value of a variable in `environment`; empty if it is not set. Valid until that changes.
  const std::string& variable(const std::string& name) const;
};

// Parses "host=file;host=file" for http_options::tokens. Fails with bad_setting.
result<std::map<std::string, std::string>> parse_token_files(const std::string& text);
// Parses "Name: value|Name: value" for http_options::fields. Fails with bad_setting.
result<http_fields> parse_fields(const std::string& text);

}  // namespace millrace
