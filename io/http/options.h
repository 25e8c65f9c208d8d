#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "engine/result.h"
#include "io/http/message.h"
#include "io/http/timeouts.h"
#include "io/http/tls_options.h"

namespace millrace {

struct foreign_variable;
template <class Options>
class option_list;

// How objects are fetched over HTTP. Every field is also a MILLRACE_ variable.
struct http_options {
  http_timeouts timeouts = {};
  int attempts = 6;  // in a row without a byte gained
  std::chrono::milliseconds backoff{500};
  int connections = 64;  // at once to one origin, by one I/O thread
  std::chrono::milliseconds idle{15'000};
  std::size_t receive_buffer_bytes = 0;  // SO_RCVBUF; 0: the kernel's
  std::optional<int> split = {};  // parts of one object at once; 0 or 1: one; unset: by measurement
  std::size_t part_bytes = 0;     // 0: by measurement
  double hedge = 0.05;            // of all bytes may be asked for twice
  bool private_redirects = false;
  std::string user_agent = "millrace/0.1";
  http_fields fields = {};  // with every request to the host that the user named
  tls_options tls = {};
  std::string netrc = {};                          // path; empty: none
  std::map<std::string, std::string> tokens = {};  // host -> file with a bearer token
  std::optional<bool> s3_path_style = {};          // unset: where an endpoint is set
  bool s3_unsigned = false;
  bool s3_requester_pays = false;
  // The variables of other programs that millrace reads: proxies, credentials of object stores.
  std::map<std::string, std::string> environment = {};

  static const option_list<http_options>& variables();
  // Sets `environment`, and where `netrc` is empty, the file that it names; "off": none.
  void use_environment(const std::map<std::string, std::string>& foreign);
  // The value of one of them; empty where it is not set.
  const std::string& variable(const std::string& name) const;
};

// The variables of other programs that are read for http_options::environment.
std::span<const foreign_variable> foreign_variables();

// "host=file;host=file" and "Name: value|Name: value". Fail with bad_setting.
result<std::map<std::string, std::string>> parse_token_files(const std::string& text);
result<http_fields> parse_fields(const std::string& text);

}  // namespace millrace
