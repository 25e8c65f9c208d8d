#include "io/files/memory_source.h"

#include <algorithm>

namespace millrace {
namespace {

class memory_source final : public byte_source {
 public:
  memory_source(std::shared_ptr<const memory_store> store, const std::string& content,
                byte_range range, source_counters& counters)
      : store_(std::move(store)),
        rest_(
            bytes::unowned(std::string_view(content).substr(0, range.end.value_or(content.size())))
                .slice(range.begin)),
        counters_(counters) {}

  awaitable<result<bytes>> read() override {
    bytes piece = rest_.slice(0, std::min(store_->piece_bytes(), rest_.size()));
    rest_ = rest_.slice(piece.size());
    counters_.bytes += piece.size();
    co_return piece;
  }

 private:
  std::shared_ptr<const memory_store> store_;  // owns the bytes
  bytes rest_;
  source_counters& counters_;
};

awaitable<result<std::unique_ptr<byte_source>>> open_memory(
    std::shared_ptr<const memory_store> store, source_context context, std::string text, url where,
    byte_range range) {
  ++context.counters.requests;
  const std::string* content = store->find(where.path);
  if (content == nullptr) {
    co_return error(errc::not_found, "no such object in memory").at(text).skippable();
  }
  if (range.begin > content->size()) {
    co_return error(errc::changed, "the object is shorter")
        .at(text)
        .offset(range.begin)
        .skippable();
  }
  co_return std::make_unique<memory_source>(std::move(store), *content, range, context.counters);
}

}  // namespace

const std::string* memory_store::find(const std::string& name) const {
  const auto it = objects_.find(name);
  return it == objects_.end() ? nullptr : &it->second;
}

source_factory memory_source_factory(std::shared_ptr<const memory_store> store) {
  return [store = std::move(store)](source_context context, std::string text, url where,
                                    byte_range range) {
    return open_memory(store, std::move(context), std::move(text), std::move(where), range);
  };
}

}  // namespace millrace
