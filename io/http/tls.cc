// The one translation unit that includes OpenSSL's TLS.
#include "io/http/tls.h"

#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <unistd.h>

#include <boost/asio/error.hpp>
#include <boost/asio/ip/address.hpp>
#include <limits>
#include <map>

#include "engine/coroutines/async.h"
#include "engine/coroutines/scope.h"
#include "io/http/secret_file.h"
#include "io/http/transport.h"

namespace millrace {
namespace {

using direction = byte_stream::direction;

template <class T, void (*Free)(T*)>
struct freed_by {
  void operator()(T* p) const { Free(p); }
};
using ssl_ptr = std::unique_ptr<SSL, freed_by<SSL, SSL_free>>;
using ssl_ctx_ptr = std::unique_ptr<SSL_CTX, freed_by<SSL_CTX, SSL_CTX_free>>;
using session_ptr = std::unique_ptr<SSL_SESSION, freed_by<SSL_SESSION, SSL_SESSION_free>>;

// Several records with one system call.
constexpr std::size_t record_buffer_bytes = 64UL * 1024;

std::string openssl_reason() {
  const unsigned long code = ERR_get_error();
  ERR_clear_error();
  const char* reason = code == 0 ? nullptr : ERR_reason_error_string(code);
  return reason == nullptr ? "no reason given" : reason;
}

// An OpenSSL BIO over a byte_stream.
int bio_write(BIO* bio, const char* data, std::size_t size, std::size_t* put) {
  auto* below = static_cast<byte_stream*>(BIO_get_data(bio));
  BIO_clear_retry_flags(bio);
  const auto done = below->try_write(std::as_bytes(std::span(data, size)));
  *put = done.bytes;
  if (done.failed == asio::error::would_block) BIO_set_retry_write(bio);
  return done.bytes > 0 ? 1 : 0;
}

int bio_read(BIO* bio, char* data, std::size_t size, std::size_t* got) {
  auto* below = static_cast<byte_stream*>(BIO_get_data(bio));
  BIO_clear_retry_flags(bio);
  const auto done = below->try_read(std::as_writable_bytes(std::span(data, size)));
  *got = done.bytes;
  if (done.failed == asio::error::would_block) BIO_set_retry_read(bio);
  if (done.failed == asio::error::eof) BIO_set_flags(bio, BIO_FLAGS_IN_EOF);
  return done.bytes > 0 ? 1 : 0;
}

long bio_control(BIO* bio, int command, long /*number*/, void* /*pointer*/) {
  if (command == BIO_CTRL_FLUSH) return 1;
  if (command == BIO_CTRL_EOF) return BIO_test_flags(bio, BIO_FLAGS_IN_EOF) != 0 ? 1 : 0;
  return 0;
}

BIO_METHOD* stream_method() {
  static BIO_METHOD* const method = [] {
    BIO_METHOD* m = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "byte_stream");
    BIO_meth_set_write_ex(m, bio_write);
    BIO_meth_set_read_ex(m, bio_read);
    BIO_meth_set_ctrl(m, bio_control);
    return m;
  }();
  return method;
}

using sessions = std::map<std::string, session_ptr>;

class tls_stream final : public byte_stream {
 public:
  // `owner` keeps alive the map into which sessions are put.
  tls_stream(std::shared_ptr<tls_context> owner, std::unique_ptr<byte_stream> below, ssl_ptr ssl)
      : owner_(std::move(owner)), below_(std::move(below)), ssl_(std::move(ssl)) {}
  ~tls_stream() override {
    // Sends close_notify if that does not wait, so that the session can be resumed.
    if (SSL_is_init_finished(ssl_.get()) != 0) SSL_shutdown(ssl_.get());
    ERR_clear_error();
  }
  tls_stream(const tls_stream&) = delete;
  tls_stream& operator=(const tls_stream&) = delete;

