#include "io/stores/aws_credentials.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <sstream>

#include "engine/base/json_tree.h"
#include "engine/base/words.h"
#include "engine/threads/blocking.h"
#include "io/http/ask.h"
#include "io/http/secret_file.h"
#include "io/stores/xml.h"

namespace millrace {
namespace {

constexpr std::int64_t renewed_before_s = 300;

// Parses an answer of the container or instance endpoint.
result<std::optional<aws_credentials>> parse_credentials(const std::string& text, const url& from) {
  const auto json = json_tree::parse(text).value_or(json_tree());
  const auto value = [&](const char* name) { return std::string(json.text_of(name)); };
  if (value("AccessKeyId").empty()) {
    return error(errc::protocol, "the credentials endpoint gave no credentials")
        .at(to_string(from));
  }
  return std::optional(
      aws_credentials{.keys = {value("AccessKeyId"), value("SecretAccessKey"), value("Token")},
                      .ends = parse_utc(value("Expiration"))});
}

}  // namespace

std::map<std::string, std::map<std::string, std::string>> parse_profiles(const std::string& text) {
  std::map<std::string, std::map<std::string, std::string>> profiles;
  std::istringstream in(text);
  std::string name;
  for (std::string line; std::getline(in, line);) {
    const std::string_view plain_line = trimmed(line);
    if (plain_line.empty() || plain_line[0] == '#' || plain_line[0] == ';') continue;
    if (plain_line[0] == '[') {
      name = trimmed(plain_line.substr(1, plain_line.find(']') - 1));
      if (name.starts_with("profile ")) name = std::string(trimmed(name.substr(8)));
      continue;
    }
    const auto equals = plain_line.find('=');
    if (equals == std::string::npos || line[0] == ' ' || line[0] == '\t') continue;  // nested
    const std::string key = lowered(trimmed(plain_line.substr(0, equals)));
    profiles[name][key] = trimmed(plain_line.substr(equals + 1));
  }
  return profiles;
}

std::optional<std::int64_t> parse_utc(const std::string& text) {
  std::tm utc{};
  const char* end = strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &utc);
  if (end == nullptr) return std::nullopt;
  return timegm(&utc);
}

aws_credential_chain::aws_credential_chain(std::shared_ptr<http_stack> stack)
    : stack_(std::move(stack)) {}

bool aws_credential_chain::forget() {
  const bool fixed = from_environment().has_value();
  current_.reset();
  return !fixed;
}

awaitable<result<aws_keys>> aws_credential_chain::keys(scope& tasks) {
  const std::int64_t now = stack_->time().unix_seconds();
  if (!current_ || (current_->ends && *current_->ends - renewed_before_s <= now)) {
    auto found = co_await searching_([&] { return search(tasks); });
    if (found) {
      current_ = std::move(*found);
    } else if (!current_ || (current_->ends && *current_->ends <= now)) {  // else still valid
      co_return found.error();
    }
  }
  co_return current_->keys;
}

awaitable<result<aws_credentials>> aws_credential_chain::search(scope& tasks) {
  if (auto fixed = from_environment()) co_return *fixed;
  auto found = co_await from_web_identity(tasks);
  if (found && !*found) {
    co_await read_profiles();
    found = from_profile();
  }
  if (found && !*found) found = co_await from_container(tasks);
  if (found && !*found) found = co_await from_instance(tasks);
  if (!found) co_return found.error();
  if (*found) co_return **found;
  co_return error(errc::not_allowed,
                  "no AWS credentials: neither in the environment, nor by web identity, in the "
                  "profile files, or from a container's or an instance's endpoint")
      .hint(
          "set AWS_PROFILE or AWS_ACCESS_KEY_ID, or http_options.s3_unsigned "
          "(MILLRACE_S3_UNSIGNED=on) for public buckets");
}

