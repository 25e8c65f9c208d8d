#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "io/http/client.h"

namespace millrace {

struct aws_keys {
  std::string id;
  std::string secret;
  std::string session_token;  // empty: keys that do not end
};

struct sigv4_scope {
  std::string region;
  std::string service;
  std::int64_t unix_seconds = 0;
};

// AWS Signature Version 4 of `what`: the fields to add to it. x-amz-content-sha256 is signed where
// the service is s3, whose paths are also encoded once only. Pure; checked against AWS's published
// examples. Source: "Authenticating Requests (AWS Signature Version 4)", Amazon S3 API Reference.
http_fields sigv4_fields(const http_request& what, const aws_keys& keys, const sigv4_scope& scope);

// RFC 3986: everything but unreserved characters, and '/' where `keep_slashes`.
std::string uri_encoded(std::string_view text, bool keep_slashes);

// "20130524T000000Z"
std::string compact_time(std::int64_t unix_seconds);

}  // namespace millrace
