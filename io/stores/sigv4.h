#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "io/http/client.h"

namespace millrace {

struct aws_keys {
  std::string id;
  std::string secret;
  std::string session_token;  // empty: the keys do not expire
};

struct sigv4_scope {
  std::string region;
  std::string service;
  std::int64_t unix_seconds = 0;
};

// The fields that AWS Signature Version 4 adds to `what`. x-amz-content-sha256 is signed if the
// service is s3, whose paths are also encoded only once. Pure; checked against AWS's published
// examples. Source: "Authenticating Requests (AWS Signature Version 4)", Amazon S3 API Reference.
http_fields sigv4_fields(const http_request& what, const aws_keys& keys, const sigv4_scope& scope);

// Encodes all but unreserved characters (RFC 3986), and '/' unless `keep_slashes`.
std::string uri_encoded(std::string_view text, bool keep_slashes);

// "20130524T000000Z"
std::string compact_time(std::int64_t unix_seconds);

}  // namespace millrace
