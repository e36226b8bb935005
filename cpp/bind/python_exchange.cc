#include "bind/python_exchange.h"

namespace nb = nanobind;

namespace potluck {
namespace {

nb::object view_of(const void* data, uint64_t num_bytes, int flags) {
  auto* memory = const_cast<char*>(static_cast<const char*>(data));
  PyObject* view = PyMemoryView_FromMemory(memory, static_cast<Py_ssize_t>(num_bytes), flags);
  if (view == nullptr) throw nb::python_error();
  return nb::steal(view);
}

// The views of one call. They are released after it: using one later raises ValueError.
class Views {
 public:
  Views(nb::handle release, nb::handle nothing) : release_(release), nothing_(nothing) {}
  ~Views() {
    for (nb::handle view : list_) {
      if (view.is(nothing_)) continue;
      PyObject* done = PyObject_CallFunctionObjArgs(release_.ptr(), view.ptr(), nullptr);
      if (done == nullptr) PyErr_Clear();  // a view of the view exists
      Py_XDECREF(done);
    }
  }
  Views(const Views&) = delete;
  Views& operator=(const Views&) = delete;

  void add(const void* data, uint64_t num_bytes, int flags) {
    list_.append(num_bytes == 0 ? nb::borrow(nothing_) : view_of(data, num_bytes, flags));
  }
  const nb::list& list() const { return list_; }

 private:
  const nb::handle release_;
  const nb::handle nothing_;
  nb::list list_;
};

}  // namespace

PythonExchange::PythonExchange(nb::handle object) {
  if (object.is_none()) return;
  static char nothing[1];
  call_ = object.attr("exchange");
  nothing_ = view_of(nothing, 0, PyBUF_WRITE);
  release_ = nothing_.type().attr("release");
}

void PythonExchange::exchange(const std::vector<SentBytes>& sent,
                              const std::vector<ReceivedBytes>& received) {
  const nb::gil_scoped_acquire acquired;
  Views out(release_, nothing_), in(release_, nothing_);
  for (const SentBytes& each : sent) out.add(each.data, each.num_bytes, PyBUF_READ);
  for (const ReceivedBytes& each : received) in.add(each.data, each.num_bytes, PyBUF_WRITE);
  call_(out.list(), in.list());
}

}  // namespace potluck
