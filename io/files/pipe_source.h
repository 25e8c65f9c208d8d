#pragma once

#include <optional>
#include <string>

#include "io/source.h"

namespace millrace {

// The output of a shell command: "pipe:COMMAND", only if source_options::allow_pipe is set. The
// command has a process group of its own, which is killed when the source ends early. Its status is
// checked after the end of its output; the error's message contains the end of what it wrote to
// stderr. A command that writes nothing for source_options::read_timeout fails.
source_factory pipe_source_factory();

// The URL or path that gives the same bytes without a process, for commonly used commands: curl,
// wget, gsutil cat, gcloud storage cat, aws s3 cp, az storage blob download, cat, mbuffer. Pure.
std::optional<std::string> native_url(const std::string& command);

}  // namespace millrace
