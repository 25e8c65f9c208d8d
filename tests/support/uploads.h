#pragma once

// A store in memory that checks what it is sent, as real ones do, and the real client that uploads
// to it over a simulated network, in simulated time.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <regex>

#include "engine/coroutines/scope.h"
#include "io/hashes.h"
#include "io/stores/store.h"
#include "io/stores/upload.h"
#include "tests/support/simulated_client.h"

namespace millrace::testing {

inline constexpr const char* secret = "canary-of-a-secret";

inline std::string body_of(const std::string& request) {
  return request.substr(request.find("\r\n\r\n") + 4);
}

inline std::vector<sent> reply(int status, const std::string& body = {},
                               const std::string& fields = {}) {
  return {{.bytes = fmt::format("HTTP/1.1 {} x\r\nContent-Length: {}\r\n{}\r\n{}", status,
                                body.size(), fields, body)}};
}

inline std::vector<sent> refuse(int status, const std::string& code) {
  return reply(status, fmt::format("<Error><Code>{}</Code></Error>", code));
}

inline std::string etag(const std::string& raw_md5, const std::string& end = {}) {
  return fmt::format("ETag: \"{}{}\"\r\n", hex(raw_md5), end);
}

// S3 and Google's XML API, with one bucket in memory.
class stored_bucket {
 public:
  std::vector<sent> answer(const std::string& request) {
    log.push_back(request.substr(0, request.find(" HTTP/1.1")));
    const auto faulty = fault ? fault(request) : std::nullopt;
    if (faulty) return *faulty;
    if (field_of(request, "Authorization").empty()) return refuse(403, "AccessDenied");
    static const std::regex line("^([A-Z]+) ([^ ?]*)(\\?([^ ]*))? HTTP");
    std::smatch found;
    const std::string first = request.substr(0, request.find("\r\n"));
    if (!std::regex_search(first, found, line)) return refuse(400, "BadRequest");
    const std::string method = found[1];
    const std::string key = found[2];
    const std::string query = found[4];
    const std::string body = body_of(request);
    const std::string md5 = digest_of(hash_algorithm::md5, body);
    const std::string told = field_of(request, "Content-MD5");
    if (!told.empty() && told != base64(md5)) return refuse(400, "BadDigest");
    if (method == "GET" || method == "HEAD") return get(method, key);
    if (method == "DELETE" && query.empty()) {
      objects.erase(key);
      return {{.bytes = "HTTP/1.1 204 x\r\n\r\n"}};
    }
    if (method == "PUT" && query.empty()) {
      const bool only_absent = !field_of(request, "If-None-Match").empty() ||
                               !field_of(request, "x-goog-if-generation-match").empty();
      if (only_absent && objects.contains(key)) return refuse(412, "PreconditionFailed");
      objects[key] = {body, etag(md5)};
      return reply(200, "", etag(md5));
    }
    return of_parts(method, key, query, body);
  }

  struct object {
    std::string content;
    std::string etag;
  };
  std::map<std::string, object> objects;
  std::map<std::string, std::map<int, std::string>> uploads;  // by their names
  std::vector<std::string> log;                               // first lines
  std::string own_etag;                                       // of objects in parts
  // Answers in place of the store; nullopt: the store answers.
  std::function<std::optional<std::vector<sent>>(const std::string& request)> fault;

 private:
  std::vector<sent> get(const std::string& method, const std::string& key) {
    const auto found = objects.find(key);
    if (found == objects.end()) return reply(404);
    if (method == "GET") return reply(200, found->second.content, found->second.etag);
    return {{.bytes = fmt::format("HTTP/1.1 200 x\r\nContent-Length: {}\r\n{}\r\n",
                                  found->second.content.size(), found->second.etag)}};
  }

