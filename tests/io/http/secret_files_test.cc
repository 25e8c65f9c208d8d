// No file is touched on an I/O thread: a disk that is slow, or a mount that hangs, would stop all
// that the thread reads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <mutex>
#include <set>

#include "engine/coroutines/scope.h"
#include "engine/host/log.h"
#include "engine/host/seams.h"
#include "engine/threads/blocking.h"
#include "engine/threads/runtime.h"
#include "io/http/secret_file.h"
#include "io/http/secrets.h"
#include "io/http/stack.h"
#include "io/http/transport.h"
#include "io/stores/store.h"
#include "tests/support/memory_files.h"
#include "tests/support/spine.h"
#include "tests/support/temporary_folder.h"

namespace millrace {
namespace {

using testing::memory_files;
using testing::run_on;
using testing::settle;

const http_options options{
    .netrc = "/secrets/netrc",
    .tokens = {{"with.token", "/secrets/token"}},
    .environment = {{"AWS_SHARED_CREDENTIALS_FILE", "/secrets/aws"},
                    {"AWS_CONFIG_FILE", "/secrets/config"},
                    {"GOOGLE_APPLICATION_CREDENTIALS", "/secrets/google"},
                    {"HF_HOME", "/secrets/hf"},
                    {"AZURE_STORAGE_ACCOUNT", "account"}},
};

awaitable<bool> settled_pool() {
  co_return co_await blocking([] { return true; });
}

class SecretFiles : public ::testing::Test {
 protected:
  SecretFiles() {
    settle(threads_.io(0));
    run_on(threads_.io(0), settled_pool());  // threads that begin read the host's files
    for (const auto& [path, content] :
         {std::pair<const char*, const char*>{"/secrets/token", "t"},
          {"/secrets/netrc", "machine with.netrc login u password p"},
          {"/secrets/aws", "[default]\naws_access_key_id = k\naws_secret_access_key = s\n"},
          {"/secrets/config", "[default]\nregion = eu-central-1\n"},
          {"/secrets/google", "{}"},
          {"/secrets/hf/token", "t"}}) {
      disk_.put(path, content);
    }
    simulate_files(&disk_);
    disk_.fault = [this](const char* call, const std::string& path) {
      const std::lock_guard lock(guard_);
      (io_thread::here() != nullptr ? on_io_thread_ : elsewhere_).push_back(path + " " + call);
      return 0;
    };
  }
  ~SecretFiles() override { simulate_files(nullptr); }

  bool was_opened(const std::string& path) const {
    return std::ranges::find(elsewhere_, path + " open") != elsewhere_.end();
  }

