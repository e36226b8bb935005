// What the runner throws. The binding turns each into a Python exception.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace potluck {

// A call that was refused, or a program that makes no sense. Nothing has been changed, unless the
// function that throws it says otherwise.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The operating system gave no memory.
class OutOfMemoryError : public Error {
 public:
  OutOfMemoryError(uint64_t needed_bytes, const std::string& what_for)
      : Error("no memory for " + what_for + " (" + std::to_string(needed_bytes) + " bytes)") {}
};

// The model computed something that is not a number.
class NonFiniteError : public Error {
 public:
  using Error::Error;
};

}  // namespace potluck
