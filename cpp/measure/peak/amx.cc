// Tiles of 16 rows of 64 bytes. Tile registers are named in the instruction, so the rounds are
// written out. Bits of the configuration: Intel SDM volume 1, section 18.1.
#include <immintrin.h>

#include "measure/peak/loops.h"

namespace potluck {
namespace amx {
namespace {

struct TileConfig {
  uint8_t palette;
  uint8_t start_row;
  uint8_t reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};
static_assert(sizeof(TileConfig) == 64, "LDTILECFG reads 64 bytes");

// Gives the calling thread tiles while it lives.
class Tiles {
 public:
  Tiles() {
    TileConfig config{};
    config.palette = 1;
    for (int i = 0; i < 8; ++i) {
      config.row_bytes[i] = 64;
      config.rows[i] = 16;
    }
    _tile_loadconfig(&config);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    _tile_zero(6);
    _tile_zero(7);
  }
  ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
};

}  // namespace

static_assert(kRoundTiles == 6, "the rounds below are six instructions");

void int8_rounds(int64_t num_rounds) {
  const Tiles tiles;
  for (int64_t round = 0; round < num_rounds; ++round) {
    _tile_dpbssd(0, 6, 7);
    _tile_dpbssd(1, 6, 7);
    _tile_dpbssd(2, 6, 7);
    _tile_dpbssd(3, 6, 7);
    _tile_dpbssd(4, 6, 7);
    _tile_dpbssd(5, 6, 7);
  }
}

void bf16_rounds(int64_t num_rounds) {
  const Tiles tiles;
  for (int64_t round = 0; round < num_rounds; ++round) {
    _tile_dpbf16ps(0, 6, 7);
    _tile_dpbf16ps(1, 6, 7);
    _tile_dpbf16ps(2, 6, 7);
    _tile_dpbf16ps(3, 6, 7);
    _tile_dpbf16ps(4, 6, 7);
    _tile_dpbf16ps(5, 6, 7);
  }
}

}  // namespace amx
}  // namespace potluck