  runtime threads_{{.cpu_threads = 1, .io = io_backend::pread}};
  memory_files disk_;
  std::mutex guard_;
  std::vector<std::string> on_io_thread_;
  std::vector<std::string> elsewhere_;
};

awaitable<std::vector<std::string>> signed_by_each(std::shared_ptr<http_stack> stack) {
  scope tasks(co_await this_executor);
  std::vector<std::string> out;
  for (const char* host : {"with.token", "with.netrc", "with.neither"}) {
    const url target = parse_url(std::string("http://") + host + "/a").value();
    const auto signer = stack->secrets_for(target);
    http_request request;
    request.target = target;
    const auto fields = co_await signer->sign(tasks, request);
    out.push_back(fields && !fields->empty() ? fields->front().value : "");
    static_cast<void>(co_await signer->refused());
  }
  for (const auto& [scheme, store] : object_stores(stack)) {
    url where;
    where.scheme = scheme;
    where.host = scheme == "hf" ? "datasets" : "bucket";
    where.path = "/owner/name/key";
    co_await store->prepare();
    const auto object = store->locate(where);
    if (!object) continue;
    if (scheme == "s3") out.push_back(object->target.host);
    if (scheme == "hf") out.push_back(object->fields.front().value);
    http_request request;
    request.target = object->target;
    if (object->secrets) static_cast<void>(co_await object->secrets->sign(tasks, request));
  }
  tasks.stop();
  co_await tasks.join();
  co_return out;
}

TEST_F(SecretFiles, AreReadByThePool) {
  const auto stack = std::make_shared<http_stack>(options, real_network(0), real_time());
  const auto said = run_on(threads_.io(0), signed_by_each(stack));
  EXPECT_EQ(said, (std::vector<std::string>{"Bearer t", "Basic dTpw", "", "Bearer t",
                                            "bucket.s3.eu-central-1.amazonaws.com"}));
  for (const char* path : {"/secrets/token", "/secrets/netrc", "/secrets/aws", "/secrets/config",
                           "/secrets/google", "/secrets/hf/token"}) {
    EXPECT_TRUE(was_opened(path)) << path;
  }
  EXPECT_EQ(on_io_thread_, std::vector<std::string>());
}

TEST_F(SecretFiles, ThatCannotBeReadAreTold) {
  for (const char* path : {"/secrets/netrc", "/secrets/aws", "/secrets/token"}) {
    disk_.put(path, std::string((std::size_t{1} << 20) + 1, ' '));
  }
  std::string said;
  set_log_sink([&](std::string_view line) { said += line; });
  const auto stack = std::make_shared<http_stack>(options, real_network(0), real_time());
  const auto fields = run_on(threads_.io(0), signed_by_each(stack));
  set_log_sink(nullptr);
  EXPECT_EQ(fields[0] + fields[1], "");
  for (const char* what : {"the .netrc: too_large", "the AWS credentials file: too_large",
                           "at /secrets/netrc", "at /secrets/aws"}) {
    EXPECT_NE(said.find(what), said.npos) << said;
  }
  EXPECT_EQ(read_secret_file("/secrets/token", "the token").error().kind(), errc::too_large);
}

// A variable may hold the secret itself, in place of a file's name; one that is too long for a name
// is another error than a file that is not there.
TEST_F(SecretFiles, WhoseNamesAreSecretsAreNotShown) {
  const std::string secret(300, 's');
  disk_.fault = [&](const char*, const std::string& path) {
    return path == secret ? -ENAMETOOLONG : 0;
  };
  std::string said;
  set_log_sink([&](std::string_view line) { said += line; });
  EXPECT_EQ(optional_secrets(secret, "the .netrc"), "");
  set_log_sink(nullptr);
  EXPECT_NE(said.find("nothing is taken from the .netrc: "), said.npos) << said;
  EXPECT_EQ(said.find(secret), said.npos);
}

awaitable<void> sign_or_refuse(std::shared_ptr<request_signer> signer, scope* tasks, bool refuses,
                               std::set<std::string>* out) {
  if (refuses) {
    static_cast<void>(co_await signer->refused());
    co_return;
  }
  const auto fields = co_await signer->sign(*tasks, http_request());
  out->insert(fields ? fields->front().value : fields.error().message());
}

awaitable<std::set<std::string>> signed_at_once(http_options of) {
  std::set<std::string> out;
  for (int round = 0; round < 200; ++round) {
    // A new one is read for the first time by all of its requests.
    const auto signer = web_secrets(parse_url("http://with.token/a").value(), of);
    scope tasks(co_await this_executor);
    for (int i = 0; i < 12; ++i) tasks.spawn(sign_or_refuse(signer, &tasks, i == 6, &out));
    co_await tasks.join();
  }
  co_return out;
}

// All requests to a host share its signer.
TEST(TokenFile, SignsManyRequestsAtOnce) {
  const std::string token(1200, 't');
  const testing::temporary_folder folder;
  const std::string file = folder / "token";
  std::ofstream(file) << token;
  runtime threads({.cpu_threads = 4, .io = io_backend::pread});
  EXPECT_EQ(run_on(threads.io(0), signed_at_once({.tokens = {{"with.token", file}}})),
            (std::set<std::string>{"Bearer " + token}));
}

}  // namespace
}  // namespace millrace
