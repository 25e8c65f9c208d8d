#include "pipeline/plan/compacted.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "engine/base/units.h"

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

std::size_t held_of(const memory_share& memory, const sample& s) {
  std::size_t held = 0;
  for (auto f = s.fields.begin(); f != s.fields.end(); ++f) {
    const block* const of = f->data.owner();
    const auto is_same = [&](const field& before) { return before.data.owner() == of; };
    const auto before = std::make_reverse_iterator(f);  // backwards: mostly the field before has it
    const bool is_counted = std::find_if(before, s.fields.rend(), is_same) != s.fields.rend();
    if (f->data.are_of(memory) && !is_counted) held += charge_of(of->size);
  }
  return held;
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

error detail::collecting::too_large(std::size_t sample) const {
  return error(errc::too_large, fmt::format("a sample of {}, but {}", format_bytes(sample), text()))
      .hint("raise engine_options.memory_bytes (MILLRACE_MEMORY)")
      .skippable();
}

error detail::collecting::too_much(std::size_t samples) const {
  return error(errc::no_memory, fmt::format("{} collects {} of samples, but {}", stage,
                                            format_bytes(samples), text()))
      .hint(
          "raise engine_options.memory_bytes (MILLRACE_MEMORY), make batches smaller, or decode "
          "before batching");
}

std::string detail::collecting::text() const {
  return fmt::format("the budget has {} for a batch of {}", format_bytes(bytes), stage);
}

awaitable<result<void>> detail::move_parts(std::shared_ptr<memory_share> memory,
                                           std::vector<bytes*> parts) {
  std::size_t here = 0;  // not released while the rest waits
  std::size_t size = 0;
  for (const bytes* part : parts) {
    if (part->are_of(*memory))
      here += charge_of(part->size());
    else
      size += part->size();
  }
  std::erase_if(parts, [&](const bytes* part) { return part->are_of(*memory); });
  if (parts.empty()) co_return result<void>();
  if (here + charge_of(size) > memory->limit()) {
    co_return error(
        errc::too_large,
        fmt::format("a sample of {}, and the budget leaves {} for '{}'", format_bytes(here + size),
                    format_bytes(memory->limit()), memory->name()))
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