  std::vector<sent> of_parts(const std::string& method, const std::string& key,
                             const std::string& query, const std::string& body) {
    if (query == "uploads") {
      const std::string id = fmt::format("id+{}", ++begun_);
      uploads[id];
      return reply(200, fmt::format("<?xml version=\"1.0\"?><InitiateMultipartUploadResult>"
                                    "<UploadId>{}</UploadId></InitiateMultipartUploadResult>",
                                    id));
    }
    const std::string id = percent_decoded(query.substr(query.find("uploadId=") + 9));
    if (!uploads.contains(id)) return refuse(404, "NoSuchUpload");
    if (method == "DELETE") {
      uploads.erase(id);
      return {{.bytes = "HTTP/1.1 204 x\r\n\r\n"}};
    }
    if (method == "PUT") {
      uploads[id][std::stoi(query.substr(query.find('=') + 1))] = body;
      return reply(200, "", etag(digest_of(hash_algorithm::md5, body)));
    }
    object whole;
    std::string md5s;
    for (const auto& [number, part] : uploads[id]) {
      const std::string md5 = digest_of(hash_algorithm::md5, part);
      const std::string listed =
          fmt::format("<Part><PartNumber>{}</PartNumber><ETag>\"{}\"</ETag>", number, hex(md5));
      if (body.find(listed) == std::string::npos) return refuse(400, "InvalidPart");
      whole.content += part;
      md5s += md5;
    }
    whole.etag = etag(digest_of(hash_algorithm::md5, md5s), fmt::format("-{}", uploads[id].size()));
    if (!own_etag.empty()) whole.etag = "ETag: \"" + own_etag + "\"\r\n";
    objects[key] = whole;
    uploads.erase(id);
    std::string quoted = whole.etag.substr(6, whole.etag.size() - 8);
    quoted = "&quot;" + quoted.substr(1, quoted.size() - 2) + "&quot;";
    return reply(200, fmt::format("<?xml version=\"1.0\"?><CompleteMultipartUploadResult>"
                                  "<ETag>{}</ETag></CompleteMultipartUploadResult>",
                                  quoted));
  }

  int begun_ = 0;
};

// Uploads by the real client to that store, whose URLs begin with the parameter.
class Uploads : public ::testing::TestWithParam<std::string> {
 protected:
  Uploads() {
    client_.options.environment = {{"AWS_ENDPOINT_URL", "http://h"},
                                   {"AWS_ACCESS_KEY_ID", "id"},
                                   {"AWS_SECRET_ACCESS_KEY", secret},
                                   {"STORAGE_EMULATOR_HOST", "http://h"},
                                   {"GOOGLE_OAUTH_ACCESS_TOKEN", secret}};
    client_.net->serve("10.0.0.1", [this](const std::string& r) { return bucket_.answer(r); });
  }
  ~Uploads() override { simulated_network::fault = nullptr; }

  std::string url_of(const std::string& key) const { return GetParam() + "://b/" + key; }
  static constexpr std::size_t part_bytes = 100'000;
  upload_terms terms() const { return {.part_bytes = part_bytes, .parts_at_once = 3}; }

  result<void> put(const std::string& key, const std::string& content, bool only_absent = false) {
    upload_terms how = terms();
    how.only_if_absent = only_absent;
    return client_.time.run(run(&client_, url_of(key), &content, how));
  }
  result<void> remove(const std::string& key) {
    return client_.time.run(run(&client_, url_of(key), nullptr, {}));
  }
  // Deletes if there is no content.
  static awaitable<result<void>> run(simulated_client* client, std::string where,
                                     const std::string* content, upload_terms how) {
    const auto stack = client->make_stack();
    const auto stores = object_stores(stack);
    scope tasks(client->context.get_executor());
    const url target = parse_url(where).value();
    const std::shared_ptr<object_store> store = stores.at(target.scheme);
    co_await store->prepare();
    upload_protocol& by = *store->uploads();
    const auto done = content != nullptr ? co_await upload(*stack, tasks, by, target, *content, how)
                                         : co_await delete_object(*stack, tasks, by, target);
    tasks.stop();
    co_await tasks.join();
    co_return done;
  }
  int count(const std::string& begin, const std::string& within = "") const {
    return static_cast<int>(std::ranges::count_if(bucket_.log, [&](const std::string& line) {
      return line.starts_with(begin) && line.find(within) != line.npos;
    }));
  }
  // Fails the first `n` requests of this method, with this in their line.
  void fail(int n, const std::string& method, const std::string& within,
            const std::function<std::vector<sent>(const std::string&)>& how) {
    bucket_.fault = [=,
                     left = n](const std::string& r) mutable -> std::optional<std::vector<sent>> {
      const std::string line = r.substr(0, r.find("\r\n"));
      const bool fits = line.starts_with(method) && line.find(within) != line.npos;
      if (!fits || left == 0) return std::nullopt;
      --left;
      return how(r);
    };
  }

  simulated_client client_;
  stored_bucket bucket_;
};

inline std::string uploaded_bytes(std::size_t size) {
  std::string out(size, '\0');
  for (std::size_t i = 0; i < size; ++i) out[i] = static_cast<char>((i * 31 + i / 251) % 256);
  return out;
}

}  // namespace millrace::testing
