#include "io/http/secrets.h"

#include <fmt/format.h>

#include "engine/blocking.h"
#include "engine/file_system.h"
#include "engine/folders.h"
#include "io/hashes.h"
#include "io/http/client.h"
#include "io/http/netrc.h"
#include "io/http/secret_file.h"

namespace millrace {
namespace {

http_fields basic(const std::string& user_and_password) {
  return {{"Authorization", "Basic " + base64(user_and_password)}};
}

class fixed_secret final : public request_signer {
 public:
  explicit fixed_secret(http_fields fields) : fields_(std::move(fields)) {}
  awaitable<result<http_fields>> sign(scope& /*tasks*/, const http_request& /*what*/) override {
    co_return fields_;
  }
  awaitable<bool> refused() override { co_return false; }

 private:
  http_fields fields_;
};

// What the .netrc has for the host, read once; without a login, requests are made without.
class netrc_secret final : public request_signer {
 public:
  netrc_secret(std::string file, std::string host)
      : file_(std::move(file)), host_(std::move(host)) {}
  awaitable<result<http_fields>> sign(scope& /*tasks*/, const http_request& /*what*/) override {
    if (!fields_) fields_ = co_await blocking([this] { return login(); });
    co_return *fields_;
  }
  awaitable<bool> refused() override { co_return false; }

 private:
  http_fields login() const {
    const auto content = read_whole_file(file_);
    const auto found = content ? netrc_login(*content, host_) : std::nullopt;
    return found ? basic(found->user + ":" + found->password) : http_fields{};
  }

  std::string file_;
  std::string host_;
  std::optional<http_fields> fields_;
};

class token_file final : public request_signer {
 public:
  explicit token_file(std::string path) : path_(std::move(path)) {}

  awaitable<result<http_fields>> sign(scope& /*tasks*/, const http_request& /*what*/) override {
    const auto read = co_await blocking([this] { return read_if_changed(); });
    if (!read) co_return read.error();
    co_return http_fields{{"Authorization", "Bearer " + token_}};
  }
  // The file may have been written again within the clock's resolution.
  awaitable<bool> refused() override {
    const std::string before = std::exchange(token_, {});
    const auto now = co_await secret_in_file(path_, "the token");
    co_return now && *now != before;
  }

 private:
  result<void> read_if_changed() {
    struct stat info{};
    const bool is_there = host_files().stat(path_, info) == 0;
    const std::int64_t written_ns = is_there ? modified_ns(info) : 0;
    if (!token_.empty() && is_there && written_ns == written_ns_) return {};
    auto token = read_secret_file(path_, "the token");
    if (!token) return token.error();
    token_ = std::move(*token);
    written_ns_ = written_ns;
    return {};
  }

  std::string path_;
  std::string token_;
  std::int64_t written_ns_ = 0;
};

}  // namespace

std::shared_ptr<request_signer> web_secrets(const url& target, const http_options& options) {
  if (!target.userinfo.empty()) {
    return std::make_shared<fixed_secret>(basic(percent_decoded(target.userinfo)));
  }
  if (const auto token = options.tokens.find(target.host); token != options.tokens.end()) {
    return std::make_shared<token_file>(token->second);
  }
  if (options.netrc.empty()) return nullptr;
  return std::make_shared<netrc_secret>(options.netrc, target.host);
}

}  // namespace millrace
