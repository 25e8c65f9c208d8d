#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <map>

#include "engine/base/words.h"
#include "io/hashes.h"
#include "io/http/ask.h"
#include "io/http/client.h"
#include "io/stores/known_stores.h"
#include "io/stores/listing_page.h"
#include "io/stores/sigv4.h"
#include "io/stores/store.h"
#include "io/stores/store_url.h"
#include "io/stores/upload.h"

namespace millrace {
namespace {

constexpr const char* api_version = "2021-08-06";

// "Sat, 21 Nov 2026 09:30:00 GMT"
std::string http_date(std::int64_t unix_seconds) {
  const std::time_t seconds = unix_seconds;
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  std::array<char, 64> text{};
  std::strftime(text.data(), text.size(), "%a, %d %b %Y %H:%M:%S GMT", &utc);
  return text.data();
}

std::string value_of(const http_fields& fields, std::string_view name) {
  return find_field(fields, name).value_or("");
}

constexpr std::array standard_fields = {"content-encoding",
                                        "content-language",
                                        "content-length",
                                        "content-md5",
                                        "content-type",
                                        "date",
                                        "if-modified-since",
                                        "if-match",
                                        "if-none-match",
                                        "if-unmodified-since",
                                        "range"};

// As it is signed: nothing for an empty body.
std::string length_of(const std::string& body) {
  return body.empty() ? "" : std::to_string(body.size());
}

std::string ms_lines(const http_fields& of_request, const http_fields& added) {
  std::map<std::string, std::string> by_name;
  for (const http_fields* fields : {&of_request, &added}) {
    for (const http_field& f : *fields) {
      const std::string name = lowered(f.name);
      if (name.starts_with("x-ms-")) by_name[name] = f.value;
    }
  }
  std::string lines;
  for (const auto& [name, value] : by_name) {
    lines.append(name).append(":").append(value).append("\n");
  }
  return lines;
}

// Shared Key of the Blob service. Source: "Authorize with Shared Key", Azure Storage REST API.
class shared_key_signer final : public request_signer {
 public:
  shared_key_signer(std::string account, std::string key, time_source& time)
      : account_(std::move(account)), key_(std::move(key)), time_(time) {}

  awaitable<result<http_fields>> sign(scope& /*tasks*/, const http_request& what) override {
    http_fields added{{"x-ms-date", http_date(time_.unix_seconds())},
                      {"x-ms-version", api_version}};
    // The method, eleven standard fields, the x-ms- fields by name, and the resource.
    std::string text = what.method + "\n";
    for (const char* name : standard_fields) {
      const bool is_length = std::string_view(name) == "content-length";
      text += is_length ? length_of(what.body) : value_of(what.fields, name);
      text += "\n";
    }
    text += ms_lines(what.fields, added) + resource(what.target);
    const std::string signature = base64(hmac_sha256(key_, text));
    added.push_back({"Authorization", fmt::format("SharedKey {}:{}", account_, signature)});
    co_return added;
  }
  awaitable<bool> refused() override { co_return false; }

 private:
  std::string resource(const url& target) const {
    const auto question = target.path.find('?');
    std::string text = "/" + account_ + target.path.substr(0, question);
    if (question == std::string::npos) return text;
    std::map<std::string, std::string> parameters;
    for (const std::string& one : split(std::string_view(target.path).substr(question + 1), '&')) {
      const auto equals = std::min(one.find('='), one.size());
      parameters[percent_decoded(one.substr(0, equals))] =
          percent_decoded(one.substr(std::min(equals + 1, one.size())));
    }
    for (const auto& [name, value] : parameters)
      text.append("\n").append(name).append(":").append(value);
    return text;
  }

