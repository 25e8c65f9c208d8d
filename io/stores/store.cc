#include "io/stores/store.h"

#include "io/stores/http.h"
#include "io/stores/known_stores.h"

namespace millrace {
namespace {

awaitable<result<std::unique_ptr<byte_source>>> open_stored(std::shared_ptr<http_stack> stack,
                                                            std::shared_ptr<object_store> store,
                                                            std::shared_ptr<object_cache> cache,
                                                            source_context context,
                                                            std::string text, url where,
                                                            byte_range range) {
  co_await store->prepare();
  auto object = store->locate(where);
  if (!object) co_return error(object.error()).skippable(false);
  object->name = text;
  co_return cached_http_source(std::move(context), std::move(stack), cache, std::move(*object),
                               std::move(text), range);
}

}  // namespace

store_table object_stores(const std::shared_ptr<http_stack>& stack) {
  store_table stores;
  for (const known_store* store : known_stores) {
    stores.emplace(store->scheme, store->make(stack));
  }
  return stores;
}

source_factory store_source_factory(std::shared_ptr<http_stack> stack,
                                    std::shared_ptr<object_store> store,
                                    std::shared_ptr<object_cache> cache) {
  return [stack = std::move(stack), store = std::move(store), cache = std::move(cache)](
             source_context context, std::string text, url where, byte_range range) {
    return open_stored(stack, store, cache, std::move(context), std::move(text), std::move(where),
                       range);
  };
}

}  // namespace millrace