  moved try_read(std::span<std::byte> into) override {
    // Reads record by record, as long as there are complete ones.
    std::size_t filled = 0;
    ERR_clear_error();
    while (filled < into.size()) {
      std::size_t got = 0;
      const int done = SSL_read_ex(ssl_.get(), into.data() + filled, into.size() - filled, &got);
      if (done != 1 && filled == 0) return {0, failure_of(done)};
      if (done != 1) break;
      filled += got;
    }
    return {filled, {}};
  }
  moved try_write(std::span<const std::byte> from) override {
    std::size_t put = 0;
    ERR_clear_error();
    const int done = SSL_write_ex(ssl_.get(), from.data(), from.size(), &put);
    return done == 1 ? moved{put, {}} : moved{0, failure_of(done)};
  }
  awaitable<error_code> wait(direction which, time_source::time_point deadline) override {
    if (which == direction::read && SSL_pending(ssl_.get()) > 0) co_return error_code();
    co_return co_await below_->wait(wanted_, deadline);
  }

  // would_block: wait, then call again.
  error_code shake_hands() {
    ERR_clear_error();
    const int done = SSL_connect(ssl_.get());
    return done == 1 ? error_code() : failure_of(done);
  }
  SSL* ssl() const { return ssl_.get(); }

 private:
  error_code failure_of(int done) {
    switch (SSL_get_error(ssl_.get(), done)) {
      case SSL_ERROR_WANT_READ:
        wanted_ = direction::read;
        return asio::error::would_block;
      case SSL_ERROR_WANT_WRITE:
        wanted_ = direction::write;
        return asio::error::would_block;
      case SSL_ERROR_ZERO_RETURN:
        return asio::error::eof;
      default:
        // Also an end without close_notify: the data may be incomplete.
        return asio::error::connection_reset;
    }
  }

  std::shared_ptr<tls_context> owner_;
  std::unique_ptr<byte_stream> below_;
  ssl_ptr ssl_;
  direction wanted_ = direction::read;
};

// The four reasons that a user can do something about, each with its own message.
error untrusted(long why, const std::string& host, const std::string& subject) {
  const auto made = [&](std::string what, std::string_view hint) {
    return error(errc::untrusted, std::move(what)).hint(std::string(hint));
  };
  switch (why) {
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
      return made(fmt::format("the certificate of {} is self-signed", host),
                  "if it is yours, set tls_options.ca_file (MILLRACE_CA_FILE) to it");
    case X509_V_ERR_CERT_HAS_EXPIRED:
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return made(
          fmt::format("the certificate of {} {}", host,
                      why == X509_V_ERR_CERT_HAS_EXPIRED ? "has expired" : "is not valid yet"),
          "renew it on the server, or correct this host's clock");
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
      return made(fmt::format("the certificate is for another host than {}: {}", host, subject),
                  "use the name that the certificate is for");
    default:
      return made(fmt::format("the certificate of {} is untrusted: {}", host,
                              X509_verify_cert_error_string(why)),
                  "set tls_options.ca_file (MILLRACE_CA_FILE) to the authority's certificate, or "
                  "install ca-certificates");
  }
}

std::string subject_of(SSL* ssl) {
  const X509* certificate = SSL_get0_peer_certificate(ssl);
  if (certificate == nullptr) return "none";
  std::string text(256, '\0');
  X509_NAME_oneline(X509_get_subject_name(certificate), text.data(), static_cast<int>(text.size()));
  text.resize(text.find('\0'));
  return text;
}

class openssl_context final : public tls_context,
                              public std::enable_shared_from_this<openssl_context> {
 public:
  explicit openssl_context(ssl_ctx_ptr context) : context_(std::move(context)) {
    SSL_CTX_set_session_cache_mode(context_.get(),
                                   SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL_STORE);
    SSL_CTX_sess_set_new_cb(context_.get(), [](SSL* ssl, SSL_SESSION* session) {
      auto* slot = static_cast<session_ptr*>(SSL_get_app_data(ssl));
      slot->reset(session);
      return 1;  // this object now owns it
    });
  }

  awaitable<result<std::unique_ptr<byte_stream>>> handshake(
      std::unique_ptr<byte_stream> below, std::string host, std::string peer,
      time_source::time_point deadline) override {
    ssl_ptr ssl(SSL_new(context_.get()));
    // held over co_await: a peer is never erased
    session_ptr& session = sessions_[peer];
    SSL_set_app_data(ssl.get(), &session);
    if (session) SSL_set_session(ssl.get(), session.get());
    expect(ssl.get(), host);
    BIO* bio = BIO_new(stream_method());
    BIO_set_data(bio, below.get());
    BIO_set_init(bio, 1);
    SSL_set_bio(ssl.get(), bio, bio);
    auto stream =
        std::make_unique<tls_stream>(shared_from_this(), std::move(below), std::move(ssl));
    for (;;) {
      error_code failed = stream->shake_hands();
      if (!failed) break;
      if (failed == asio::error::would_block) {
        failed = co_await stream->wait(direction::read, deadline);
        if (!failed) continue;
      }
      session.reset();
      co_return handshake_error(stream->ssl(), failed, host);
    }
    co_return std::unique_ptr<byte_stream>(std::move(stream));
  }

 private:
  static void expect(SSL* ssl, const std::string& host) {
    error_code not_an_ip;
    asio::ip::make_address(host, not_an_ip);
    if (not_an_ip) {
      SSL_set_tlsext_host_name(ssl, host.c_str());
      SSL_set1_host(ssl, host.c_str());
    } else {
      X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host.c_str());
    }
  }

