#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "io/http/secrets.h"
#include "io/stores/sigv4.h"
#include "io/stores/store.h"

namespace millrace {
namespace {

// A file of a repository: hf://datasets/OWNER/NAME[@REVISION]/PATH.
struct repository_file {
  std::string repository;  // "datasets/OWNER/NAME"
  std::string revision;
  std::string path;
};

result<repository_file> parse(const url& where) {
  const auto refused = [&] {
    return error(errc::usage, "this is not the URL of a file of a dataset")
        .at(to_string(where))
        .hint("write hf://datasets/OWNER/NAME[@REVISION]/PATH");
  };
  if (where.host != "datasets") return refused();
  const std::string key = key_of(where);
  const auto owner = key.find('/');
  const auto name = owner == std::string::npos ? owner : key.find('/', owner + 1);
  if (name == std::string::npos) return refused();
  // Of user:password@host there is none here; an '@' belongs to the name.
  std::string repository = key.substr(0, name);
  std::string revision = "main";
  if (const auto at = repository.find('@'); at != std::string::npos) {
    revision = repository.substr(at + 1);
    repository.erase(at);
  }
  return repository_file{"datasets/" + repository, revision, key.substr(name + 1)};
}

class hugging_face final : public object_store {
 public:
  explicit hugging_face(std::shared_ptr<http_stack> stack) : stack_(std::move(stack)) {}

  result<http_object> locate(const url& where) override {
    const auto file = parse(where);
    if (!file) return file.error();
    return at(fmt::format("/{}/resolve/{}/{}", file->repository, uri_encoded(file->revision, false),
                          uri_encoded(file->path, true)));
  }

  awaitable<result<std::vector<std::string>>> list(scope& tasks, url prefix) override {
    const auto file = parse(prefix);
    if (!file) co_return file.error();
    const std::string folder = file->path.substr(0, file->path.rfind('/') + 1);
    const std::string begin =
        to_string(prefix).substr(0, to_string(prefix).size() - file->path.size());
    std::vector<std::string> urls;
    std::string next = fmt::format(
        "/api/{}/tree/{}/{}?recursive=true", file->repository, uri_encoded(file->revision, false),
        uri_encoded(folder.substr(0, folder.find_last_not_of('/') + 1), true));
    while (!next.empty()) {
      auto page = at(next);
      if (!page) co_return page.error();
      const auto answer = co_await ask(*stack_, tasks, std::move(*page));
      if (!answer) co_return answer.error();
      const auto json = nlohmann::json::parse(answer->body, nullptr, false);
      if (!json.is_array()) {
        co_return error(errc::protocol, "the answer is not a listing").at(to_string(prefix));
      }
      for (const auto& entry : json) {
        const std::string path = entry.value("path", "");
        if (entry.value("type", "") == "file" && path.starts_with(file->path)) {
          urls.push_back(begin + path);
        }
      }
      next = next_page(answer->head);
    }
    std::ranges::sort(urls);
    co_return urls;
  }

 private:
  // Link: <https://host/api/...?cursor=...>; rel="next"
  static std::string next_page(const response_head& head) {
    const std::string link = head.field("link").value_or("");
    const auto open = link.find('<');
    const auto close = link.find('>');
    if (open == std::string::npos || close == std::string::npos ||
        link.find("rel=\"next\"", close) == std::string::npos) {
      return {};
    }
    const auto target = parse_url(link.substr(open + 1, close - open - 1));
    return target ? target->path : "";
  }

  result<http_object> at(const std::string& path) {
    const http_options& o = stack_->options();
    const std::string& set = o.variable("HF_ENDPOINT");
    auto target = parse_endpoint(set.empty() ? "https://huggingface.co" : set, "HF_ENDPOINT");
    if (!target) return target.error();
    target->path += path;
    http_object found(std::move(*target));
    std::string token = o.variable("HF_TOKEN");
    if (token.empty()) {
      const std::string& home = o.variable("HF_HOME");
      const auto kept = read_secret_file(
          (home.empty() ? o.variable("HOME") + "/.cache/huggingface" : home) + "/token",
          "the token");
      if (kept) token = *kept;
    }
    if (!token.empty()) found.fields.push_back({"Authorization", "Bearer " + token});
    return found;
  }

  std::shared_ptr<http_stack> stack_;
};

}  // namespace

std::shared_ptr<object_store> hugging_face_store(std::shared_ptr<http_stack> stack) {
  return std::make_shared<hugging_face>(std::move(stack));
}

}  // namespace millrace
