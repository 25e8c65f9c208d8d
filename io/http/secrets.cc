#include "io/http/secrets.h"

#include <fmt/format.h>

#include "engine/files/file_system.h"
#include "engine/files/folders.h"
#include "engine/threads/blocking.h"
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
    const auto found = netrc_login(optional_secrets(file_, "the .netrc"), host_);
    return found ? basic(found->user + ":" + found->password) : http_fields{};
  }

  std::string file_;
  std::string host_;
  std::optional<http_fields> fields_;
};

// Shared by all requests to a host: calls in the pool know nothing of it, and only the I/O thread
// changes it.
class token_file final : public request_signer {
 public:
  explicit token_file(std::string path) : path_(std::move(path)) {}

  awaitable<result<http_fields>> sign(scope& /*tasks*/, const http_request& /*what*/) override {
    const auto read =
        co_await blocking([path = path_, known = known_] { return read_if_changed(path, known); });
    if (!read) co_return read.error();
    known_ = *read;
    co_return http_fields{{"Authorization", "Bearer " + (*read)->token}};
  }
  // The file may have been written again within the clock's resolution.
  awaitable<bool> refused() override {
    const auto before = known_;
    const auto now = co_await secret_in_file(path_, "the token");
    known_.reset();
    co_return now && (!before || *now != before->token);
  }

 private:
  struct content {
    std::string token;
    std::int64_t written_ns = 0;
  };
  using shared_content = std::shared_ptr<const content>;

  static result<shared_content> read_if_changed(const std::string& path,
                                                const shared_content& known) {
    struct stat info{};
    const bool is_there = host_files().stat(path, info) == 0;
    const std::int64_t written_ns = is_there ? modified_ns(info) : 0;
    if (known && is_there && written_ns == known->written_ns) return known;
    auto token = read_secret_file(path, "the token");
    if (!token) return token.error();
    return std::make_shared<const content>(content{std::move(*token), written_ns});
  }

  std::string path_;
  shared_content known_;  // null: not read since it was refused
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
