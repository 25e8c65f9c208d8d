#include <fmt/format.h>

#include <array>
#include <utility>

#include "engine/host/log.h"
#include "io/stores/known_stores.h"
#include "io/stores/listing_page.h"
#include "io/stores/sigv4.h"
#include "io/stores/store.h"
#include "io/stores/store_url.h"

namespace millrace {
namespace {

// AIStore: ais://BUCKET/OBJECT, and ais://BUCKET/OBJECT?archpath=PATH for one file within an
// archive. The gateway answers with a redirect to the target that has the object.
class ais final : public object_store {
 public:
  explicit ais(std::shared_ptr<http_stack> stack) : stack_(std::move(stack)) {}

  result<http_object> locate(const url& where) override {
    const auto [key, file] = split_key(where, option_mark());
    auto found = at(fmt::format("/v1/objects/{}/{}?provider=ais", uri_encoded(where.host, false),
                                uri_encoded(key, true)));
    if (found && !file.empty()) found->target.path += "&archpath=" + uri_encoded(file, true);
    return found;
  }

  // Names one file in an archive.
  std::string_view option_mark() const override { return "?archpath="; }

  awaitable<result<std::vector<listed_object>>> list(scope& tasks, url prefix) override {
    auto where = at("/s3/" + uri_encoded(prefix.host, false));
    if (!where) co_return where.error();
    co_return co_await list_by_s3(stack_, tasks, std::move(*where), std::move(prefix));
  }

 private:
  result<http_object> at(const std::string& path) {
    const http_options& o = stack_->options();
    const std::string& set = o.variable("AIS_ENDPOINT");
    if (set.empty() && !std::exchange(reported_default_, true)) {
      log_notice("AIS_ENDPOINT is not set: ais:// is read from http://localhost:8080");
    }
    auto target = parse_endpoint(set.empty() ? "http://localhost:8080" : set, "AIS_ENDPOINT");
    if (!target) return target.error();
    target->path += path;
    // The gateway and the targets are one cluster: the token goes to all of them.
    http_object found(std::move(*target));
    found.trusted_hosts = "*";
    if (const auto& token = o.variable("AIS_AUTHN_TOKEN"); !token.empty()) {
      found.fields.push_back({"Authorization", "Bearer " + token});
    }
    return found;
  }

  std::shared_ptr<http_stack> stack_;
  bool reported_default_ = false;
};

constexpr auto ais_variables = std::to_array<foreign_variable>({
    {"AIS_ENDPOINT", "AIStore: URL of the cluster"},
    {"AIS_AUTHN_TOKEN", "AIStore: token"},
});

}  // namespace

constinit const known_store ais_store{
    "ais", make_store<ais>, ais_variables,
    "AIStore redirects writes: use the bucket that it serves, by s3:// "
    "or gs://, or a folder"};

}  // namespace millrace
