# In place of CMake's own: a Python that is not on this machine, of which there are only headers.
#
#   POTLUCK_WHEEL_PYTHON          its version, 3.11
#   POTLUCK_WHEEL_STABLE_ABI      whether modules are for the stable ABI
#   POTLUCK_WHEEL_INCLUDE_DIRS    its headers
#   Python_EXECUTABLE             the Python of this machine, which has nanobind
#
# What nanobind and the core ask for, and no more.
set(Python_FOUND TRUE)
set(Python_VERSION ${POTLUCK_WHEEL_PYTHON})
set(Python_INTERPRETER_ID Python)
set(Python_INCLUDE_DIRS ${POTLUCK_WHEEL_INCLUDE_DIRS})
string(REPLACE . "" _python_digits ${POTLUCK_WHEEL_PYTHON})
set(Python_SOABI cpython-${_python_digits}-${CMAKE_SYSTEM_PROCESSOR}-linux-gnu)
set(Python_SOSABI abi3)

if(NOT TARGET Python::Interpreter)
  add_executable(Python::Interpreter IMPORTED)
  set_target_properties(Python::Interpreter PROPERTIES IMPORTED_LOCATION ${Python_EXECUTABLE})
  add_library(Python::Module INTERFACE IMPORTED)
  target_include_directories(Python::Module INTERFACE ${Python_INCLUDE_DIRS})
  if(POTLUCK_WHEEL_STABLE_ABI)
    add_library(Python::SABIModule INTERFACE IMPORTED)
    target_include_directories(Python::SABIModule INTERFACE ${Python_INCLUDE_DIRS})
  endif()
endif()
