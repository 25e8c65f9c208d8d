# The version, from the header that programs read it from.
file(STRINGS ${CMAKE_CURRENT_LIST_DIR}/../include/millrace/version.h MILLRACE_VERSION REGEX "define MILLRACE_VERSION \"")
string(REGEX MATCH "[0-9.]+" MILLRACE_VERSION "${MILLRACE_VERSION}")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS include/millrace/version.h)
