// Your own source: URLs "stdio:PATH" are read by the C library, which blocks. It stands for any
// blocking client: each call runs on a thread of the pool. Prints how much was read.
//
//   example_own_source 'stdio:train-{000000..000003}.tar'
#include <millrace/engine.h>
#include <millrace/plan.h>
#include <millrace/sources.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

using namespace millrace;

namespace {

using file = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

// Used by one coroutine, on an I/O thread. Anything used by a wait is a member or a local of the
// coroutine: both live until the wait is over.
class stdio_source final : public byte_source {
 public:
  stdio_source(source_context context, std::string path, file opened, byte_range range)
      : context_(std::move(context)),
        path_(std::move(path)),
        file_(std::move(opened)),
        at_(range.begin),
        end_(range.end) {}

  awaitable<result<bytes>> read() override {
    std::size_t size = std::min(64_KiB, context_.memory->limit() / 4);
    if (end_) size = std::min<std::size_t>(size, *end_ - std::min(*end_, at_));
    if (size == 0) co_return bytes();
    auto memory = co_await context_.memory->acquire(size);  // waits until later stages release some
    if (!memory) co_return memory.error();
    const auto blocking = [this, to = memory->data(), size] {
      errno = 0;
      const std::size_t n = std::fread(to, 1, size, file_.get());
      return std::ferror(file_.get()) != 0 ? result<std::size_t>(failed(errno)) : n;
    };
    const auto n = co_await offload(context_.io, context_.threads.cpu(), blocking);
    if (!n) co_return n.error();
    at_ += *n;
    co_return std::move(*memory).freeze(*n);
  }

  error failed(int why) const {
    return error(kind_of(why), "cannot read the file").at(path_).offset(at_).cause(why);
  }

 private:
  source_context context_;
  std::string path_;
  file file_;
  std::uint64_t at_;  // in the file
  std::optional<std::uint64_t> end_;
};

// Parameters are values, because a coroutine outlives the arguments of its caller.
awaitable<result<std::unique_ptr<byte_source>>> open_stdio(source_context context, std::string text,
                                                           url where, byte_range range) {
  const auto blocking = [path = where.path, begin = range.begin]() -> result<file> {
    file opened(std::fopen(path.c_str(), "rb"), std::fclose);
    if (!opened || std::fseek(opened.get(), static_cast<long>(begin), SEEK_SET) != 0) {
      return error(kind_of(errno), "cannot open the file").at(path).cause(errno);
    }
    return opened;
  };
  auto opened = co_await offload(context.io, context.threads.cpu(), blocking);
  if (!opened) co_return opened.error();
  co_return std::make_unique<stdio_source>(std::move(context), std::move(text), std::move(*opened),
                                           range);
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 2) {
    std::fprintf(stderr, "usage: example_own_source 'stdio:train-{000000..000003}.tar'\n");
    return 2;
  }
  engine_options options = engine_options::from_environment();
  options.add_sources = [](source_registry& to) { to.add("stdio", open_stdio); };
  engine eng(options);
  std::size_t samples = 0;
  std::size_t bytes = 0;
  for (auto& s : eng.run(shards(expand(argv[1]), {.seed = 1}) | untar() | group_by_key())) {
    ++samples;
    bytes += s.payload_bytes();
  }
  std::printf("%zu samples, %zu bytes\n", samples, bytes);
} catch (const failure& f) {
  std::fprintf(stderr, "%s\n", f.what());
  return exit_code(f.kind());
}
