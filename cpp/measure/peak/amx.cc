// Tiles of 16 rows of 64 bytes. Tile registers are named in the instruction, so the rounds are
// written out.
#include "kernels/linear/amx_tiles.h"
#include "measure/peak/loops.h"

namespace potluck {
namespace amx {
namespace {

// Provides the calling thread with zeroed tiles during its lifetime.
class Tiles {
 public:
  Tiles() {
    TileConfig config = {};
    config.palette = 1;
    for (int i = 0; i < 8; ++i) {
      config.row_bytes[i] = kTileRowBytes;
      config.rows[i] = kTileRows;
    }
    configure_tiles(config);
  }
  ~Tiles() { release_tiles(); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
};

}  // namespace

static_assert(kRoundTiles == 6, "the rounds below are six instructions");

void int8_rounds(int64_t num_rounds) {
  const Tiles tiles;
  for (int64_t round = 0; round < num_rounds; ++round) {
    dot_i8<0, 6, 7>();
    dot_i8<1, 6, 7>();
    dot_i8<2, 6, 7>();
    dot_i8<3, 6, 7>();
    dot_i8<4, 6, 7>();
    dot_i8<5, 6, 7>();
  }
}

void bf16_rounds(int64_t num_rounds) {
  const Tiles tiles;
  for (int64_t round = 0; round < num_rounds; ++round) {
    dot_bf16<0, 6, 7>();
    dot_bf16<1, 6, 7>();
    dot_bf16<2, 6, 7>();
    dot_bf16<3, 6, 7>();
    dot_bf16<4, 6, 7>();
    dot_bf16<5, 6, 7>();
  }
}

}  // namespace amx
}  // namespace potluck
