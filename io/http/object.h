#pragma once

#include <memory>
#include <string>
#include <utility>

#include "io/http/message.h"
#include "io/names/url.h"

namespace millrace {

class request_signer;

// The request for an object.
struct http_object {
  explicit http_object(url asked) : target(std::move(asked)) {}

  url target;
  std::shared_ptr<request_signer> secrets;  // null: none
  http_fields fields;
  std::string trusted_hosts;  // host suffix, or "*": hosts to which secrets may be redirected
  std::string name;           // the user's name for it; empty: its target
};

}  // namespace millrace