  static error handshake_error(SSL* ssl, error_code failed, const std::string& host) {
    if (failed == asio::error::operation_aborted) return error(errc::stopped, "stopped");
    if (failed == asio::error::timed_out) {
      return error(errc::timed_out, fmt::format("no TLS handshake with {} in time", host))
          .retryable();
    }
    const long why = SSL_get_verify_result(ssl);
    if (why != X509_V_OK) {
      ERR_clear_error();
      return untrusted(why, host, subject_of(ssl));
    }
    const bool ended = ERR_peek_error() == 0;
    // Bytes that are not TLS, read as the head of a record.
    const int reason = ERR_GET_REASON(ERR_peek_error());
    if (!ended && (reason == SSL_R_WRONG_VERSION_NUMBER || reason == SSL_R_HTTP_REQUEST ||
                   reason == SSL_R_PACKET_LENGTH_TOO_LONG)) {
      ERR_clear_error();
      return error(errc::protocol, fmt::format("this port of {} does not speak TLS", host))
          .hint("write http:// for https://, or use the port that speaks TLS");
    }
    return error(ended ? errc::cut : errc::protocol,
                 ended
                     ? fmt::format("{} ended the connection during the TLS handshake", host)
                     : fmt::format("the TLS handshake with {} failed: {}", host, openssl_reason()))
        .retryable();
  }

  // Streams write to its elements; references into a map stay valid.
  sessions sessions_;
  ssl_ctx_ptr context_;
};

error unusable(const char* what, const std::string& file) {
  if (access(file.c_str(), R_OK) != 0) {
    const int why = errno;
    ERR_clear_error();
    return error(errc::usage, fmt::format("{} cannot be read", what))
        .at(shown_file(file))
        .cause(why)
        .hint("set it to the name of a PEM file");
  }
  return error(errc::usage, fmt::format("{} cannot be used: {}", what, openssl_reason()))
      .at(shown_file(file));
}

}  // namespace

result<std::shared_ptr<tls_context>> make_tls_context(const tls_options& options) {
  ssl_ctx_ptr context(SSL_CTX_new(TLS_client_method()));
  SSL_CTX* const c = context.get();
  SSL_CTX_set_min_proto_version(c, TLS1_2_VERSION);
  SSL_CTX_set_verify(c, SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_mode(c, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                          SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_read_ahead(c, 1);
  SSL_CTX_set_default_read_buffer_len(c, record_buffer_bytes);
  SSL_CTX_set_default_verify_paths(c);
  if (!options.ca_file.empty() &&
      SSL_CTX_load_verify_locations(c, options.ca_file.c_str(), nullptr) != 1) {
    return unusable("MILLRACE_CA_FILE", options.ca_file);
  }
  if (!options.client_cert.empty()) {
    if (SSL_CTX_use_certificate_chain_file(c, options.client_cert.c_str()) != 1) {
      return unusable("MILLRACE_CLIENT_CERT", options.client_cert);
    }
    const std::string& key = options.client_key.empty() ? options.client_cert : options.client_key;
    if (SSL_CTX_use_PrivateKey_file(c, key.c_str(), SSL_FILETYPE_PEM) != 1 ||
        SSL_CTX_check_private_key(c) != 1) {
      return unusable("MILLRACE_CLIENT_KEY", key);
    }
  }
  return std::make_shared<openssl_context>(std::move(context));
}

}  // namespace millrace
