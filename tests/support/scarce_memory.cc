// To be preloaded: refuses allocation number SCARCE_AT, counted from 1, of one shared library
// (SCARCE_LIBRARY, a part of its name). At the end, prints their number to stderr.
#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

extern "C" {
void* __libc_malloc(std::size_t size);
void* __libc_calloc(std::size_t count, std::size_t size);
void* __libc_realloc(void* memory, std::size_t size);
}

namespace {

struct range {
  std::uintptr_t begin = UINTPTR_MAX;
  std::uintptr_t end = 0;
};

range library;
long refused = 0;
std::atomic<long> asked = 0;

int add(dl_phdr_info* info, std::size_t /*size*/, void* name) {
  if (std::strstr(info->dlpi_name, static_cast<const char*>(name)) == nullptr) return 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& part = info->dlpi_phdr[i];
    if (part.p_type != PT_LOAD) continue;
    const std::uintptr_t begin = info->dlpi_addr + part.p_vaddr;
    if (begin < library.begin) library.begin = begin;
    if (begin + part.p_memsz > library.end) library.end = begin + part.p_memsz;
  }
  return 0;
}

__attribute__((constructor)) void set_up() {
  const char* const at = std::getenv("SCARCE_AT");
  refused = at == nullptr ? 0 : std::atol(at);
  dl_iterate_phdr(add, std::getenv("SCARCE_LIBRARY"));
}

__attribute__((destructor)) void tell() {
  char text[64];
  const int size = std::snprintf(text, sizeof text, "scarce_memory: %ld asked for\n", asked.load());
  static_cast<void>(!write(2, text, static_cast<std::size_t>(size)));
}

bool refuses(const void* caller) {
  const auto at = reinterpret_cast<std::uintptr_t>(caller);
  if (at < library.begin || at >= library.end) return false;
  if (++asked != refused) return false;
  errno = ENOMEM;
  return true;
}

}  // namespace

extern "C" void* malloc(std::size_t size) {
  return refuses(__builtin_return_address(0)) ? nullptr : __libc_malloc(size);
}
extern "C" void* calloc(std::size_t count, std::size_t size) {
  return refuses(__builtin_return_address(0)) ? nullptr : __libc_calloc(count, size);
}
extern "C" void* realloc(void* memory, std::size_t size) {
  return refuses(__builtin_return_address(0)) ? nullptr : __libc_realloc(memory, size);
}
