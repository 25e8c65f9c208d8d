#include "engine/settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <vector>

#include "engine/memory.h"
#include "engine/spelling.h"
#include "engine/words.h"

namespace millrace {
namespace {

using enum setting_type;

constexpr std::string_view prefix = "MILLRACE_";

constexpr double KiB = 0x1p10;
constexpr double MiB = 0x1p20;
constexpr double TiB = 0x1p40;

constexpr std::array table = {
    setting{"MILLRACE_MEMORY", size, "auto", 16 * MiB, TiB, "",
            "budget for all payload memory (auto: a quarter of what the cgroup allows, <= 4G)"},
    setting{"MILLRACE_CPU_THREADS", integer, "auto", 1, 1024, "",
            "threads that decode (auto: up to the CPUs that the cgroup allows, as few as suffice)"},
    setting{
        "MILLRACE_IO_THREADS", integer, "1", 1, 64, "",
        "threads that run the coroutines; a run uses one, so more are for several runs at once"},
    setting{"MILLRACE_IO", choice, "auto", 0, 0, "auto|uring|pread",
            "how files are read (auto: io_uring where the kernel allows it)"},
    setting{"MILLRACE_READ_CHUNK", size, "2M", 4 * KiB, 64 * MiB, "",
            "bytes of one read of a file, and of one buffer of an HTTP body"},
    setting{"MILLRACE_READ_AHEAD", integer, "8", 1, 1024, "",
            "chunks that are read ahead of the one in use, for each open shard"},
    setting{"MILLRACE_READ_DEPTH", integer, "auto", 1, 4096, "",
            "reads at once on a device that has no gate (auto: by measurement)"},
    setting{"MILLRACE_DIRECT", choice, "auto", 0, 0, "auto|on|off",
            "bypass the page cache (auto: for what would not stay in it)"},
    setting{"MILLRACE_DROP_CACHE", choice, "off", 0, 0, "on|off",
            "drop pages from the page cache once they have been read"},
    setting{"MILLRACE_SPINDLES", integer, "auto", 1, 1024, "",
            "disks that one large read keeps busy; set: the files are on rotational disks"},
    setting{
        "MILLRACE_SERIALIZE", choice_or_integer, "auto", 1, 1024, "auto|off",
        "large reads at once on a rotational device (auto: 1 on rotational disks, else unlimited)"},
    setting{"MILLRACE_READ_EXTENT", size, "auto", 64 * KiB, 1024 * MiB, "",
            "bytes of one turn at a rotational device (auto: 16M or more, by its measured seeks)"},
    setting{"MILLRACE_GATE_DIR", text, "auto", 0, 0, "",
            "where processes take turns (auto: /run/lock, /dev/shm or /tmp)"},
    setting{
        "MILLRACE_GATE_PATIENCE", seconds, "5", 0.01, 3600, "",
        "seconds without a sign of life (at a gate, filling the cache) before others stop waiting"},
    setting{"MILLRACE_REGISTERED_BUFFERS", choice, "off", 0, 0, "on|off",
            "pin read buffers for io_uring once, as many as `ulimit -l` allows"},
    setting{"MILLRACE_READ_TIMEOUT", seconds, "60", 0.001, 86400, "",
            "seconds that a disk may return nothing before its read fails"},
    setting{"MILLRACE_HTTP_CONNECT_TIMEOUT", seconds, "5", 0.001, 3600, "",
            "seconds for a name look-up and a connection"},
    setting{"MILLRACE_HTTP_TLS_TIMEOUT", seconds, "5", 0.001, 3600, "",
            "seconds for the TLS handshake"},
    setting{"MILLRACE_HTTP_FIRST_BYTE_TIMEOUT", seconds, "10", 0.001, 3600, "",
            "seconds from a request to the first byte of its answer"},
    setting{"MILLRACE_HTTP_PROGRESS_TIMEOUT", seconds, "10", 0.001, 3600, "",
            "seconds in which a transfer must bring 64 KiB"},
    setting{"MILLRACE_HTTP_ATTEMPTS", integer, "6", 1, 1000, "",
            "attempts in a row that may bring nothing before a transfer fails"},
    setting{"MILLRACE_HTTP_BACKOFF", seconds, "0.5", 0, 3600, "",
            "seconds of the first pause between attempts; doubles, with full jitter, to 30 s"},
    setting{"MILLRACE_HTTP_CONNECTIONS", integer, "64", 1, 4096, "",
            "connections at once to one server, of each I/O thread"},
    setting{"MILLRACE_HTTP_IDLE", seconds, "15", 0, 3600, "",
            "seconds for which an unused connection is kept"},
    setting{"MILLRACE_HTTP_SPLIT", choice_or_integer, "auto", 1, 1024, "auto|off",
            "parts of one object fetched at once (auto: by what the throughput shows)"},
    setting{"MILLRACE_HTTP_PART", size, "auto", 64 * KiB, 1024 * MiB, "",
            "bytes of one part (auto: by the time to its first byte)"},
    setting{"MILLRACE_HTTP_HEDGE", integer, "5", 0, 100, "",
            "percent of the bytes that may be requested twice when a part is late"},
    setting{"MILLRACE_HTTP_RECEIVE_BUFFER", size, "auto", 4 * KiB, 1024 * MiB, "",
            "SO_RCVBUF of connections (auto: the kernel's own tuning)"},
    setting{"MILLRACE_HTTP_USER_AGENT", text, "millrace/0.1", 0, 0, "", "User-Agent of requests"},
    setting{"MILLRACE_HTTP_HEADERS", text, "auto", 0, 0, "",
            "sent to the hosts that URLs name: 'Name: value|Name: value' (auto: none)"},
    setting{"MILLRACE_HTTP_TOKENS", text, "auto", 0, 0, "",
            "files with bearer tokens: 'host=file;host=file', read again when they change"},
    setting{"MILLRACE_HTTP_PRIVATE_REDIRECTS", choice, "off", 0, 0, "on|off",
            "follow redirects of public servers to loopback and link-local addresses"},
    setting{"MILLRACE_NETRC", text, "auto", 0, 0, "",
            "names and passwords for hosts (auto: $NETRC or ~/.netrc; off)"},
    setting{"MILLRACE_S3_PATH_STYLE", choice, "auto", 0, 0, "auto|on|off",
            "bucket in the path rather than in the host (auto: where an endpoint is set)"},
    setting{"MILLRACE_S3_UNSIGNED", choice, "off", 0, 0, "on|off",
            "access S3 and Google stores without credentials, for public buckets"},
    setting{"MILLRACE_S3_REQUESTER_PAYS", choice, "off", 0, 0, "on|off",
            "agree to pay for requests to requester-pays buckets"},
    setting{"MILLRACE_CA_FILE", text, "auto", 0, 0, "",
            "certificates (PEM) to trust in addition to the host's (auto: none)"},
    setting{"MILLRACE_CLIENT_CERT", text, "auto", 0, 0, "",
            "client certificate (PEM) to show to servers (auto: none)"},
    setting{"MILLRACE_CLIENT_KEY", text, "auto", 0, 0, "",
            "its private key (PEM; auto: in MILLRACE_CLIENT_CERT)"},
    setting{"MILLRACE_REWRITE", text, "auto", 0, 0, "",
            "prefixes of URLs to replace: 'from=to;from=to' (auto: none)"},
    setting{"MILLRACE_ALLOW_PIPE", choice, "0", 0, 0, "0|1",
            "whether pipe: URLs may run commands of the shell"},
    setting{"MILLRACE_CACHE", text, "auto", 0, 0, "",
            "folder in which fetched objects are kept for the next time (auto: none)"},
    setting{"MILLRACE_CACHE_SIZE", size, "auto", MiB, 1024 * TiB, "",
            "bytes that the cache may hold (auto: as many as the disk has room for)"},
    setting{"MILLRACE_CACHE_FREE", size, "1G", 0, 1024 * TiB, "",
            "bytes that the cache leaves free on its disk"},
    setting{"MILLRACE_CACHE_PATHS", text, "auto", 0, 0, "",
            "prefixes of paths whose files are cached as well: '/nas/;/far/'"},
    setting{"MILLRACE_MAX_EXPANSION", integer, "200", 1, 1'000'000, "",
            "times that a compressed shard may grow when it is unpacked"},
    setting{"MILLRACE_LOG", choice, "notice", 0, 0, "quiet|notice|debug",
            "what is printed on stderr in addition to errors"},
    setting{"MILLRACE_TORCH", choice, "on", 0, 0, "on|off",
            "read by ./setup, ./run and ./test only: off builds everything but train/"},
};

// Variables of others that are heeded: proxies, and who we are to object stores.
constexpr std::array<std::string_view, 43> foreign_names = {
    "HOME",
    "NETRC",
    "http_proxy",
    "https_proxy",
    "HTTPS_PROXY",
    "all_proxy",
    "ALL_PROXY",
    "no_proxy",
    "NO_PROXY",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_PROFILE",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_CONFIG_FILE",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_ENDPOINT_URL_STS",
    "AWS_ROLE_ARN",
    "AWS_ROLE_SESSION_NAME",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "AWS_EC2_METADATA_DISABLED",
    "AWS_EC2_METADATA_SERVICE_ENDPOINT",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_OAUTH_ACCESS_TOKEN",
    "STORAGE_EMULATOR_HOST",
    "GCE_METADATA_HOST",
    "AZURE_STORAGE_ACCOUNT",
    "AZURE_STORAGE_KEY",
    "AZURE_STORAGE_SAS_TOKEN",
    "AZURE_STORAGE_CONNECTION_STRING",
    "AZURE_STORAGE_BLOB_ENDPOINT",
    "AIS_ENDPOINT",
    "AIS_AUTHN_TOKEN",
    "HF_TOKEN",
    "HF_ENDPOINT",
    "HF_HOME"};

// "did you mean X? ", where one is near.
std::string did_you_mean(std::string_view name) {
  std::vector<std::string> known;
  known.reserve(std::size(table));
  for (const setting& s : table) known.emplace_back(s.name);
  const std::string near = near_of(name, known, std::string_view("MILLRACE_").size());
  return near.empty() ? "" : fmt::format("did you mean {}? ", near);
}

std::string written(setting_type type, double number) {
  if (type == size) return format_bytes(static_cast<std::size_t>(number));
  return fmt::format("{:g}", number);
}

std::string range_of(const setting& s) {
  if (s.type == choice) return "one of " + std::string(s.choices);
  if (s.type == setting_type::text) return "a text";
  if (s.type == choice_or_integer) {
    return fmt::format("one of {}, or a number from {} to {}", s.choices, s.least, s.most);
  }
  const std::string_view what = s.type == size      ? "a size from "
                                : s.type == seconds ? "seconds from "
                                                    : "a number from ";
  return fmt::format("{}{}{} to {}", s.initial == "auto" ? "auto, or " : "", what,
                     written(s.type, s.least), written(s.type, s.most));
}

// Zero stands for "auto", or for whatever a choice or a text means.
bool is_choice(const setting& s, std::string_view text) {
  return !text.empty() && text.find('|') == std::string_view::npos &&
         fmt::format("|{}|", s.choices).find(fmt::format("|{}|", text)) != std::string::npos;
}

// The number that `text` stands for; nullopt when it is none of the setting's values.
std::optional<double> parse(const setting& s, const std::string& text) {
  if (s.type == choice) return is_choice(s, text) ? std::optional(0.0) : std::nullopt;
  if (s.type == setting_type::text) return text.empty() ? std::nullopt : std::optional(0.0);
  if (s.type == choice_or_integer && is_choice(s, text)) return 0.0;
  if (text == "auto") return s.initial == "auto" ? std::optional(0.0) : std::nullopt;
  double number = 0;
  if (s.type == size) {
    const auto size = parse_bytes(text);
    if (!size) return std::nullopt;
    number = static_cast<double>(*size);
  } else {
    char* end = nullptr;
    number = std::strtod(text.c_str(), &end);
    if (text.empty() || *end != '\0') return std::nullopt;
    if (s.type != seconds && number != static_cast<double>(static_cast<long long>(number))) {
      return std::nullopt;
    }
  }
  return number >= s.least && number <= s.most ? std::optional(number) : std::nullopt;
}

// Switches understand what people write: true, yes and 1 for on; false, no and 0 for off.
std::string canonical(const setting& s, const std::string& text) {
  const bool is_number = s.type == choice_or_integer && parse(s, text).has_value();
  if (s.choices.empty() || is_choice(s, text) || is_number) return text;
  static constexpr std::array<std::string_view, 4> on{"on", "true", "yes", "1"};
  static constexpr std::array<std::string_view, 4> off{"off", "false", "no", "0"};
  const std::string lower = lowered(text);
  for (const auto& words : {on, off}) {
    if (std::ranges::find(words, lower) == words.end()) continue;
    for (const std::string_view word : words) {
      if (is_choice(s, word)) return std::string(word);
    }
  }
  return text;
}

}  // namespace

std::span<const setting> all_settings() {
  return table;
}

settings::settings() {
  for (const setting& s : table) {
    const std::string initial(s.initial);
    values_[std::string(s.name)] = {initial, parse(s, initial).value(), false};
  }
}

result<settings> settings::from_environment(const char* const* environment) {
  settings made;
  for (; *environment != nullptr; ++environment) {
    const std::string_view entry(*environment);
    if (const auto end = entry.find('=');
        std::ranges::find(foreign_names, entry.substr(0, end)) != foreign_names.end()) {
      made.foreign_[std::string(entry.substr(0, end))] = entry.substr(end + 1);
    }
    if (!entry.starts_with(prefix)) continue;
    const auto equals = entry.find('=');
    const auto name = entry.substr(0, equals);
    const std::string given(entry.substr(equals + 1));
    const auto* const known = std::ranges::find(table, name, &setting::name);
    if (known == table.end()) {
      return error(errc::bad_setting, fmt::format("{} is not a variable of millrace", name))
          .hint(did_you_mean(name) + "`millrace env` lists them all");
    }
    if (given.empty() && equals != entry.npos) continue;  // as if it were not set
    const std::string text = canonical(*known, given);
    const auto number = parse(*known, text);
    if (!number) {
      return error(errc::bad_setting, fmt::format("{}='{}' cannot be used", name, redacted(text)))
          .hint("set it to " + range_of(*known) + ", or unset it");
    }
    made.values_[std::string(name)] = {text, *number, true};
  }
  return made;
}

std::span<const std::string_view> foreign_variables() {
  return foreign_names;
}

const settings::value& settings::find(std::string_view name) const {
  const auto it = values_.find(name);
  if (it == values_.end()) {
    throw failure(error(errc::internal, fmt::format("{} is not in the table of settings", name)));
  }
  return it->second;
}

const std::string& settings::text(std::string_view name) const {
  return find(name).text;
}
bool settings::is_set(std::string_view name) const {
  return find(name).set;
}
std::size_t settings::bytes(std::string_view name) const {
  return static_cast<std::size_t>(find(name).number);
}
int settings::integer(std::string_view name) const {
  return static_cast<int>(find(name).number);
}
std::chrono::milliseconds settings::seconds(std::string_view name) const {
  return std::chrono::milliseconds(static_cast<long long>(find(name).number * 1000));
}

}  // namespace millrace
