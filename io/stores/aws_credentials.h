#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/coroutines/shared_call.h"
#include "io/http/stack.h"
#include "io/stores/sigv4.h"

namespace millrace {

struct aws_credentials {
  aws_keys keys;
  std::optional<std::int64_t> ends;  // seconds since 1970
};

// The sections of an AWS profile file, such as "[default]" and "[profile x]". Keys in lower case.
// Pure.
std::map<std::string, std::map<std::string, std::string>> parse_profiles(const std::string& text);

// "2026-11-21T09:30:00Z" in seconds since 1970; nullopt for anything else. Pure.
std::optional<std::int64_t> parse_utc(const std::string& text);

// The usual chain in its usual order: environment, web identity, profile files, container endpoint,
// instance endpoint. Credentials are searched once for all requests that need them, and kept until
// five minutes before they expire. One I/O thread.
class aws_credential_chain {
 public:
  explicit aws_credential_chain(std::shared_ptr<http_stack> stack);

  // Fails with not_allowed, and lists the places that were searched.
  awaitable<result<aws_keys>> keys(scope& tasks);
  // Call when the server refused the credentials: fetches new ones. False if they are fixed.
  bool forget();
  // From the environment or the profile; "us-east-1" if neither names one.
  awaitable<std::string> region();

 private:
  using found = std::optional<aws_credentials>;
  found from_environment() const;
  result<found> from_profile() const;
  awaitable<result<found>> from_web_identity(scope& tasks);
  awaitable<result<found>> from_container(scope& tasks);
  awaitable<result<found>> from_instance(scope& tasks);
  awaitable<result<aws_credentials>> search(scope& tasks);
  std::string profile_value(const std::string& name) const;
  awaitable<void> read_profiles();

  std::shared_ptr<http_stack> stack_;
  shared_call<aws_credentials> searching_;
  std::optional<aws_credentials> current_;
  std::vector<std::map<std::string, std::map<std::string, std::string>>> profiles_;  // by file
};

}  // namespace millrace