  std::string account_;
  std::string key_;  // raw
  time_source& time_;
};

bool is_account_name(std::string_view text) {
  return std::ranges::all_of(
      text, [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-'; });
}

// Source: "Put Blob", "Put Block" and "Put Block List", Azure Storage REST API. Blocks that belong
// to no list are deleted after a week.
class azure_uploads final : public upload_protocol {
 public:
  explicit azure_uploads(std::function<result<http_object>(const url&)> target)
      : target_(std::move(target)) {}

  result<http_object> target(const url& where) override {
    if (key_of(where).empty()) {
      return error(errc::usage, "this names a container, not a blob").at(to_string(where));
    }
    return target_(where);
  }
  http_fields fields_of_whole() const override { return {{"x-ms-blob-type", "BlockBlob"}}; }
  http_fields fields_of_absent() const override { return {{"If-None-Match", "*"}}; }
  std::optional<http_change> begin(const http_object& /*object*/) const override {
    return std::nullopt;
  }
  result<std::string> id_in(const std::string& /*answer*/) const override { return std::string(); }
  http_change part(const http_object& object, const std::string& id, int number) const override {
    const std::string block = block_of(id, static_cast<std::size_t>(number));
    return put(object, "comp=block&blockid=" + uri_encoded(block, false));
  }
  std::string list_of(const std::string& id, const std::vector<std::string>& etags) const override {
    std::string list = "<?xml version=\"1.0\" encoding=\"utf-8\"?><BlockList>";
    for (std::size_t n = 1; n <= etags.size(); ++n) {
      list += fmt::format("<Latest>{}</Latest>", block_of(id, n));
    }
    return list + "</BlockList>";
  }
  http_change complete(const http_object& object, const std::string& /*id*/) const override {
    return put(object, "comp=blocklist");
  }
  std::optional<http_change> abort(const http_object& /*object*/,
                                   const std::string& /*id*/) const override {
    return std::nullopt;
  }

 private:
  // All of one length, as the service demands. Blocks that are not listed yet belong to the blob:
  // two uploads must not have blocks of one name.
  static std::string block_of(const std::string& id, std::size_t number) {
    return base64(fmt::format("{}{:06}", id, number));
  }
  static http_change put(http_object object, const std::string& query) {
    object.target.path += object.target.path.find('?') == std::string::npos ? "?" : "&";
    object.target.path += query;
    return {.object = std::move(object), .method = "PUT", .body = {}, .fields = {}};
  }

  std::function<result<http_object>(const url&)> target_;
};

// az://CONTAINER/BLOB in the account that the environment names. Authenticates with a shared access
// signature or a key, or not at all, for public containers.
class azure final : public object_store {
 public:
  explicit azure(std::shared_ptr<http_stack> stack) : stack_(std::move(stack)) {
    const http_options& o = stack_->options();
    account_ = o.variable("AZURE_STORAGE_ACCOUNT");
    key_ = o.variable("AZURE_STORAGE_KEY");
    signature_ = o.variable("AZURE_STORAGE_SAS_TOKEN");
    endpoint_ = o.variable("AZURE_STORAGE_BLOB_ENDPOINT");
    read_connection_string(o.variable("AZURE_STORAGE_CONNECTION_STRING"));
    if (signature_.starts_with('?')) signature_.erase(0, 1);
  }

  upload_protocol* uploads() override { return &uploads_; }

  result<http_object> locate(const url& where) override {
    auto found = container(where);
    if (!found) return found;
    found->target.path += "/" + uri_encoded(key_of(where), true);
    add_signature(found->target);
    return found;
  }

  awaitable<result<std::vector<listed_object>>> list(scope& tasks, url prefix) override {
    std::vector<listed_object> found;
    std::string next;
    listing_progress pages;
    do {
      auto where = container(prefix);
      if (!where) co_return where.error();
      where->target.path +=
          "?restype=container&comp=list&prefix=" + uri_encoded(key_of(prefix), false);
      if (!next.empty()) where->target.path += "&marker=" + uri_encoded(next, false);
      add_signature(where->target);
      const auto answer = co_await ask(*stack_, tasks, std::move(*where), "GET", {}, listing_bytes);
      if (!answer) co_return answer.error();
      auto page = parse_azure_listing(answer->body);
      if (!page) co_return error(page.error()).at(to_string(prefix));
      const std::size_t bytes = add_objects("az://" + prefix.host + "/", *page, found);
      next = std::move(page->next);
      if (const auto more = pages.turn_to(next, page->keys.size(), bytes); !more) {
        co_return error(more.error()).at(to_string(prefix));
      }
    } while (!next.empty());
    co_return found;
  }

 private:
  // Parses "AccountName=...;AccountKey=...;BlobEndpoint=...", for values that are not set
  // otherwise.
  void read_connection_string(const std::string& text) {
    const auto parts = split(text, ';');
    const auto take = [&](std::string_view name, std::string& into) {
      const std::string begin = std::string(name) + "=";
      const auto part = std::ranges::find_if(
          parts, [&](const std::string& one) { return one.starts_with(begin); });
      if (part != parts.end() && into.empty()) into = part->substr(begin.size());
    };
    take("AccountName", account_);
    take("AccountKey", key_);
    take("SharedAccessSignature", signature_);
    take("BlobEndpoint", endpoint_);
  }

  void add_signature(url& target) const {
    if (signature_.empty()) return;
    target.path += (target.path.find('?') == std::string::npos ? "?" : "&") + signature_;
  }

  result<http_object> container(const url& where) {
    if (account_.empty()) {
      return error(errc::usage, "no Azure account is set")
          .at(to_string(where))
          .hint("set AZURE_STORAGE_ACCOUNT or AZURE_STORAGE_CONNECTION_STRING");
    }
    // Not quoted: it may be a URL that contains a signature.
    if (endpoint_.empty() && !is_account_name(account_)) {
      return error(errc::bad_setting, "AZURE_STORAGE_ACCOUNT is not the name of an account")
          .hint(
              "it has lower-case letters and digits; a URL is set by AZURE_STORAGE_BLOB_ENDPOINT");
    }
    auto target = parse_endpoint(
        endpoint_.empty() ? fmt::format("https://{}.blob.core.windows.net", account_) : endpoint_,
        "AZURE_STORAGE_BLOB_ENDPOINT");
    if (!target) return target.error();
    target->path += "/" + uri_encoded(where.host, false);
    http_object found(std::move(*target));
    found.fields = {{"x-ms-version", api_version}};
    if (!key_.empty() && signature_.empty()) {
      const auto raw = base64_decoded(key_);
      if (!raw) return error(errc::usage, "AZURE_STORAGE_KEY is not in base64");
      found.secrets = std::make_shared<shared_key_signer>(account_, *raw, stack_->time());
      found.fields.clear();  // the signer adds it
    }
    return found;
  }

  std::shared_ptr<http_stack> stack_;
  std::string account_;
  std::string key_;
  std::string signature_;
  std::string endpoint_;
  azure_uploads uploads_{[this](const url& where) { return locate(where); }};
};

constexpr auto azure_variables = std::to_array<foreign_variable>({
    {"AZURE_STORAGE_ACCOUNT", "Azure: account"},
    {"AZURE_STORAGE_KEY", "Azure: shared key"},
    {"AZURE_STORAGE_SAS_TOKEN", "Azure: shared access signature"},
    {"AZURE_STORAGE_CONNECTION_STRING", "Azure: account, key and endpoint in one"},
    {"AZURE_STORAGE_BLOB_ENDPOINT", "Azure: URL of the store"},
});

}  // namespace

constinit const known_store azure_store{"az", make_store<azure>, azure_variables};

}  // namespace millrace
