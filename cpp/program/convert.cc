#include "program/convert.h"

#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>

#include "program/error.h"

namespace potluck {
namespace {

// Rows are processed in pieces, of whole blocks of every format, whose float32 form fits in the L1
// cache.
constexpr int64_t kPieceColumns = 2048;
// The approximate cost per column in multiply-adds, for parallel_ranges: copying it, or searching
// scales (q4_k.h and q6_k.h examine each value about 20 times, with ten operations).
constexpr int64_t kPlainWork = 4;
constexpr int64_t kSearchWork = 200;

struct Piece {
  int64_t row, first_column, num_columns;
};

// The pieces of all rows, row by row.
class Pieces {
 public:
  explicit Pieces(const StoredRows& rows)
      : rows_(rows), per_row_((rows.num_columns + kPieceColumns - 1) / kPieceColumns) {}

  int64_t count() const { return rows_.num_rows * per_row_; }
  Piece at(int64_t index) const {
    const int64_t column = index % per_row_ * kPieceColumns;
    const int64_t left = rows_.num_columns - column;
    return {index / per_row_, column, left < kPieceColumns ? left : kPieceColumns};
  }

 private:
  const StoredRows& rows_;
  const int64_t per_row_;
};

// Calls function(first, end, worker) on ranges of pieces.
template <typename F>
void for_pieces(const Pieces& pieces, int64_t work_per_column, ThreadPool* pool,
                const F& function) {
  if (pool == nullptr) return function(int64_t{0}, pieces.count(), 0);
  ThreadPool::Session session(*pool);
  parallel_ranges(session, pieces.count(), 1, kPieceColumns * work_per_column, function);
}

// The first rejected row, whichever thread finds it.
class FirstRow {
 public:
  void note(int64_t row) {
    int64_t first = row_.load(std::memory_order_relaxed);
    while (row < first && !row_.compare_exchange_weak(first, row, std::memory_order_relaxed)) {
    }
  }
  void check(const std::string& what) const {
    if (row_.load() != kNone) throw Error("row " + std::to_string(row_.load()) + " " + what);
  }

 private:
  static constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  std::atomic<int64_t> row_{kNone};
};

int64_t bytes_of(const FormatInfo& info, int64_t num_columns) {
  return num_columns / info.block_columns * info.block_bytes;
}

void check_size(Format format, int64_t num_rows, int64_t num_columns, size_t num_bytes,
                const std::string& what) {
  const FormatInfo info = format_info(format);
  if (num_columns % info.block_columns != 0)
    throw Error(std::to_string(num_columns) + " columns are not whole blocks of " + info.name);
  int64_t row_bytes, expected;
  if (__builtin_mul_overflow(num_columns / info.block_columns, info.block_bytes, &row_bytes) ||
      __builtin_mul_overflow(num_rows, row_bytes, &expected) ||
      static_cast<uint64_t>(expected) != num_bytes)
    throw Error(what + " has " + std::to_string(num_bytes) + " bytes, which are not " +
                std::to_string(num_rows) + " rows of " + std::to_string(num_columns) + " " +
                info.name + " columns");
}

void check_rows(const StoredRows& rows) {
  if (rows.num_rows < 0 || rows.num_columns < 1)
    throw Error("there are no " + std::to_string(rows.num_rows) + " rows of " +
                std::to_string(rows.num_columns) + " columns");
  check_size(rows.format, rows.num_rows, rows.num_columns, rows.num_bytes, "source");
}

const uint8_t* stored_at(const StoredRows& rows, const Piece& piece) {
  const FormatInfo info = format_info(rows.format);
  return rows.data + piece.row * bytes_of(info, rows.num_columns) +
         bytes_of(info, piece.first_column);
}

// Converts one piece to float32, and returns max |x|: infinite or NaN if not all are finite.
float load_piece(const Kernels& kernels, const StoredRows& rows, const Piece& piece,
                 float out[kPieceColumns]) {
  const uint8_t* stored = stored_at(rows, piece);
  if (!is_quantized(rows.format))
    return kernels.widen[static_cast<int>(rows.format)](stored, piece.num_columns, out);
  float values[kPieceColumns];
  dequantize(rows.format, stored, piece.num_columns, values);
  return kernels.widen[static_cast<int>(Format::F32)](reinterpret_cast<const uint8_t*>(values),
                                                      piece.num_columns, out);
}

int target_index(Format format) {
  int index = 0;
  while (index < kNumTargets && kTargets[index] != format) ++index;
  return index;
}

}  // namespace

bool is_target(Format format) {
  return format == Format::F32 || target_index(format) < kNumTargets;
}

void convert_rows(const Kernels& kernels, const StoredRows& rows, Format target, uint8_t* out,
                  size_t out_bytes, ThreadPool* pool) {
  const FormatInfo info = format_info(target);
  if (!is_target(target)) throw Error(std::string("rows cannot be converted to ") + info.name);
  check_rows(rows);
  check_size(target, rows.num_rows, rows.num_columns, out_bytes, "out");
  if (rows.data < out + out_bytes && out < rows.data + rows.num_bytes)
    throw Error("source and out overlap");
  if (rows.format == target) {
    if (out_bytes > 0) std::memcpy(out, rows.data, out_bytes);
    return;
  }

  const bool is_plain = target == Format::F32;
  const auto encode = is_plain ? nullptr : kernels.encode[target_index(target)];
  const bool is_search = target == Format::Q4_K || target == Format::Q6_K ||
                         target == Format::Q3_K || target == Format::IQ4_NL;
  const int64_t row_bytes = bytes_of(info, rows.num_columns);
  const Pieces pieces(rows);
  FirstRow not_finite, too_large;
  for_pieces(pieces, is_search ? kSearchWork : kPlainWork, pool,
             [&](int64_t first, int64_t end, int) {
               float x[kPieceColumns];
               for (int64_t i = first; i < end; ++i) {
                 const Piece piece = pieces.at(i);
                 if (!std::isfinite(load_piece(kernels, rows, piece, x))) {
                   not_finite.note(piece.row);
                   continue;
                 }
                 uint8_t* blocks =
                     out + piece.row * row_bytes + bytes_of(info, piece.first_column);
                 if (is_plain) {
                   std::memcpy(blocks, x, static_cast<size_t>(piece.num_columns) * sizeof(float));
                 } else if (!encode(x, piece.num_columns, blocks)) {
                   too_large.note(piece.row);
                 }
               }
             });
  not_finite.check("has a value that is not finite");
  too_large.check(std::string("has a value that is too large for ") + info.name);
}

}  // namespace potluck
