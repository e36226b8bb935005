// Checks the emulator of AMX: against numbers worked out by hand, on what the hardware refuses, and
// its SIGILL handler against itself, or against the CPU where that has AMX.
//
//   amx_emulator_check            every comparison; the exit status is 1 if one fails
//   amx_emulator_check faults     names what can be refused, a line each
//   amx_emulator_check FAULT      does that, and so ends by SIGABRT
//   amx_emulator_check where      "emulator" or "silicon": what the instructions below ran on
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "check/amx_emulator.h"
#include "dispatch/amx_support.h"

namespace {

using namespace potluck;

struct alignas(64) Config {
  uint8_t bytes[64] = {1};
  Config& tile(int index, int rows, int row_bytes) {
    bytes[48 + index] = static_cast<uint8_t>(rows);
    bytes[16 + 2 * index] = static_cast<uint8_t>(row_bytes);
    bytes[17 + 2 * index] = static_cast<uint8_t>(row_bytes >> 8);
    return *this;
  }
};

struct alignas(64) TileBytes {
  uint8_t bytes[16][64] = {};
  template <class T>
  T get(int row, int index) const {
    T value;
    memcpy(&value, bytes[row] + static_cast<size_t>(index) * sizeof(T), sizeof(T));
    return value;
  }
  template <class T>
  void set(int row, int index, T value) {
    memcpy(bytes[row] + static_cast<size_t>(index) * sizeof(T), &value, sizeof(T));
  }
};

bool all_ok = true;

void expect(bool condition, const std::string& what) {
  if (!condition) printf("WRONG: %s\n", what.c_str());
  all_ok = all_ok && condition;
}

// Instructions as bytes, as in the manual and independent of any assembler, with the registers that
// they name: the base in rax (0), the stride in rcx (1).
using Code = std::vector<uint8_t>;
const Code kLoadConfig = {0xc4, 0xe2, 0x78, 0x49, 0x00};
const Code kStoreConfig = {0xc4, 0xe2, 0x79, 0x49, 0x00};
const Code kRelease = {0xc4, 0xe2, 0x78, 0x49, 0xc0};
Code zero(int tile) {
  return {0xc4, 0xe2, 0x7b, 0x49, static_cast<uint8_t>(0xc0 | tile << 3)};
}
Code load(int tile) {
  return {0xc4, 0xe2, 0x7b, 0x4b, static_cast<uint8_t>(0x04 | tile << 3), 0x08};
}
Code store(int tile) {
  return {0xc4, 0xe2, 0x7a, 0x4b, static_cast<uint8_t>(0x04 | tile << 3), 0x08};
}
enum class Product { uu, us, su, ss, bf16 };
Code product(Product kind, int out, int a, int b) {
  const int pp = kind == Product::bf16 ? 2 : static_cast<int>(kind);
  return {0xc4, 0xe2, static_cast<uint8_t>((~b & 15) << 3 | pp),
          static_cast<uint8_t>(kind == Product::bf16 ? 0x5c : 0x5e),
          static_cast<uint8_t>(0xc0 | out << 3 | a)};
}

void emulate(const Code& code, const void* base = nullptr, uint64_t stride = 64) {
  AmxRegisters registers = {reinterpret_cast<uint64_t>(base), stride};
  expect(emulate_amx(code.data(), registers) == static_cast<int>(code.size()), "its length");
}

void configure(const Config& config) { emulate(kLoadConfig, config.bytes); }

TileBytes stored(int tile) {
  TileBytes bytes;
  memset(bytes.bytes, 0xee, sizeof bytes.bytes);
  emulate(store(tile), bytes.bytes);
  return bytes;
}

// C 2 x 3, A 2 x 8 bytes, B 2 x 3 groups of 4 bytes.
Config small_config() { return Config().tile(0, 2, 12).tile(1, 2, 8).tile(2, 2, 12); }

void check_configuration() {
  const Config config = small_config();
  configure(config);
  Config read;
  memset(read.bytes, 0xee, 64);
  emulate(kStoreConfig, read.bytes);
  expect(memcmp(read.bytes, config.bytes, 64) == 0, "a configuration that was loaded");
  expect(amx_tiles_configured(), "tiles are configured");
  std::thread([] { expect(!amx_tiles_configured(), "another thread has its own tiles"); }).join();
  emulate(kRelease);
  expect(!amx_tiles_configured(), "released tiles are not configured");
  emulate(kStoreConfig, read.bytes);
  expect(memcmp(read.bytes, Config().tile(0, 0, 0).bytes + 1, 1) == 0 && read.bytes[0] == 0,
         "the initial configuration is zeros");
}

void check_memory() {
  configure(small_config());
  uint8_t rows[2 * 100];
  for (int i = 0; i < 200; ++i) rows[i] = static_cast<uint8_t>(i);
  emulate(load(0), rows, 100);
  const TileBytes tile = stored(0);
  expect(tile.bytes[0][0] == 0 && tile.bytes[0][11] == 11 && tile.bytes[1][0] == 100 &&
             tile.bytes[1][11] == 111,
         "rows lie a stride apart");
  expect(tile.bytes[0][12] == 0xee && tile.bytes[2][0] == 0xee, "no more than the tile is stored");
  // tileloadd 3(%r8,%r9,4), %tmm0: a displacement of 8 bits, upper registers and a scale.
  AmxRegisters registers = {};
  registers[8] = reinterpret_cast<uint64_t>(rows);
  registers[9] = 25;
  const Code scaled = {0xc4, 0x82, 0x7b, 0x4b, 0x44, 0x88, 0x03};
  expect(emulate_amx(scaled.data(), registers) == 7, "the length with a displacement");
  expect(stored(0).bytes[0][0] == 3 && stored(0).bytes[1][0] == 103, "base, scale, displacement");
  // tileloadd 0x64(%rax,%rcx,1), %tmm0 with 32 bits of displacement.
  const Code wide = {0xc4, 0xe2, 0x7b, 0x4b, 0x84, 0x08, 0x64, 0, 0, 0};
  emulate(wide, rows, 0);
  expect(stored(0).bytes[0][0] == 100 && stored(0).bytes[1][0] == 100, "a stride of 0");
  emulate(zero(0));
  expect(stored(0).bytes[1][11] == 0, "tilezero");
  const Code nop = {0x90}, vmovups = {0xc4, 0xe1, 0x78, 0x10, 0x00};
  expect(emulate_amx(nop.data(), registers) == 0 && emulate_amx(vmovups.data(), registers) == 0,
         "other instructions are not AMX's");
}

// A row 0: 1 2 3 4 | 5 6 7 8, row 1: 255 (or -1) four times, then 0. B row 0: columns 1 1 1 1, 128
// (or -128) and three 0, 2 0 0 0; row 1: 1 0 0 0, 0, 0 0 0 255 (or -1). C starts at 1000 in (0, 0).
void check_bytes(Product kind, const int (&expected)[2][3]) {
  configure(small_config());
  TileBytes a, b, c;
  for (int i = 0; i < 8; ++i) a.bytes[0][i] = static_cast<uint8_t>(i + 1);
  memset(a.bytes[1], 255, 4);
  const uint8_t upper[12] = {1, 1, 1, 1, 128, 0, 0, 0, 2, 0, 0, 0};
  const uint8_t lower[12] = {1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255};
  memcpy(b.bytes[0], upper, 12);
  memcpy(b.bytes[1], lower, 12);
  c.set(0, 0, int32_t{1000});
  emulate(load(0), c.bytes);
  emulate(load(1), a.bytes);
  emulate(load(2), b.bytes);
  emulate(product(kind, 0, 1, 2));
  const TileBytes made = stored(0);
  for (int m = 0; m < 2; ++m)
    for (int n = 0; n < 3; ++n)
      expect(made.get<int32_t>(m, n) == expected[m][n],
             "product " + std::to_string(static_cast<int>(kind)) + " at " + std::to_string(m) +
                 ", " + std::to_string(n) + ": " + std::to_string(made.get<int32_t>(m, n)));
}

uint16_t bf16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  return static_cast<uint16_t>(bits >> 16);
}

