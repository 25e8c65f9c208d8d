#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "engine/base/json_tree.h"
#include "engine/base/words.h"
#include "io/http/ask.h"
#include "io/http/secret_file.h"
#include "io/stores/known_stores.h"
#include "io/stores/listing_page.h"
#include "io/stores/sigv4.h"
#include "io/stores/store.h"
#include "io/stores/store_url.h"

namespace millrace {
namespace {

// A file of a repository: hf://datasets/OWNER/NAME[@REVISION]/PATH.
struct repository_file {
  std::string repository;  // "datasets/OWNER/NAME", encoded
  std::string revision;
  std::string path;
};

result<repository_file> parse(const url& where) {
  const auto refused = [&] {
    return error(errc::usage, "not the URL of a file of a dataset")
        .at(to_string(where))
        .hint("write hf://datasets/OWNER/NAME[@REVISION]/PATH");
  };
  if (where.host != "datasets") return refused();
  const std::string key = key_of(where);
  const auto owner = key.find('/');
  const auto name = owner == std::string::npos ? owner : key.find('/', owner + 1);
  if (name == std::string::npos) return refused();
  // There is no user:password@host here; an '@' belongs to the name.
  std::string repository = key.substr(0, name);
  std::string revision = "main";
  if (const auto at = repository.find('@'); at != std::string::npos) {
    revision = repository.substr(at + 1);
    repository.erase(at);
  }
  return repository_file{"datasets/" + uri_encoded(repository, true), revision,
                         key.substr(name + 1)};
}

// The position of `wanted` in `text` outside quotes; the text's size if there is none.
std::size_t find_unquoted(std::string_view text, char wanted) {
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"') quoted = !quoted;
    if (text[i] == wanted && !quoted) return i;
  }
  return text.size();
}

// Takes the text before the next unquoted `separator` off `text`, with the separator.
std::string_view take_until(std::string_view& text, char separator) {
  const auto end = find_unquoted(text, separator);
  const std::string_view taken = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return taken;
}

// Whether the parameters of a link, such as `; rel="prev next"; title=x`, have the relation next.
bool is_of_next(std::string_view parameters) {
  while (!parameters.empty()) {
    std::string_view value = take_until(parameters, ';');
    if (!equal_ignoring_case(trimmed(take_until(value, '=')), "rel")) continue;
    value = trimmed(value);
    if (value.starts_with('"')) value.remove_prefix(1);
    if (value.ends_with('"')) value.remove_suffix(1);
    return std::ranges::any_of(split(value, ' '),
                               [](const auto& r) { return equal_ignoring_case(r, "next"); });
  }
  return false;
}

// The path of the next page of a listing, by the answer's links (RFC 8288, 3); empty if there is
// none. The link's host is not used: it is this server under another name, or a host that must not
// get the token.
result<std::string> next_page(const response_head& head) {
  for (const http_field& field : head.fields) {
    if (!equal_ignoring_case(field.name, "link")) continue;
    for (std::string_view rest = field.value; !rest.empty();) {
      take_until(rest, '<');
      const std::string_view target = rest.substr(0, rest.find('>'));
      rest.remove_prefix(std::min(target.size() + 1, rest.size()));
      if (!is_of_next(take_until(rest, ','))) continue;
      if (target.starts_with('/') && !target.starts_with("//")) return std::string(target);
      const auto next = parse_url(target);
      if (!next || !is_web(*next)) {
        return error(errc::protocol, fmt::format("the listing continues at '{}'", redacted(target)))
            .hint("have the server name a URL or a path that begins with /");
      }
      return next->path;
    }
  }
  return "";
}

// Links of an endpoint that has a path begin with that path.
std::string within(const std::string& path, std::string_view base) {
  if (base.ends_with('/')) base.remove_suffix(1);
  const bool is_below =
      !base.empty() && path.starts_with(base) && path.substr(base.size()).starts_with('/');
  return is_below ? path.substr(base.size()) : path;
}

class hugging_face final : public object_store {
 public:
  explicit hugging_face(std::shared_ptr<http_stack> stack) : stack_(std::move(stack)) {}

