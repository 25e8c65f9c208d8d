#include <fmt/format.h>

#include "io/stores/sigv4.h"
#include "io/stores/store_url.h"
#include "io/stores/upload.h"
#include "io/stores/xml.h"

namespace millrace {
namespace {

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else {
      out += c;
    }
  }
  return out;
}

// Source: "Uploading and copying objects using multipart upload", Amazon S3 User Guide; "XML API
// multipart uploads", Google Cloud Storage.
class s3_uploads final : public upload_protocol {
 public:
  s3_uploads(http_fields absent, std::function<result<http_object>(const url&)> target)
      : absent_(std::move(absent)), target_(std::move(target)) {}

  result<http_object> target(const url& where) override {
    if (key_of(where).empty()) {
      return error(errc::usage, "this names a bucket, not an object").at(to_string(where));
    }
    return target_(where);
  }
  http_fields fields_of_absent() const override { return absent_; }

  std::optional<http_change> begin(const http_object& object) const override {
    return request(object, "POST", "?uploads");
  }
  result<std::string> id_in(const std::string& answer) const override {
    const auto tree = parse_store_xml(answer, "the beginning of an upload");
    if (!tree) return tree.error();
    std::string id = tree->get<std::string>("InitiateMultipartUploadResult.UploadId", "");
    if (id.empty()) return error(errc::protocol, "the store began an upload without a name");
    return id;
  }
  http_change part(const http_object& object, const std::string& id, int number) const override {
    return request(object, "PUT",
                   fmt::format("?partNumber={}&uploadId={}", number, uri_encoded(id, false)));
  }
  std::string list_of(const std::string& /*id*/,
                      const std::vector<std::string>& etags) const override {
    std::string list = "<CompleteMultipartUpload>";
    for (std::size_t i = 0; i < etags.size(); ++i) {
      list += fmt::format("<Part><PartNumber>{}</PartNumber><ETag>{}</ETag></Part>", i + 1,
                          escaped(etags[i]));
    }
    return list + "</CompleteMultipartUpload>";
  }
  http_change complete(const http_object& object, const std::string& id) const override {
    http_change change = request(object, "POST", "?uploadId=" + uri_encoded(id, false));
    change.slow_answer = true;  // S3 puts the parts together first, and sends blanks meanwhile
    return change;
  }
  std::string etag_in(const http_answer& answer) const override {
    const auto tree = parse_store_xml(answer.body, "the end of an upload");
    const auto told =
        tree ? tree->get_optional<std::string>("CompleteMultipartUploadResult.ETag") : boost::none;
    return told ? *told : upload_protocol::etag_in(answer);
  }
  std::optional<http_change> abort(const http_object& object,
                                   const std::string& id) const override {
    return request(object, "DELETE", "?uploadId=" + uri_encoded(id, false));
  }

 private:
  static http_change request(http_object object, const char* method, const std::string& query) {
    object.target.path += query;
    return {.object = std::move(object), .method = method, .body = {}, .fields = {}};
  }

  http_fields absent_;
  std::function<result<http_object>(const url&)> target_;
};

}  // namespace

std::unique_ptr<upload_protocol> s3_upload_protocol(
    http_fields absent, std::function<result<http_object>(const url&)> target) {
  return std::make_unique<s3_uploads>(std::move(absent), std::move(target));
}

}  // namespace millrace
