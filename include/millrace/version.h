// The version of millrace, by semver.org: what may change from which to which is in
// docs/compatibility.md.
#pragma once

// The first part of the version.
#define MILLRACE_VERSION_MAJOR 0
// The second part.
#define MILLRACE_VERSION_MINOR 1
// The third part.
#define MILLRACE_VERSION_PATCH 0
// All of it, as a string.
#define MILLRACE_VERSION "0.1.0"
// To compare: MILLRACE_VERSION_NUMBER >= 1'02'03 is version 1.2.3 or a later one.
#define MILLRACE_VERSION_NUMBER \
  (MILLRACE_VERSION_MAJOR * 10000 + MILLRACE_VERSION_MINOR * 100 + MILLRACE_VERSION_PATCH)