// One row, two pairs: c + ((a0 b0 + a2 b2) + (a1 b1 + a3 b3)), each chain by fma.
float one_bf16(float c, const float (&a)[4], const float (&b)[4]) {
  configure(Config().tile(0, 1, 4).tile(1, 1, 8).tile(2, 2, 4));
  TileBytes x, y, sum;
  for (int i = 0; i < 4; ++i) {
    x.set(0, i, bf16(a[i]));
    y.set(i / 2, i % 2, bf16(b[i]));
  }
  sum.set(0, 0, c);
  emulate(load(0), sum.bytes);
  emulate(load(1), x.bytes);
  emulate(load(2), y.bytes);
  emulate(product(Product::bf16, 0, 1, 2));
  return stored(0).get<float>(0, 0);
}

void check_bf16() {
  expect(one_bf16(10, {1, 2, 3, 4}, {5, 6, 7, 8}) == 80, "5 + 12 + 21 + 32 on 10");
  // In one chain 2^24 + 1 would lose the 1 twice; of the odd ones the sum is 2.
  expect(one_bf16(0, {0x1p24f, 1, 0, 1}, {1, 1, 0, 1}) == 0x1p24f + 2, "even and odd sums apart");
  // The chains are summed before C is added: 2^24 + (1 + 1), and not (2^24 + 1) + 1.
  expect(one_bf16(0x1p24f, {1, 1, 0, 0}, {1, 1, 0, 0}) == 0x1p24f + 2, "C comes last");
  // A product of 2^-130 alone would be 0; an fma adds it to 2^-126 before it rounds.
  expect(one_bf16(0, {0x1p-70f, 0, 0x1p-70f, 0}, {0x1p-56f, 0, 0x1p-60f, 0}) ==
             0x1p-126f + 0x1p-130f,
         "products are not rounded");
  const float small = 0x1p-127f;  // subnormal
  expect(one_bf16(0, {small, 0, 0, 0}, {0x1p10f, 0, 0, 0}) == 0, "a subnormal factor is 0");
  expect(one_bf16(small, {0, 0, 0, 0}, {1, 1, 1, 1}) == 0, "a subnormal sum is 0");
  expect(one_bf16(0, {0x1p-70f, 0, 0, 0}, {0x1p-60f, 0, 0, 0}) == 0, "a subnormal result is 0");
  expect(one_bf16(0, {0x1p-70f, 0, 0, 0}, {0x1p-56f, 0, 0, 0}) == 0x1p-126f, "the least normal");
  expect(isnan(one_bf16(0, {INFINITY, 0, 0, 0}, {0, 0, 0, 0})), "inf * 0");
  expect(one_bf16(1, {INFINITY, 0, 0, 0}, {1, 0, 0, 0}) == INFINITY, "inf");
  volatile float tiny = 0x1p-130f;
  expect(tiny * 0.5f == 0x1p-131f, "the thread's own arithmetic keeps subnormals");
}

