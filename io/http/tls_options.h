#pragma once

#include <string>

namespace millrace {

// Certificates of HTTPS connections: paths of PEM files.
struct tls_options {
  std::string ca_file = {};      // trusted in addition to the host's authorities; empty: none
  std::string client_cert = {};  // a chain that is shown to servers; empty: none
  std::string client_key = {};   // its private key; empty: in client_cert
};

}  // namespace millrace
