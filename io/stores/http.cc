#include "io/stores/http.h"

#include "io/http/ask.h"
#include "io/http/header_values.h"
#include "io/http/object_source.h"
#include "io/http/opened_again.h"

namespace millrace {
namespace {

// Whether an error of a HEAD says nothing about a GET: the URL may be signed for GET, or the server
// may support only GET.
bool may_be_of_head_alone(errc why) {
  return why == errc::not_allowed || why == errc::http_status || why == errc::not_found;
}

// The object's version by HEAD or, if the server does not answer that, by a GET of the first byte.
awaitable<result<object_version>> probe(std::shared_ptr<http_stack> stack, scope* tasks,
                                        http_object object) {
  auto answer = co_await ask(*stack, *tasks, object, "HEAD");
  object_version version;
  if (!answer && may_be_of_head_alone(answer.error().kind())) {
    object.fields.push_back({"Range", "bytes=0-0"});
    // A server that ignores the range starts to send the whole object.
    answer = co_await ask(*stack, *tasks, object, "GET", {}, 0);
    if (!answer) co_return answer.error();
    version.total = answer->head.status == 206   ? total_in(answer->head)
                    : answer->head.status == 416 ? length_told(answer->head)
                                                 : answer->head.content_length;
  } else {
    if (!answer) co_return answer.error();
    version.total = answer->head.content_length;
  }
  version.etag = answer->head.field("etag");
  version.last_modified = answer->head.field("last-modified");
  version.digest = digest_in(answer->head);
  co_return version;
}

awaitable<result<std::unique_ptr<byte_source>>> open_origin(std::shared_ptr<http_stack> stack,
                                                            http_object object,
                                                            source_context context,
                                                            byte_range range,
                                                            object_version known) {
  co_return http_object_source(std::move(context), std::move(stack), std::move(object), range,
                               std::move(known));
}

awaitable<result<std::unique_ptr<byte_source>>> open_http(std::shared_ptr<http_stack> stack,
                                                          std::shared_ptr<object_cache> cache,
                                                          source_context context, std::string text,
                                                          url where, byte_range range) {
  http_object object(where);
  object.secrets = stack->secrets_for(where);
  object.fields = stack->options().fields;
  co_return cached_http_source(std::move(context), std::move(stack), cache, std::move(object),
                               std::move(text), range);
}

}  // namespace

std::unique_ptr<byte_source> cached_http_source(source_context context,
                                                std::shared_ptr<http_stack> stack,
                                                const std::shared_ptr<object_cache>& cache,
                                                http_object object, std::string url,
                                                byte_range range) {
  const bool is_empty = range.end && *range.end <= range.begin;
  if (is_empty || !cache->usable()) {
    return http_object_source(std::move(context), std::move(stack), std::move(object), range);
  }
  cache_origin from{
      .url = std::move(url),
      .probe = [stack, object, tasks = &context.tasks] { return probe(stack, tasks, object); },
      .open =
          [stack, object](source_context c, byte_range r, object_version known) {
            return open_origin(stack, object, std::move(c), r, std::move(known));
          }};
  return cache->open(std::move(context), std::move(from), range);
}

source_factory http_source_factory(std::shared_ptr<http_stack> stack,
                                   std::shared_ptr<object_cache> cache) {
  return [stack = std::move(stack), cache = std::move(cache)](
             source_context context, std::string text, url where, byte_range range) {
    return open_http(stack, cache, std::move(context), std::move(text), std::move(where), range);
  };
}

}  // namespace millrace
