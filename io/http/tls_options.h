#pragma once

#include <string>

namespace millrace {

struct tls_options {
  std::string ca_file = {};      // PEM, trusted in addition to the host's authorities; empty: none
  std::string client_cert = {};  // PEM, a chain; empty: none
  std::string client_key = {};   // PEM; empty: in client_cert
};

}  // namespace millrace
