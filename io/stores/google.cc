#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "engine/base/json_tree.h"
#include "engine/coroutines/shared_call.h"
#include "io/hashes.h"
#include "io/http/ask.h"
#include "io/http/client.h"
#include "io/http/secret_file.h"
#include "io/stores/known_stores.h"
#include "io/stores/listing_page.h"
#include "io/stores/sigv4.h"
#include "io/stores/store.h"
#include "io/stores/store_url.h"
#include "io/stores/upload.h"

namespace millrace {
namespace {

constexpr std::int64_t token_renewed_before_s = 300;
// Of a service account's tokens: no more than is needed.
constexpr const char* to_read = "https://www.googleapis.com/auth/devstorage.read_only";
constexpr const char* to_write = "https://www.googleapis.com/auth/devstorage.read_write";

// Adds an OAuth 2.0 access token: from the environment, for a service account or a user (by the
// file that GOOGLE_APPLICATION_CREDENTIALS names, or gcloud's own), or from the metadata server. If
// there is none, requests are made without a token: public buckets need none.
class google_signer final : public request_signer {
 public:
  // `access`: the scope of its tokens, where it can choose.
  google_signer(std::shared_ptr<http_stack> stack, const char* access)
      : stack_(std::move(stack)), access_(access) {}

  awaitable<result<http_fields>> sign(scope& tasks, const http_request& /*what*/) override {
    const std::int64_t now = stack_->time().unix_seconds();
    if (now >= renew_at_) {
      auto found = co_await searching_([&] { return search(tasks); });
      if (!found && now >= ends_) co_return found.error();
    }
    if (token_.empty()) co_return http_fields{};
    co_return http_fields{{"Authorization", "Bearer " + token_}};
  }
  awaitable<bool> refused() override {
    renew_at_ = ends_ = 0;
    co_return stack_->options().variable("GOOGLE_OAUTH_ACCESS_TOKEN").empty() && !token_.empty();
  }

 private:
  awaitable<result<void>> search(scope& tasks) {
    const http_options& o = stack_->options();
    if (const auto& token = o.variable("GOOGLE_OAUTH_ACCESS_TOKEN"); !token.empty()) {
      keep(token, 3600);
      co_return result<void>();
    }
    const std::string& named = o.variable("GOOGLE_APPLICATION_CREDENTIALS");
    const std::string file =
        named.empty() ? o.variable("HOME") + "/.config/gcloud/application_default_credentials.json"
                      : named;
    const auto content = co_await secret_in_file(file, "the Google credentials");
    if (content) co_return co_await by_file(tasks, *content, file);
    if (!named.empty()) co_return content.error();
    co_return co_await by_metadata(tasks);
  }

  awaitable<result<void>> by_file(scope& tasks, std::string content, std::string file) {
    const auto json = json_tree::parse(content).value_or(json_tree());
    if (json.as<json_tree::object>() == nullptr) {
      co_return error(errc::not_allowed, "the Google credentials are not in JSON").at(file);
    }
    const auto uri = json.text_of("token_uri");
    auto target = parse_url(uri.empty() ? "https://oauth2.googleapis.com/token" : uri);
    if (!target) co_return target.error();
    std::string body;
    if (json.text_of("type") == "service_account") {
      const std::int64_t now = stack_->time().unix_seconds();
      json_tree::object claims;
      claims.emplace("iss", std::string(json.text_of("client_email")));
      claims.emplace("scope", std::string(access_));
      claims.emplace("aud", to_string(*target));
      claims.emplace("iat", now);
      claims.emplace("exp", now + 3600);
      const std::string unsigned_part = base64_url(R"({"alg":"RS256","typ":"JWT"})") + "." +
                                        base64_url(json_tree(std::move(claims)).dump());
      const auto signature = rsa_sha256(std::string(json.text_of("private_key")), unsigned_part);
      if (!signature) co_return error(signature.error()).at(file);
      body = "grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Ajwt-bearer&assertion=" +
             unsigned_part + "." + base64_url(*signature);
    } else if (!json.text_of("refresh_token").empty()) {
      body = fmt::format("grant_type=refresh_token&client_id={}&client_secret={}&refresh_token={}",
                         uri_encoded(json.text_of("client_id"), false),
                         uri_encoded(json.text_of("client_secret"), false),
                         uri_encoded(json.text_of("refresh_token"), false));
    } else {
      co_return error(errc::not_allowed, "Google credentials of an unknown type")
          .at(file)
          .hint("use a service account's key, or `gcloud auth application-default login`");
    }
    http_object endpoint(*target);
    endpoint.fields = {{"Content-Type", "application/x-www-form-urlencoded"}};
    const auto answer = co_await ask(*stack_, tasks, std::move(endpoint), "POST", body);
    if (!answer) co_return answer.error();
    co_return keep_answer(answer->body, *target);
  }