aws_credential_chain::found aws_credential_chain::from_environment() const {
  const http_options& o = stack_->options();
  if (o.variable("AWS_ACCESS_KEY_ID").empty()) return std::nullopt;
  return aws_credentials{
      .keys = {o.variable("AWS_ACCESS_KEY_ID"), o.variable("AWS_SECRET_ACCESS_KEY"),
               o.variable("AWS_SESSION_TOKEN")},
      .ends = {}};
}

awaitable<void> aws_credential_chain::read_profiles() {
  const http_options& o = stack_->options();
  const auto path = [&](const char* variable, const char* usual) {
    const std::string& set = o.variable(variable);
    return set.empty() ? o.variable("HOME") + usual : set;
  };
  const std::string credentials = path("AWS_SHARED_CREDENTIALS_FILE", "/.aws/credentials");
  const std::string config = path("AWS_CONFIG_FILE", "/.aws/config");
  profiles_ = co_await blocking([&] {
    return std::vector{parse_profiles(optional_secrets(credentials, "the AWS credentials file")),
                       parse_profiles(optional_secrets(config, "the AWS config file"))};
  });
}

std::string aws_credential_chain::profile_value(const std::string& name) const {
  const std::string& named = stack_->options().variable("AWS_PROFILE");
  const std::string profile = named.empty() ? "default" : named;
  for (const auto& profiles : profiles_) {
    const auto found = profiles.find(profile);
    if (found == profiles.end()) continue;
    const auto value = found->second.find(name);
    if (value != found->second.end()) return value->second;
  }
  return {};
}

awaitable<std::string> aws_credential_chain::region() {
  for (const char* name : {"AWS_REGION", "AWS_DEFAULT_REGION"}) {
    if (const std::string& set = stack_->options().variable(name); !set.empty()) co_return set;
  }
  co_await read_profiles();
  const std::string set = profile_value("region");
  co_return set.empty() ? "us-east-1" : set;
}

result<aws_credential_chain::found> aws_credential_chain::from_profile() const {
  const std::string id = profile_value("aws_access_key_id");
  const std::string& named = stack_->options().variable("AWS_PROFILE");
  if (!id.empty()) {
    // Another program may renew the credentials in the files.
    constexpr std::int64_t looked_at_again_s = 600;
    const std::string token = profile_value("aws_session_token");
    std::optional<std::int64_t> ends;
    if (!token.empty()) ends = stack_->time().unix_seconds() + looked_at_again_s;
    return found(
        aws_credentials{.keys = {id, profile_value("aws_secret_access_key"), token}, .ends = ends});
  }
  if (named.empty()) return found();
  return error(errc::not_allowed,
               fmt::format("the AWS profile '{}' has no aws_access_key_id", redacted(named)))
      .hint(
          "roles, SSO and credential_process of profiles are not supported: let `aws configure "
          "export-credentials --format env` set the environment");
}

awaitable<result<aws_credential_chain::found>> aws_credential_chain::from_web_identity(
    scope& tasks) {
  const http_options& o = stack_->options();
  const std::string& file = o.variable("AWS_WEB_IDENTITY_TOKEN_FILE");
  const std::string& role = o.variable("AWS_ROLE_ARN");
  if (file.empty() || role.empty()) co_return found();
  const auto token = co_await secret_in_file(file, "the web identity token");
  if (!token) co_return token.error();
  const std::string& endpoint = o.variable("AWS_ENDPOINT_URL_STS");
  const std::string here = co_await region();
  auto target =
      parse_url(endpoint.empty() ? fmt::format("https://sts.{}.amazonaws.com/", here) : endpoint);
  if (!target) co_return target.error();
  const std::string session = o.variable("AWS_ROLE_SESSION_NAME").empty()
                                  ? "millrace"
                                  : o.variable("AWS_ROLE_SESSION_NAME");
  const std::string body = fmt::format(
      "Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn={}&RoleSessionName={}"
      "&WebIdentityToken={}",
      uri_encoded(role, false), uri_encoded(session, false), uri_encoded(*token, false));
  http_object sts(*target);
  sts.fields = {{"Content-Type", "application/x-www-form-urlencoded"}};
  const auto answer = co_await ask(*stack_, tasks, std::move(sts), "POST", body);
  if (!answer) co_return answer.error();
  const auto tree = parse_store_xml(answer->body, "that of a token service");
  if (!tree) co_return error(tree.error()).at(to_string(*target));
  namespace pt = boost::property_tree;
  try {
    const auto& c = tree->get_child(
        "AssumeRoleWithWebIdentityResponse.AssumeRoleWithWebIdentityResult.Credentials");
    co_return found(aws_credentials{
        .keys = {c.get<std::string>("AccessKeyId"), c.get<std::string>("SecretAccessKey"),
                 c.get<std::string>("SessionToken")},
        .ends = parse_utc(c.get<std::string>("Expiration"))});
  } catch (const pt::ptree_error&) {
    co_return error(errc::protocol, "the web identity endpoint gave no credentials")
        .at(to_string(*target));
  }
}

