# Run by cpack between installing the components and making the packages: strips what is machine code, and gives
# each package its licence and changelogs. The same bytes for the same commit: gzip without names and times.
set(version "${CPACK_PACKAGE_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE}")
execute_process(COMMAND git -C "${CPACK_PERDURE_SOURCE_DIR}" log -1 --format=%cD
  OUTPUT_VARIABLE date OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
if(failed)
  set(date "Thu, 01 Jan 1970 00:00:00 +0000")
endif()
set(debian_changelog "${CPACK_TEMPORARY_DIRECTORY}/changelog.Debian")
file(WRITE "${debian_changelog}" "perdure (${version}) unstable; urgency=medium

  * Version ${CPACK_PACKAGE_VERSION}: see changelog.gz.

 -- ${CPACK_PACKAGE_CONTACT}  ${date}
")

foreach(component IN LISTS CPACK_COMPONENTS_ALL)
  set(usr "${CPACK_TEMPORARY_DIRECTORY}/${component}/usr")
  if(NOT IS_DIRECTORY "${usr}")
    message(FATAL_ERROR "component ${component} has installed nothing to ${usr}")
  endif()
  file(GLOB_RECURSE files LIST_DIRECTORIES false "${usr}/bin/*" "${usr}/lib/*" "${usr}/libexec/*")
  foreach(file IN LISTS files)
    if(IS_SYMLINK "${file}")
      continue()
    endif()
    file(READ "${file}" magic LIMIT 4 HEX)
    if(file MATCHES "\\.a$")
      execute_process(COMMAND strip --strip-debug --enable-deterministic-archives "${file}"
        COMMAND_ERROR_IS_FATAL ANY)
    elseif(magic STREQUAL "7f454c46")
      execute_process(COMMAND strip --strip-unneeded --remove-section=.comment "${file}"
        COMMAND_ERROR_IS_FATAL ANY)
    endif()
  endforeach()

  string(TOUPPER ${component} upper)
  set(doc "${usr}/share/doc/${CPACK_DEBIAN_${upper}_PACKAGE_NAME}")
  file(MAKE_DIRECTORY "${doc}")
  file(CHMOD "${doc}" DIRECTORY_PERMISSIONS
    OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
  file(COPY_FILE "${CPACK_PERDURE_SOURCE_DIR}/tools/package/copyright" "${doc}/copyright")
  execute_process(COMMAND gzip -9n OUTPUT_FILE "${doc}/changelog.gz"
    INPUT_FILE "${CPACK_PERDURE_SOURCE_DIR}/CHANGELOG.md" COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND gzip -9n OUTPUT_FILE "${doc}/changelog.Debian.gz"
    INPUT_FILE "${debian_changelog}" COMMAND_ERROR_IS_FATAL ANY)
  file(GLOB pages "${usr}/share/man/man1/*.1")
  foreach(page IN LISTS pages)
    execute_process(COMMAND gzip -9n "${page}" COMMAND_ERROR_IS_FATAL ANY)
  endforeach()
endforeach()
