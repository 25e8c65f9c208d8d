#pragma once

#include <memory>
#include <optional>
#include <string>

#include "io/http/client.h"
#include "io/http/options.h"

namespace millrace {

// Authenticates requests. Called before each one, so that credentials that expire can be renewed in
// time. One I/O thread.
class request_signer {
 public:
  virtual ~request_signer() = default;
  // The fields to add to `what`, which is otherwise complete.
  virtual awaitable<result<http_fields>> sign(scope& tasks, const http_request& what) = 0;
  // The server refused what sign() gave: gets new credentials, or forgets those it has. True when
  // asking again may help.
  virtual bool refused() = 0;
};

// For http: and https: URLs, the first of: userinfo in the URL, a token file for the host (read
// again when it changes), the .netrc. Null where none of them applies.
std::shared_ptr<request_signer> web_secrets(const url& target, const http_options& options);

// "host=file;host=file" and "Name: value|Name: value". Fail with bad_setting.
result<std::map<std::string, std::string>> parse_token_files(const std::string& text);
result<http_fields> parse_fields(const std::string& text);

// The content of a small file, without white space around it.
result<std::string> read_secret_file(const std::string& path, std::string_view what);

// The name of a secret's file as it may be shown: empty where it may be the secret itself that was
// given in the place of a name, for neither it nor its folder is there, and it does not look like
// /FOLDER/NAME.pem. Blocks for a stat().
std::string shown_file(const std::string& path);

}  // namespace millrace
