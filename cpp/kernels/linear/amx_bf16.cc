// BF16 weights on AMX's bf16 products, for any number of tokens: Intel Sapphire Rapids (2023) and
// later.
#include "simd/lanes_avx512.h"

#include "kernels/linear/amx_bf16.h"
#include "kernels/linear/layout.h"

namespace potluck {
namespace amx {
namespace {

// Panels are read in place: 16 pair lines are a tile.
class StoredTiles {
 public:
  static constexpr int64_t kMaxSteps = kPackedSteps;

  explicit StoredTiles(const Matrix& weight)
      : weight_(weight), panel_bytes_(panel_bytes(weight.format, weight.columns)) {}

  const uint8_t* tiles(int place, int64_t panel, int64_t first_step, int64_t num_columns) {
    const uint8_t* stored = weight_.data + panel * panel_bytes_ + first_step * kStepTileBytes;
    return num_columns % kStepColumns ? filled_up(filled_[place], stored, num_columns) : stored;
  }

 private:
  // A panel's last pair is followed by the next panel. A last column without a partner is in
  // halves.
  static const uint8_t* filled_up(uint8_t* tile, const uint8_t* stored, int64_t num_columns) {
    const int64_t pair_bytes = num_columns / 2 * layout::kLineBytes;
    __builtin_memset(tile, 0, kStepTileBytes);
    __builtin_memcpy(tile, stored, (size_t)pair_bytes);
    if (num_columns % 2)
      for (int64_t r = 0; r < kPanelRows; ++r)
        __builtin_memcpy(tile + pair_bytes + 4 * r, stored + pair_bytes + 2 * r, 2);
    return tile;
  }

  const Matrix& weight_;
  int64_t panel_bytes_;
  alignas(64) uint8_t filled_[kPanelBlock][kStepTileBytes];
};

}  // namespace

void linear_bf16(const LinearArgs& args, int64_t first_panel, int64_t end_panel) {
  StoredTiles source(args.weight);
  multiply_bf16(args, source, first_panel, end_panel);
}

}  // namespace amx
}  // namespace potluck
