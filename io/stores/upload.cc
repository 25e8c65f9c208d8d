#include "io/stores/upload.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>

#include "engine/base/words.h"
#include "engine/host/log.h"
#include "io/hashes.h"
#include "io/http/ask.h"
#include "io/http/object_digest.h"

namespace millrace {
namespace {

// The most parts of an object that S3 and Google take; Azure takes five times as many.
constexpr std::size_t most_parts = 10'000;
constexpr std::size_t part_step = 1UL << 20;

// As raw bytes; nullopt where the host's OpenSSL refuses MD5, as in FIPS mode. S3's signature then
// covers the body by its SHA-256, and the size is compared.
std::optional<std::string> md5_of(std::string_view content) {
  try {
    return digest_of(hash_algorithm::md5, content);
  } catch (const failure& f) {
    if (f.kind() != errc::unsupported) throw;
    return std::nullopt;
  }
}

std::string unquoted(std::string text) {
  std::erase(text, '"');
  return lowered(text);
}

// Whether an ETag has the form of an MD5 and is not of encrypted bytes: then it is the MD5 of what
// the store keeps, or, with "-N", of the MD5s of N parts.
bool is_by_md5(const std::string& etag, const response_head& head) {
  const std::string encryption = head.field("x-amz-server-side-encryption").value_or("AES256");
  if (encryption != "AES256") return false;
  if (head.field("x-amz-server-side-encryption-customer-algorithm")) return false;
  const auto dash = etag.find('-');
  const auto digits = etag.substr(0, dash);
  return digits.size() == 32 && digits.find_first_not_of("0123456789abcdef") == digits.npos;
}

// What the store has to have in the end.
struct expected_object {
  std::string_view content;
  std::string etag;  // by the MD5s, lower case; empty: unknown
  std::string told;  // the ETag in the answer to the upload; empty: unknown
};

error differs(const http_object& object, std::string what) {
  return error(errc::integrity, std::move(what))
      .at(object.name)
      .hint("check the store, and that no other program writes there; then write it again");
}

// `told`: the ETag that the store named before. Stores with rules of their own for ETags name the
// same one again.
result<void> check_etag(const http_object& object, const response_head& head,
                        const std::string& expected, const std::string& told = {}) {
  const auto kept = head.field("etag");
  if (!kept || expected.empty()) return {};
  const std::string etag = unquoted(*kept);
  if (etag == unquoted(told)) return {};
  const bool is_of_parts = etag.find('-') != std::string::npos;
  const bool is_expected_of_parts = expected.find('-') != std::string::npos;
  if (is_of_parts != is_expected_of_parts || !is_by_md5(etag, head) || etag == expected) return {};
  return differs(object, fmt::format("the store keeps other bytes than were sent: their ETag is {} "
                                     "instead of {}",
                                     etag, expected));
}

// Asks the store for what it keeps.
awaitable<result<void>> verify(http_stack& stack, scope& tasks, http_object object,
                               expected_object expected) {
  const auto answer = co_await ask(stack, tasks, object, "HEAD", {}, 0);
  if (!answer) co_return answer.error();
  const response_head& head = answer->head;
  if (head.content_length != expected.content.size()) {
    co_return differs(object,
                      fmt::format("the store keeps {} bytes of the {} that were sent",
                                  head.content_length.value_or(0), expected.content.size()));
  }
  if (const auto digest = digest_in(head)) {
    digest_check check(*digest);
    check.add(std::as_bytes(std::span(expected.content)));
    if (const auto same = check.finish(); !same) {
      co_return differs(object,
                        "the store keeps other bytes than were sent: " + same.error().what());
    }
  }
  co_return check_etag(object, head, expected.etag, expected.told);
}

// Whether the object of that name is this content. Compares the bytes themselves.
awaitable<result<bool>> is_ours(http_stack& stack, scope& tasks, http_object object,
                                std::string_view content) {
  const auto there = co_await ask(stack, tasks, std::move(object), "GET", {}, content.size() + 1);
  if (!there && there.error().kind() == errc::too_large) co_return false;
  if (!there) co_return there.error();
  co_return there->body == content;
}

http_fields with_md5(http_fields fields, const std::optional<std::string>& md5) {
  if (md5) fields.push_back({"Content-MD5", base64(*md5)});
  return fields;
}

void add(http_fields& to, const http_fields& more) {
  to.insert(to.end(), more.begin(), more.end());
}

awaitable<result<void>> put_whole(http_stack& stack, scope& tasks, upload_protocol& by,
                                  http_object object, std::string_view content,
                                  bool only_if_absent) {
  const auto md5 = md5_of(content);
  http_change put{.object = object, .method = "PUT", .body = content, .fields = {}};
  put.fields = with_md5(by.fields_of_whole(), md5);
  http_change conditional = put;
  if (only_if_absent) add(conditional.fields, by.fields_of_absent());
  auto answer = co_await request_change(stack, tasks, std::move(conditional));
  // A store that does not know the condition.
  if (!answer && only_if_absent && answer.error().kind() == errc::unsupported) {
    answer = co_await request_change(stack, tasks, std::move(put));
  }
  if (!answer) {
    if (!only_if_absent || answer.error().kind() != errc::changed) co_return answer.error();
    // The answer to an attempt that succeeded may have been lost.
    const auto ours = co_await is_ours(stack, tasks, object, content);
    if (!ours) co_return ours.error();
    if (!*ours) co_return answer.error();
  }
  const std::string told = answer ? answer->head.field("etag").value_or("") : "";
  co_return co_await verify(stack, tasks, object, {content, md5 ? hex(*md5) : "", told});
}

// The state that the senders of an upload's parts share.
struct parts_under_way {
  http_stack& stack;
  scope& tasks;
  upload_protocol& by;
  http_object object;
  std::string id;
  std::string_view content;
  std::size_t part_bytes;
  std::vector<std::string> etags;  // as the store gave them, by part
  std::vector<std::string> md5s;   // raw; empty where there is none
  std::size_t next = 0;
  std::optional<error> failed = std::nullopt;
};

awaitable<result<void>> put_part(parts_under_way& all, std::size_t index) {
  const auto bytes = all.content.substr(index * all.part_bytes, all.part_bytes);
  const auto md5 = md5_of(bytes);
  http_change put = all.by.part(all.object, all.id, static_cast<int>(index) + 1);
  put.body = bytes;
  put.fields = with_md5(std::move(put.fields), md5);
  const auto answer = co_await request_change(all.stack, all.tasks, std::move(put));
  if (!answer) co_return answer.error();
  all.etags[index] = answer->head.field("etag").value_or("");
  all.md5s[index] = md5.value_or("");
  co_return check_etag(all.object, answer->head, md5 ? hex(*md5) : "");
}

// One of the senders: takes the next part until there is none.
awaitable<void> put_parts(parts_under_way* all) {
  while (!all->failed && all->next < all->etags.size()) {
    const auto sent = co_await put_part(*all, all->next++);
    if (!sent && !all->failed) all->failed = sent.error();
  }
}

// S3's ETag of an object made of these parts; empty: unknown.
std::string etag_of(const std::vector<std::string>& md5s) {
  std::string all;
  for (const std::string& md5 : md5s) {
    if (md5.empty()) return {};
    all += md5;
  }
  return fmt::format("{}-{}", hex(md5_of(all).value_or("")), md5s.size());
}

awaitable<result<void>> send_parts(parts_under_way& all, const upload_terms& terms) {
  scope senders(co_await this_executor);
  const auto count = std::min(terms.parts_at_once, all.etags.size());
  for (std::size_t i = 0; i < count; ++i) senders.spawn(put_parts(&all));
  co_await senders.join();
  if (all.failed) co_return *all.failed;
  const std::string list = all.by.list_of(all.id, all.etags);
  http_change complete = all.by.complete(all.object, all.id);
  complete.body = list;
  if (terms.only_if_absent) add(complete.fields, all.by.fields_of_absent());
  const auto answer = co_await request_change(all.stack, all.tasks, std::move(complete));
  // An upload that is unknown may have been completed by an attempt whose answer was lost.
  if (!answer && answer.error().kind() != errc::not_found) co_return answer.error();
  auto kept =
      co_await verify(all.stack, all.tasks, all.object,
                      {all.content, etag_of(all.md5s), answer ? all.by.etag_in(*answer) : ""});
  if (answer || kept) co_return kept;
  const auto ours = co_await is_ours(all.stack, all.tasks, all.object, all.content);
  if (!ours || !*ours) co_return answer.error();
  co_return result<void>();
}

awaitable<void> abort_upload(parts_under_way& all) {
  auto change = all.by.abort(all.object, all.id);
  if (!change) co_return;
  const auto aborted = co_await request_change(all.stack, all.tasks, std::move(*change));
  if (aborted || aborted.error().kind() == errc::not_found) co_return;
  log_notice(fmt::format(
      "{}: the parts of an upload that failed are left: a lifecycle rule of the bucket can delete "
      "such parts ({})",
      all.object.name, aborted.error().what()));
}

awaitable<result<void>> put_in_parts(http_stack& stack, scope& tasks, upload_protocol& by,
                                     http_object object, std::string_view content,
                                     const upload_terms& terms) {
  std::string id;
  if (auto begin = by.begin(object)) {
    const auto answer = co_await request_change(stack, tasks, std::move(*begin));
    if (!answer) co_return answer.error();
    auto named = by.id_in(answer->body);
    if (!named) co_return error(named.error()).at(object.name);
    id = std::move(*named);
  } else {
    std::random_device random;  // parts of two uploads of one object have different names
    id = fmt::format("{:08x}{:08x}", random(), random());
  }
  const std::size_t bytes = upload_part_bytes(content.size(), terms.part_bytes);
  const std::size_t parts = (content.size() + bytes - 1) / bytes;
  parts_under_way all{.stack = stack,
                      .tasks = tasks,
                      .by = by,
                      .object = std::move(object),
                      .id = std::move(id),
                      .content = content,
                      .part_bytes = bytes,
                      .etags = std::vector<std::string>(parts),
                      .md5s = std::vector<std::string>(parts)};
  const auto sent = co_await send_parts(all, terms);
  if (!sent) co_await abort_upload(all);
  co_return sent;
}

// The target, with the user's name for it in messages.
result<http_object> named_target(upload_protocol& by, const url& where) {
  auto object = by.target(where);
  if (object) object->name = to_string(where);
  return object;
}

}  // namespace

std::size_t upload_part_bytes(std::size_t size, std::size_t least) {
  const std::size_t needed = (size + most_parts - 1) / most_parts;
  if (needed <= least) return least;
  return (needed + part_step - 1) / part_step * part_step;
}

awaitable<result<void>> upload(http_stack& stack, scope& tasks, upload_protocol& by, url where,
                               std::string_view content, upload_terms terms) {
  auto object = named_target(by, where);
  if (!object) co_return object.error();
  if (content.size() <= terms.part_bytes) {
    co_return co_await put_whole(stack, tasks, by, std::move(*object), content,
                                 terms.only_if_absent);
  }
  co_return co_await put_in_parts(stack, tasks, by, std::move(*object), content, terms);
}

awaitable<result<void>> delete_object(http_stack& stack, scope& tasks, upload_protocol& by,
                                      url where) {
  auto object = named_target(by, where);
  if (!object) co_return object.error();
  const auto answer = co_await request_change(
      stack, tasks, {.object = std::move(*object), .method = "DELETE", .body = {}, .fields = {}});
  if (answer || answer.error().kind() == errc::not_found) co_return result<void>();
  co_return answer.error();
}

}  // namespace millrace
