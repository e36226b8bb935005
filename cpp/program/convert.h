// Converts rows of weights from one storage format to another, on all threads of a pool.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernels.h"
#include "program/thread_pool.h"

namespace potluck {

// Whole rows in the file's layout, contiguous; `data` needs no alignment.
struct StoredRows {
  Format format;
  int64_t num_rows;
  int64_t num_columns;
  const uint8_t* data;
  size_t num_bytes;
};

// Whether rows can be converted to `format`: it must be in kTargets, or F32.
bool is_target(Format format);

// Writes `rows` in the format `target` to `out`, of `out_bytes`, which must not overlap the rows.
// Rows that already have that format are copied. Other quantized rows are dequantized first. The
// result does not depend on the number of threads; if `pool` is null, the calling thread is used.
//
// Throws Error for mismatched sizes, columns that are not whole blocks, and a format that is not a
// target; and, naming the first such row, for a value that is not finite, or so large that its
// scale exceeds f16. In the last two cases the contents of `out` are unspecified.
void convert_rows(const Kernels& kernels, const StoredRows& rows, Format target, uint8_t* out,
                  size_t out_bytes, ThreadPool* pool);

}  // namespace potluck