// The result of the CPU for the same bytes, native or through the handler. The tiles are 16 x 64.
void run_here(Product kind, TileBytes& c, const TileBytes& a, const TileBytes& b) {
  const int64_t stride = 64;
  Config config;
  for (int tile = 0; tile < 3; ++tile) config.tile(tile, 16, 64);
  __asm__ volatile("ldtilecfg %0" ::"m"(config) : "memory");
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm0" ::"r"(c.bytes), "r"(stride) : "memory");
  __asm__ volatile("tileloaddt1 (%0,%1,1), %%tmm1" ::"r"(a.bytes), "r"(stride) : "memory");
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm2" ::"r"(b.bytes), "r"(stride) : "memory");
  switch (kind) {
    case Product::uu: __asm__ volatile("tdpbuud %%tmm2, %%tmm1, %%tmm0" ::: "memory"); break;
    case Product::us: __asm__ volatile("tdpbusd %%tmm2, %%tmm1, %%tmm0" ::: "memory"); break;
    case Product::su: __asm__ volatile("tdpbsud %%tmm2, %%tmm1, %%tmm0" ::: "memory"); break;
    case Product::ss: __asm__ volatile("tdpbssd %%tmm2, %%tmm1, %%tmm0" ::: "memory"); break;
    case Product::bf16: __asm__ volatile("tdpbf16ps %%tmm2, %%tmm1, %%tmm0" ::: "memory"); break;
  }
  __asm__ volatile("tilestored %%tmm0, (%0,%1,1)" ::"r"(c.bytes), "r"(stride) : "memory");
  __asm__ volatile("tilezero %%tmm0" ::: "memory");
  __asm__ volatile("tilerelease" ::: "memory");
}

