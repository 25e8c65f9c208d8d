#pragma once

#include <optional>
#include <string>

#include "io/source.h"

namespace millrace {

// The output of a shell command: "pipe:COMMAND", only where source_options::allow_pipe. The command
// has a process group of its own, which is killed when the source ends early; its status is checked
// after the end of its output, and the end of what it wrote to stderr is in the error's message.
// One that writes nothing for source_options::read_timeout fails.
source_factory pipe_source_factory();

// The URL or path that gives the same bytes without a process, for the commands that people use:
// curl, wget, gsutil cat, gcloud storage cat, aws s3 cp, az storage blob download, cat, mbuffer.
// Pure.
std::optional<std::string> native_url(const std::string& command);

}  // namespace millrace
