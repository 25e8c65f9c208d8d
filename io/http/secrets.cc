#include "io/http/secrets.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "io/hashes.h"
#include "io/http/client.h"
#include "io/http/netrc.h"
#include "io/http/secret_file.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

http_fields basic(const std::string& user_and_password) {
  return {{"Authorization", "Basic " + base64(user_and_password)}};
}

class fixed_secret final : public request_signer {
 public:
  explicit fixed_secret(http_fields fields) : fields_(std::move(fields)) {}
  awaitable<result<http_fields>> sign(scope& /*tasks*/, const http_request& /*what*/) override {
    co_return fields_;
  }
  bool refused() override { return false; }

 private:
  http_fields fields_;
};

class token_file final : public request_signer {
 public:
  explicit token_file(std::string path) : path_(std::move(path)) {}

  awaitable<result<http_fields>> sign(scope& /*tasks*/, const http_request& /*what*/) override {
    std::error_code failed;
    const auto written = fs::last_write_time(path_, failed);
    if (token_.empty() || failed || written != written_) {
      auto token = read_secret_file(path_, "the token");
      if (!token) co_return token.error();
      token_ = std::move(*token);
      written_ = written;
    }
    co_return http_fields{{"Authorization", "Bearer " + token_}};
  }
  // The file may have been written again within the clock's resolution.
  bool refused() override {
    const std::string before = std::exchange(token_, {});
    const auto now = read_secret_file(path_, "the token");
    return now && *now != before;
  }

 private:
  std::string path_;
  std::string token_;
  fs::file_time_type written_;
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
  std::ifstream in(options.netrc);
  std::ostringstream content;
  if (!(in && content << in.rdbuf())) return nullptr;
  const auto found = netrc_login(content.str(), target.host);
  if (!found) return nullptr;
  return std::make_shared<fixed_secret>(basic(found->user + ":" + found->password));
}

}  // namespace millrace