  // On hosts other than Google's this address does not answer: gives up after a second.
  awaitable<result<void>> by_metadata(scope& tasks) {
    std::string host = stack_->options().variable("GCE_METADATA_HOST");
    if (host.empty()) host = "169.254.169.254";
    if (host.find("://") == std::string::npos) host.insert(0, "http://");
    auto target = parse_endpoint(host, "GCE_METADATA_HOST");
    if (!target) co_return target.error();
    target->path += "/computeMetadata/v1/instance/service-accounts/default/token";
    http_object endpoint(*target);
    endpoint.fields = {{"Metadata-Flavor", "Google"}};
    const auto answer = co_await until(
        stack_->time(), stack_->time().now() + std::chrono::seconds(1),
        ask(*stack_, tasks, std::move(endpoint)), error(errc::timed_out, "no metadata server"));
    if (answer) co_return keep_answer(answer->body, *target);
    keep("", 3600);
    co_return result<void>();
  }

  result<void> keep_answer(const std::string& body, const url& from) {
    const auto json = json_tree::parse(body).value_or(json_tree());
    const std::string token(json.text_of("access_token"));
    if (token.empty()) {
      return error(errc::protocol, "the token endpoint gave no token").at(to_string(from));
    }
    const json_tree* const told = json.find("expires_in");
    const auto* const lives = told == nullptr ? nullptr : told->as<std::int64_t>();
    constexpr std::int64_t longest = 86'400;
    keep(token, lives != nullptr ? std::clamp(*lives, std::int64_t{0}, longest) : 3600);
    return {};
  }

  void keep(std::string token, std::int64_t seconds) {
    token_ = std::move(token);
    ends_ = stack_->time().unix_seconds() + seconds;
    renew_at_ = ends_ - std::min(token_renewed_before_s, seconds / 2);
  }

  std::shared_ptr<http_stack> stack_;
  const char* access_;
  shared_call<void> searching_;
  std::string token_;
  std::int64_t renew_at_ = 0;
  std::int64_t ends_ = 0;
};

class google final : public object_store {
 public:
  explicit google(std::shared_ptr<http_stack> stack)
      : stack_(std::move(stack)),
        signer_(std::make_shared<google_signer>(stack_, to_read)),
        writer_(std::make_shared<google_signer>(stack_, to_write)) {
    uploads_ = s3_upload_protocol({{"x-goog-if-generation-match", "0"}}, [this](const url& where) {
      auto found = locate(where);
      if (found && found->secrets) found->secrets = writer_;
      return found;
    });
  }

  upload_protocol* uploads() override { return uploads_.get(); }

  result<http_object> locate(const url& where) override {
    auto found = bucket(where);
    if (found) found->target.path += uri_encoded(key_of(where), true);
    return found;
  }

  awaitable<result<std::vector<listed_object>>> list(scope& tasks, url prefix) override {
    auto where = bucket(prefix);
    if (!where) co_return where.error();
    co_return co_await list_by_s3(stack_, tasks, std::move(*where), std::move(prefix));
  }

 private:
  result<http_object> bucket(const url& where) {
    std::string endpoint = stack_->options().variable("STORAGE_EMULATOR_HOST");
    if (endpoint.empty()) endpoint = "https://storage.googleapis.com";
    if (endpoint.find("://") == std::string::npos) endpoint.insert(0, "http://");
    auto target = parse_endpoint(endpoint, "STORAGE_EMULATOR_HOST");
    if (!target) return target.error();
    target->path += "/" + uri_encoded(where.host, false) + "/";
    http_object found(std::move(*target));
    if (!stack_->options().s3_unsigned) found.secrets = signer_;
    return found;
  }

  std::shared_ptr<http_stack> stack_;
  std::shared_ptr<google_signer> signer_;
  std::shared_ptr<google_signer> writer_;
  std::unique_ptr<upload_protocol> uploads_;  // refers to this
};

constexpr auto google_variables = std::to_array<foreign_variable>({
    {"GOOGLE_APPLICATION_CREDENTIALS", "Google: file of a service account or user"},
    {"GOOGLE_OAUTH_ACCESS_TOKEN", "Google: token to use as it is"},
    {"STORAGE_EMULATOR_HOST", "Google: URL of an emulator of the store"},
    {"GCE_METADATA_HOST", "Google: host of the metadata service"},
});

}  // namespace

constinit const known_store google_store{"gs", make_store<google>, google_variables};

}  // namespace millrace
