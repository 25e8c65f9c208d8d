#include "pipeline/compacted.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace millrace {
namespace {

void append_parts(std::vector<bytes*>& to, value& v) {
  if (auto* raw = std::get_if<bytes>(&v)) to.push_back(raw);
  if (auto* one = std::get_if<tensor>(&v)) to.push_back(&one->data);
  if (auto* all = std::get_if<tensors>(&v)) {
    for (auto& [name, one] : *all) to.push_back(&one.data);
  }
}

}  // namespace

std::vector<bytes*> parts_of(sample& s) {
  std::vector<bytes*> out;
  out.reserve(s.fields.size());
  for (field& f : s.fields) out.push_back(&f.data);
  return out;
}

std::vector<bytes*> parts_of(record& r) {
  std::vector<bytes*> out;
  for (auto& [name, v] : r.fields) append_parts(out, v);
  return out;
}

std::vector<bytes*> parts_of(tuple_of_values& t) {
  std::vector<bytes*> out;
  for (value& v : t.values) append_parts(out, v);
  return out;
}

awaitable<result<void>> detail::move_parts(std::shared_ptr<memory_share> memory,
                                           std::vector<bytes*> parts) {
  std::erase_if(parts, [&](const bytes* part) { return part->are_of(*memory); });
  if (parts.empty()) co_return result<void>();
  std::size_t size = 0;
  for (const bytes* part : parts) size += part->size();
  if (charge_of(size) > memory->limit()) {
    co_return error(errc::too_large,
                    fmt::format("a sample of {}, and the budget leaves {} for '{}'",
                                format_bytes(size), format_bytes(memory->limit()), memory->name()))
        .hint("raise engine_options.memory_bytes (MILLRACE_MEMORY)")
        .skippable();
  }
  auto whole = co_await memory->acquire(std::max<std::size_t>(size, 1));
  if (!whole) co_return whole.error();
  std::size_t at = 0;
  for (const bytes* part : parts) {
    if (!part->empty()) std::memcpy(whole->data() + at, part->data(), part->size());
    at += part->size();
  }
  const bytes copy = std::move(*whole).freeze(size);
  at = 0;
  for (bytes* part : parts) {
    *part = copy.slice(at, part->size());
    at += part->size();
  }
  co_return result<void>();
}

}  // namespace millrace