awaitable<result<aws_credential_chain::found>> aws_credential_chain::from_container(scope& tasks) {
  const http_options& o = stack_->options();
  const std::string& relative = o.variable("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
  const std::string& full = o.variable("AWS_CONTAINER_CREDENTIALS_FULL_URI");
  if (relative.empty() && full.empty()) co_return found();
  if (!relative.empty() && !relative.starts_with('/')) {
    co_return error(errc::bad_setting, "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI is not a path")
        .hint("it begins with '/'; a URL is set by AWS_CONTAINER_CREDENTIALS_FULL_URI");
  }
  auto target = parse_url(relative.empty() ? full : "http://169.254.170.2" + relative);
  if (!target || !is_web(*target)) {
    co_return error(errc::bad_setting,
                    "AWS_CONTAINER_CREDENTIALS_FULL_URI is not an http: or https: URL");
  }
  http_object endpoint(*target);
  std::string token = o.variable("AWS_CONTAINER_AUTHORIZATION_TOKEN");
  if (const auto& file = o.variable("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"); !file.empty()) {
    auto read = co_await secret_in_file(file, "the container's token");
    if (!read) co_return read.error();
    token = *read;
  }
  if (!token.empty()) endpoint.fields = {{"Authorization", token}};
  const auto answer = co_await ask(*stack_, tasks, std::move(endpoint));
  if (!answer) co_return answer.error();
  co_return parse_credentials(answer->body, *target);
}

awaitable<result<aws_credential_chain::found>> aws_credential_chain::from_instance(scope& tasks) {
  const http_options& o = stack_->options();
  if (o.variable("AWS_EC2_METADATA_DISABLED") == "true") co_return found();
  const std::string& set = o.variable("AWS_EC2_METADATA_SERVICE_ENDPOINT");
  const std::string base = set.empty() ? "http://169.254.169.254" : set;
  const auto ask_for = [&](const std::string& path, std::string method,
                           http_fields fields) -> awaitable<result<http_answer>> {
    auto target = parse_url(base + path);
    if (!target)
      return [](error why) -> awaitable<result<http_answer>> { co_return why; }(target.error());
    http_object endpoint(*target);
    endpoint.fields = std::move(fields);
    return ask(*stack_, tasks, std::move(endpoint), std::move(method));
  };
  // On other hosts this address does not answer: give up after a second.
  auto token = co_await until(
      stack_->time(), stack_->time().now() + std::chrono::seconds(1),
      ask_for("/latest/api/token", "PUT", {{"X-aws-ec2-metadata-token-ttl-seconds", "21600"}}),
      error(errc::timed_out, "no instance endpoint"));
  if (!token) co_return found();
  const http_fields with_token{{"X-aws-ec2-metadata-token", token->body}};
  const std::string roles = "/latest/meta-data/iam/security-credentials/";
  const auto role = co_await ask_for(roles, "GET", with_token);
  if (!role) co_return found();
  const std::string name = role->body.substr(0, role->body.find('\n'));
  const auto answer = co_await ask_for(roles + name, "GET", with_token);
  if (!answer) co_return answer.error();
  co_return parse_credentials(answer->body, parse_url(base + roles).value());
}

}  // namespace millrace
