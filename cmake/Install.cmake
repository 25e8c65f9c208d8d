# cmake --install, and find_package(millrace) for what is installed.
include(CMakePackageConfigHelpers)
install(DIRECTORY include/millrace DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT millrace NAMESPACE millrace:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/millrace
  FILE millraceTargets.cmake)
configure_package_config_file(cmake/millraceConfig.cmake.in ${CMAKE_BINARY_DIR}/millraceConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/millrace)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/millraceConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/millraceConfig.cmake ${CMAKE_BINARY_DIR}/millraceConfigVersion.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/millrace)
