# A compiler for POTLUCK_MACHINE with glibc 2.17, whatever this machine is: zig (POTLUCK_ZIG) brings
# clang, lld, libc++, which it links statically, and the interface of every version of glibc.
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES POTLUCK_MACHINE POTLUCK_ZIG)

set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR ${POTLUCK_MACHINE})
set(CMAKE_CXX_COMPILER ${POTLUCK_ZIG} c++)
set(CMAKE_CXX_COMPILER_TARGET ${POTLUCK_MACHINE}-linux-gnu.2.17)
set(CMAKE_AR ${POTLUCK_ZIG})
set(CMAKE_RANLIB ${POTLUCK_ZIG})
set(CMAKE_CXX_ARCHIVE_CREATE "<CMAKE_AR> ar qc <TARGET> <OBJECTS>")
set(CMAKE_CXX_ARCHIVE_APPEND "<CMAKE_AR> ar q <TARGET> <OBJECTS>")
set(CMAKE_CXX_ARCHIVE_FINISH "<CMAKE_RANLIB> ranlib <TARGET>")

# nanobind's headers call fprintf and do not include what declares it; libstdc++ happens to.
set(CMAKE_CXX_FLAGS_INIT "-include stdio.h")
# What is compiled for a try is not linked: zig would build libc++ for it, in yet another way. It
# links pthreads without being asked.
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
# Without optimization a sanitizer is compiled in.
set(CMAKE_TRY_COMPILE_CONFIGURATION Release)

# Nothing of this machine is linked or included but what is named.
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE BOTH)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
