#include "bind/convert_module.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <string>

#include "bind/find_format.h"
#include "dispatch/table.h"
#include "program/convert.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace potluck {
namespace {

using InBytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using OutBytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

}  // namespace

void bind_convert(nb::module_& m) {
  m.def(
      "convert_rows",
      [](const InBytes& source, const std::string& source_format,
         const std::string& target_format, int64_t num_rows, int64_t num_columns,
         const OutBytes& out, ThreadPool* pool) {
        const StoredRows rows = {find_format(source_format), num_rows, num_columns, source.data(),
                                 source.size()};
        const Format target = find_format(target_format);
        nb::gil_scoped_release released;
        convert_rows(*best_kernels(), rows, target, out.data(), out.size(), pool);
      },
      "source"_a, "source_format"_a, "target_format"_a, "num_rows"_a, "num_columns"_a, "out"_a,
      "pool"_a.none());
}

}  // namespace potluck
