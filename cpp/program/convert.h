// Rows of weights from one storage format to another, on all threads of a pool.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernels.h"
#include "program/thread_pool.h"

namespace potluck {

// Whole rows as a file has them, one after another; `data` needs no alignment.
struct StoredRows {
  Format format;
  int64_t num_rows;
  int64_t num_columns;
  const uint8_t* data;
  size_t num_bytes;
};

// Whether rows can be converted to `format`: it is one of kTargets, or F32.
bool is_target(Format format);

// Writes `rows` in the format `target` to `out`, of `out_bytes`, which must not overlap the rows.
// Rows of that format already are copied. Other quantized rows are dequantized on the way. The
// result does not depend on the threads; `pool` may be null, then there is one.
//
// Throws Error: sizes that do not match, columns that are not whole blocks, a format that is no
// target; and, naming the first such row, a value that is not finite, or so large that the scale it
// needs is beyond f16. In the latter two cases `out` is not to be used.
void convert_rows(const Kernels& kernels, const StoredRows& rows, Format target, uint8_t* out,
                  size_t out_bytes, ThreadPool* pool);

}  // namespace potluck