  awaitable<void> prepare() override {
    const http_options& o = stack_->options();
    token_ = o.variable("HF_TOKEN");
    if (!token_.empty()) co_return;
    const std::string& home = o.variable("HF_HOME");
    const auto kept = co_await secret_in_file(
        (home.empty() ? o.variable("HOME") + "/.cache/huggingface" : home) + "/token", "the token");
    if (kept) token_ = *kept;
  }

  result<http_object> locate(const url& where) override {
    const auto file = parse(where);
    if (!file) return file.error();
    return at(fmt::format("/{}/resolve/{}/{}", file->repository, uri_encoded(file->revision, false),
                          uri_encoded(file->path, true)));
  }

  awaitable<result<std::vector<listed_object>>> list(scope& tasks, url prefix) override {
    const auto file = parse(prefix);
    if (!file) co_return file.error();
    const std::string folder = file->path.substr(0, file->path.rfind('/') + 1);
    const std::string begin =
        to_string(prefix).substr(0, to_string(prefix).size() - file->path.size());
    std::vector<listed_object> found;
    std::string next = fmt::format(
        "/api/{}/tree/{}/{}?recursive=true", file->repository, uri_encoded(file->revision, false),
        uri_encoded(folder.substr(0, folder.find_last_not_of('/') + 1), true));
    const auto whole = at("");
    if (!whole) co_return whole.error();
    const std::string base = whole->target.path;  // of the endpoint
    listing_progress pages;
    while (!next.empty()) {
      auto page = at(next);
      if (!page) co_return page.error();
      const auto answer = co_await ask(*stack_, tasks, std::move(*page), "GET", {}, listing_bytes);
      if (!answer) co_return answer.error();
      const auto json = json_tree::parse(answer->body).value_or(json_tree());
      const auto* const entries = json.as<json_tree::list>();
      const auto* const numbers = json.as<json_tree::integers>();  // an empty list, too
      if (entries == nullptr && (numbers == nullptr || !numbers->empty())) {
        co_return error(errc::protocol, "the answer is not a listing").at(to_string(prefix));
      }
      std::size_t bytes = 0;
      const std::size_t count = entries == nullptr ? 0 : entries->size();
      for (std::size_t i = 0; i < count; ++i) {
        const auto path = (*entries)[i].text_of("path");
        if ((*entries)[i].text_of("type") == "file" && path.starts_with(file->path)) {
          const json_tree* const told = (*entries)[i].find("size");
          const auto* const size = told == nullptr ? nullptr : told->as<std::int64_t>();
          const bool is_size = size != nullptr && *size >= 0;
          found.push_back({begin + std::string(path),
                           is_size ? std::optional<std::uint64_t>(*size) : std::nullopt});
          bytes += found.back().url.size();
        }
      }
      auto following = next_page(answer->head);
      if (!following) co_return error(following.error()).at(to_string(prefix));
      next = within(*following, base);
      if (const auto more = pages.turn_to(next, count, bytes); !more) {
        co_return error(more.error()).at(to_string(prefix));
      }
    }
    co_return found;
  }

 private:
  result<http_object> at(const std::string& path) {
    const http_options& o = stack_->options();
    const std::string& set = o.variable("HF_ENDPOINT");
    auto target = parse_endpoint(set.empty() ? "https://huggingface.co" : set, "HF_ENDPOINT");
    if (!target) return target.error();
    target->path += path;
    http_object found(std::move(*target));
    if (!token_.empty()) found.fields.push_back({"Authorization", "Bearer " + token_});
    return found;
  }

  std::shared_ptr<http_stack> stack_;
  std::string token_;  // empty: none
};

constexpr auto hugging_face_variables = std::to_array<foreign_variable>({
    {"HF_TOKEN", "Hugging Face: token"},
    {"HF_ENDPOINT", "Hugging Face: URL of the hub"},
    {"HF_HOME", "Hugging Face: folder in which the token is"},
});

}  // namespace

constinit const known_store hugging_face_store{
    "hf", make_store<hugging_face>, hugging_face_variables,
    "a dataset's files are commits: write to s3://, gs:// or az://, or to a folder"};

}  // namespace millrace