// Arbitrary bits are valid inputs of every product. A NaN sum may have any payload.
void check_against_this_machine() {
  uint64_t state = 0x9e3779b97f4a7c15ull;
  const auto fill = [&state](TileBytes& tile, bool tame) {
    for (auto& row : tile.bytes)
      for (int i = 0; i < 64; i += 2) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        uint16_t bits = static_cast<uint16_t>(state >> 40);
        // bf16 from 2^-10 to 2^5, so that not all sums are infinite.
        if (tame) bits = static_cast<uint16_t>((bits & 0x807f) | (117 + bits % 16) << 7);
        memcpy(row + i, &bits, 2);
      }
  };
  for (int round = 0; round < 40; ++round) {
    for (Product kind :
         {Product::uu, Product::us, Product::su, Product::ss, Product::bf16}) {
      TileBytes a, b, c;
      const bool tame = kind == Product::bf16 && round % 4 != 0;
      for (TileBytes* tile : {&a, &b, &c}) fill(*tile, tame);
      TileBytes here = c;
      run_here(kind, here, a, b);
      configure(Config().tile(0, 16, 64).tile(1, 16, 64).tile(2, 16, 64));
      emulate(load(0), c.bytes);
      emulate(load(1), a.bytes);
      emulate(load(2), b.bytes);
      emulate(product(kind, 0, 1, 2));
      const TileBytes emulated = stored(0);
      emulate(kRelease);
      for (int m = 0; m < 16; ++m)
        for (int n = 0; n < 16; ++n) {
          const bool both_nan = kind == Product::bf16 && isnan(here.get<float>(m, n)) &&
                                isnan(emulated.get<float>(m, n));
          expect(both_nan || here.get<uint32_t>(m, n) == emulated.get<uint32_t>(m, n),
                 "the emulator and this machine differ");
        }
    }
  }
}

std::map<std::string, std::function<void()>> faults() {
  const auto load_config = [](Config config) { return [config] { configure(config); }; };
  const auto after = [](Config config, Code code) {
    return [config, code] {
      configure(config);
      uint8_t room[64 * 16] = {};
      emulate(code, room);
    };
  };
  Config palette, start_row, reserved, ninth, last;
  palette.bytes[0] = 2;
  start_row.bytes[1] = 1;
  reserved.bytes[15] = 1;
  ninth.tile(8, 1, 4);
  last.bytes[63] = 1;
  const Config three = Config().tile(0, 2, 12).tile(1, 2, 8).tile(2, 2, 12);
  const Code ss = product(Product::ss, 0, 1, 2);
  return {
      {"palette", load_config(palette)},
      {"start_row", load_config(start_row)},
      {"reserved", load_config(reserved)},
      {"ninth_tile", load_config(ninth)},
      {"last_byte", load_config(last)},
      {"rows", load_config(Config().tile(0, 17, 4))},
      {"row_bytes", load_config(Config().tile(0, 1, 65))},
      {"no_rows", load_config(Config().tile(0, 0, 4))},
      {"no_row_bytes", load_config(Config().tile(0, 4, 0))},
      {"no_configuration", [] { emulate(zero(0)); }},
      {"load_of_no_tile", after(three, load(3))},
      {"store_of_no_tile", after(three, store(3))},
      {"product_of_no_tile", after(three, product(Product::ss, 0, 1, 3))},
      {"one_tile_twice", after(Config().tile(0, 2, 8).tile(1, 2, 8), product(Product::ss, 0, 1, 1))},
      {"rows_differ", after(Config(three).tile(0, 1, 12), ss)},
      {"columns_differ", after(Config(three).tile(0, 2, 16), ss)},
      {"inner_differs", after(Config(three).tile(2, 1, 12), product(Product::bf16, 0, 1, 2))},
      {"part_of_a_word", after(Config(three).tile(1, 2, 7), ss)},
  };
}

}  // namespace

int main(int argc, char** argv) {
  const std::string asked = argc > 1 ? argv[1] : "";
  if (asked == "faults") {
    for (const auto& [name, cause] : faults()) printf("%s\n", name.c_str());
    return 0;
  }
  if (!asked.empty() && asked != "where") {
    faults().at(asked)();
    return 0;
  }
  if (!request_amx_permission()) {
    printf("WRONG: no tiles here\n");
    return 1;
  }
  check_configuration();
  check_memory();
  // Products of 255 or -1 with their counterparts, and of 128 or -128.
  check_bytes(Product::uu, {{1000 + 10 + 5, 128, 2 + 8 * 255}, {1020, 255 * 128, 510}});
  check_bytes(Product::us, {{1000 + 10 + 5, -128, 2 - 8}, {1020, -255 * 128, 510}});
  check_bytes(Product::su, {{1000 + 10 + 5, 128, 2 + 8 * 255}, {-4, -128, -2}});
  check_bytes(Product::ss, {{1000 + 10 + 5, -128, 2 - 8}, {-4, 128, -2}});
  check_bf16();
  emulate(kRelease);
  check_against_this_machine();
  if (asked == "where") printf("%s\n", num_emulated_instructions() > 0 ? "emulator" : "silicon");
  return all_ok ? 0 : 1;
}
