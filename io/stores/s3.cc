#include <fmt/format.h>

#include <array>

#include "io/http/client.h"
#include "io/stores/aws_credentials.h"
#include "io/stores/known_stores.h"
#include "io/stores/listing_page.h"
#include "io/stores/store.h"
#include "io/stores/store_url.h"
#include "io/stores/upload.h"

namespace millrace {
namespace {

class s3_signer final : public request_signer {
 public:
  explicit s3_signer(std::shared_ptr<http_stack> stack) : stack_(stack), chain_(std::move(stack)) {}

  awaitable<result<http_fields>> sign(scope& tasks, const http_request& what) override {
    co_await find_region();
    const auto keys = co_await chain_.keys(tasks);
    if (!keys) co_return keys.error();
    co_return sigv4_fields(
        what, *keys,
        {.region = region(), .service = "s3", .unix_seconds = stack_->time().unix_seconds()});
  }
  awaitable<bool> refused() override { co_return chain_.forget(); }
  awaitable<void> find_region() {
    if (region_.empty()) region_ = co_await chain_.region();
  }
  const std::string& region() const { return region_; }  // once it is found

 private:
  std::shared_ptr<http_stack> stack_;
  aws_credential_chain chain_;
  std::string region_;
};

class s3 final : public object_store {
 public:
  explicit s3(std::shared_ptr<http_stack> stack)
      : stack_(std::move(stack)), signer_(std::make_shared<s3_signer>(stack_)) {
    uploads_ = s3_upload_protocol({{"If-None-Match", "*"}}, [this](const url& where) {
      auto found = bucket(where);
      if (found) found->target.path += uri_encoded(key_of(where), true);
      return found;
    });
  }

  awaitable<void> prepare() override { co_await signer_->find_region(); }

  result<http_object> locate(const url& where) override {
    auto found = bucket(where);
    if (!found) return found;
    const auto [key, version] = split_key(where, option_mark());
    found->target.path += uri_encoded(key, true);
    if (!version.empty()) found->target.path += "?versionId=" + uri_encoded(version, false);
    found->fields.push_back({"x-amz-checksum-mode", "ENABLED"});
    return found;
  }

  // Selects one version of the object.
  std::string_view option_mark() const override { return "?versionId="; }

  upload_protocol* uploads() override { return uploads_.get(); }

  awaitable<result<std::vector<listed_object>>> list(scope& tasks, url prefix) override {
    auto where = bucket(prefix);
    if (!where) co_return where.error();
    co_return co_await list_by_s3(stack_, tasks, std::move(*where), std::move(prefix));
  }

 private:
  // The bucket's URL, with a '/' at its end.
  result<http_object> bucket(const url& where) {
    const http_options& o = stack_->options();
    std::string endpoint = o.variable("AWS_ENDPOINT_URL_S3");
    if (endpoint.empty()) endpoint = o.variable("AWS_ENDPOINT_URL");
    const bool is_aws = endpoint.empty();
    if (is_aws) endpoint = fmt::format("https://s3.{}.amazonaws.com", signer_->region());
    auto target = parse_endpoint(endpoint, "AWS_ENDPOINT_URL");
    if (!target) return target.error();
    // A certificate for *.s3... does not cover a bucket with dots in its name.
    const bool in_path =
        o.s3_path_style.value_or(!is_aws || where.host.find('.') != std::string::npos);
    if (in_path) {
      target->path += "/" + uri_encoded(where.host, false) + "/";
    } else {
      target->host = where.host + "." + target->host;
      target->path += "/";
    }
    http_object found(std::move(*target));
    if (!o.s3_unsigned) found.secrets = signer_;
    if (is_aws) found.trusted_hosts = ".amazonaws.com";
    if (o.s3_requester_pays) found.fields.push_back({"x-amz-request-payer", "requester"});
    return found;
  }

  std::shared_ptr<http_stack> stack_;
  std::shared_ptr<s3_signer> signer_;
  std::unique_ptr<upload_protocol> uploads_;  // refers to this
};

constexpr auto s3_variables = std::to_array<foreign_variable>({
    {"AWS_ACCESS_KEY_ID", "S3: identity of the key"},
    {"AWS_SECRET_ACCESS_KEY", "S3: the secret key"},
    {"AWS_SESSION_TOKEN", "S3: token of temporary credentials"},
    {"AWS_PROFILE", "S3: section of the files of credentials and configuration"},
    {"AWS_REGION", "S3: region"},
    {"AWS_DEFAULT_REGION", "S3: region, where AWS_REGION is not set"},
    {"AWS_SHARED_CREDENTIALS_FILE", "S3: file of credentials, in place of ~/.aws/credentials"},
    {"AWS_CONFIG_FILE", "S3: file of configuration, in place of ~/.aws/config"},
    {"AWS_ENDPOINT_URL", "S3: URL of the store, for all services"},
    {"AWS_ENDPOINT_URL_S3", "S3: URL of the store"},
    {"AWS_ENDPOINT_URL_STS", "S3: URL of the service that gives temporary credentials"},
    {"AWS_ROLE_ARN", "S3: role to take on with a web identity"},
    {"AWS_ROLE_SESSION_NAME", "S3: name of that role's session"},
    {"AWS_WEB_IDENTITY_TOKEN_FILE", "S3: file with the token of a web identity"},
    {"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "S3: where a container gets credentials (ECS)"},
    {"AWS_CONTAINER_CREDENTIALS_FULL_URI", "S3: where a container gets credentials (EKS)"},
    {"AWS_CONTAINER_AUTHORIZATION_TOKEN", "S3: token to show there"},
    {"AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "S3: file with the token to show there"},
    {"AWS_EC2_METADATA_DISABLED", "S3: \"true\": do not ask the metadata service for credentials"},
    {"AWS_EC2_METADATA_SERVICE_ENDPOINT", "S3: URL of the metadata service"},
});

}  // namespace

constinit const known_store s3_store{"s3", make_store<s3>, s3_variables};

}  // namespace millrace
