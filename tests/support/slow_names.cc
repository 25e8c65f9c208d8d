// To be preloaded: hosts below "test" whose look-ups end in ways that a test's host cannot produce.
// Each look-up is reported on stderr.
#include <dlfcn.h>
#include <netdb.h>
#include <unistd.h>

#include <string_view>

extern "C" int getaddrinfo(const char* node, const char* service, const addrinfo* hints,
                           addrinfo** found) {
  const std::string_view host = node == nullptr ? "" : node;
  constexpr std::string_view asked = "slow_names: asked\n";
  if (host.ends_with(".test")) static_cast<void>(!write(2, asked.data(), asked.size()));
  if (host == "never.test") {
    for (;;) pause();
  }
  if (host == "gone.test") return EAI_NONAME;
  if (host == "later.test") return EAI_AGAIN;
  using function = int (*)(const char*, const char*, const addrinfo*, addrinfo**);
  const auto real = reinterpret_cast<function>(dlsym(RTLD_NEXT, "getaddrinfo"));
  return real(host == "inside.test" ? "127.0.0.1" : node, service, hints, found);
}
