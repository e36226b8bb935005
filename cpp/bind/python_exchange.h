// An exchange that is implemented in Python (potluck.types.engine.Exchange).
#pragma once

#include <nanobind/nanobind.h>

#include <vector>

#include "program/exchange.h"

namespace potluck {

// Called without the GIL, which it acquires for each call. Exceptions of the object propagate
// through the runner as nanobind::python_error, and are raised again in the runner's caller.
class PythonExchange final : public Exchange {
 public:
  // Used for one step; created and destroyed with the GIL held. The object may be None, in which
  // case it is not called.
  explicit PythonExchange(nanobind::handle object);

  void exchange(const std::vector<SentBytes>& sent,
                const std::vector<ReceivedBytes>& received) override;

 private:
  // Between two calls, the weights of a layer pass through the caches, so everything that a call
  // needs from Python comes from memory, and is kept small.
  nanobind::object call_;     // the object's method
  nanobind::object release_;  // memoryview.release
  nanobind::object nothing_;  // an empty view
};

}  // namespace potluck
