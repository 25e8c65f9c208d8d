#pragma once

#include <memory>

#include "io/http_client.h"
#include "io/source.h"

namespace millrace {

// Objects on HTTP/1.1 servers: one streaming GET, read ahead like a file; a cut connection is
// resumed at the byte (http_transfer). Connections are kept alive between the sources of one
// factory, which serves one I/O thread.
source_factory http_source_factory(std::shared_ptr<http_client> client);

}  // namespace millrace
