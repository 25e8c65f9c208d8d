#include "io/http/secrets.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "engine/log.h"
#include "io/hashes.h"
#include "io/http/netrc.h"

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
  // Another may have been written within the clock's resolution.
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

template <class F>
result<void> for_each_part(const std::string& text, char separator, F each) {
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, separator);) {
    if (part.empty()) continue;
    if (auto done = each(part); !done) return done;
  }
  return {};
}

}  // namespace

const std::string& http_options::variable(const std::string& name) const {
  static const std::string none;
  const auto found = environment.find(name);
  return found == environment.end() ? none : found->second;
}

result<std::string> read_secret_file(const std::string& path, std::string_view what) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream content;
  if (!(in && content << in.rdbuf())) {
    error why(errc::not_allowed, fmt::format("cannot read {}", what));
    why.at(shown_file(path)).cause(errno);
    return why.hint("its variable is to have the name of a file, not the secret itself");
  }
  std::string text = content.str();
  const auto first = text.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) {
    return error(errc::not_allowed, fmt::format("the file of {} is empty", what)).at(path);
  }
  return text.substr(first, text.find_last_not_of(" \t\r\n") + 1 - first);
}

std::string shown_file(const std::string& path) {
  std::error_code failed;
  const auto slash = path.rfind('/');
  const auto dot = path.rfind('.');
  constexpr std::size_t long_extension = 8;
  const bool looks_like_one = path.starts_with('/') && dot != path.npos && dot > slash &&
                              path.size() - dot < long_extension;
  const bool has_folder =
      slash != path.npos && slash > 0 && fs::is_directory(path.substr(0, slash), failed);
  return looks_like_one || has_folder || fs::exists(path, failed) ? path : "";
}

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

result<std::map<std::string, std::string>> parse_token_files(const std::string& text) {
  std::map<std::string, std::string> tokens;
  const auto parsed = for_each_part(text, ';', [&](const std::string& part) -> result<void> {
    const auto equals = part.find('=');
    if (equals == 0 || equals == std::string::npos || equals + 1 == part.size()) {
      return error(errc::bad_setting, "MILLRACE_HTTP_TOKENS has a part without host or file")
          .hint("write host=file;host=file");
    }
    tokens[part.substr(0, equals)] = part.substr(equals + 1);
    return {};
  });
  if (!parsed) return parsed.error();
  return tokens;
}

result<http_fields> parse_fields(const std::string& text) {
  http_fields fields;
  const auto parsed = for_each_part(text, '|', [&](const std::string& part) -> result<void> {
    const auto colon = part.find(':');
    if (colon == 0 || colon == std::string::npos) {
      return error(errc::bad_setting, "MILLRACE_HTTP_HEADERS has a part without a name")
          .hint("write 'Name: value|Name: value'");
    }
    const auto value = part.find_first_not_of(' ', colon + 1);
    fields.push_back({part.substr(0, colon), value == std::string::npos ? "" : part.substr(value)});
    return {};
  });
  if (!parsed) return parsed.error();
  return fields;
}

}  // namespace millrace
