#include "check/amx_emulator.h"

#include <signal.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>
#include <xmmintrin.h>

#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>

namespace potluck {
namespace {

// Palette 1 (CPUID leaf 1DH, subleaf 1).
constexpr int kMaxTiles = 8;
constexpr int kMaxRows = 16;
constexpr int kRowBytes = 64;

struct Tile {
  int rows = 0;
  int row_bytes = 0;  // "colsb"
  alignas(64) uint8_t data[kMaxRows][kRowBytes] = {};
};

// Bytes that LDTILECFG reads: palette, start row, 14 reserved, 16 x colsb (16 bits), 16 x rows.
constexpr int kConfigBytes = 64;
constexpr int kPaletteAt = 0, kStartRowAt = 1, kReservedAt = 2, kColumnsAt = 16, kRowsAt = 48;

struct State {
  bool configured = false;
  Tile tiles[kMaxTiles];
};
thread_local State state;

AmxDefect defect = AmxDefect::none;
std::atomic<uint64_t> num_emulated{0};

// Reports a hardware fault, #UD or #GP, using only functions that are safe in a signal handler.
[[noreturn]] void fault(const char* instruction, const char* what) {
  for (const char* part : {"amx_emulator: ", instruction, ": ", what, "\n"})
    static_cast<void>(!write(STDERR_FILENO, part, strlen(part)));
  abort();
}

void require(bool condition, const char* instruction, const char* what) {
  if (!condition) fault(instruction, what);
}

// SDM, LDTILECFG: all faults are detected before anything changes, and the tiles are zeroed.
// Palette 0 is the initial state.
void load_config(const uint8_t* config) {
  const char* name = "ldtilecfg";
  require(config[kPaletteAt] <= 1, name, "there is no such palette");
  State fresh;
  fresh.configured = config[kPaletteAt] == 1;
  if (fresh.configured) {
    require(config[kStartRowAt] == 0, name, "a start row is not emulated");
    for (int i = kReservedAt; i < kColumnsAt; ++i)
      require(config[i] == 0, name, "a reserved byte is not 0");
    for (int i = 0; i < 16; ++i) {
      const int row_bytes = config[kColumnsAt + 2 * i] | config[kColumnsAt + 2 * i + 1] << 8;
      const int rows = config[kRowsAt + i];
      if (i >= kMaxTiles) {
        require(row_bytes == 0 && rows == 0, name, "there are eight tiles");
        continue;
      }
      require(row_bytes <= kRowBytes, name, "a row has more than 64 bytes");
      require(rows <= kMaxRows, name, "a tile has more than 16 rows");
      require((rows == 0) == (row_bytes == 0), name, "a tile has rows or columns, and not both");
      fresh.tiles[i].rows = rows;
      fresh.tiles[i].row_bytes = row_bytes;
    }
  }
  state = fresh;
}

void store_config(uint8_t* config) {
  memset(config, 0, kConfigBytes);
  if (!state.configured) return;
  config[kPaletteAt] = 1;
  for (int i = 0; i < kMaxTiles; ++i) {
    config[kColumnsAt + 2 * i] = static_cast<uint8_t>(state.tiles[i].row_bytes);
    config[kRowsAt + i] = static_cast<uint8_t>(state.tiles[i].rows);
  }
}

Tile& tile_at(int index, const char* name) {
  require(state.configured, name, "there is no tile configuration");
  require(index < kMaxTiles, name, "there are eight tiles");
  require(state.tiles[index].rows != 0, name, "the tile is not configured");
  return state.tiles[index];
}

struct Memory {
  uint64_t base;
  uint64_t stride;
};

void load_tile(int index, const Memory& memory) {
  Tile& tile = tile_at(index, "tileloadd");
  memset(tile.data, 0, sizeof tile.data);
  for (int r = 0; r < tile.rows; ++r)
    memcpy(tile.data[r],
           reinterpret_cast<const void*>(memory.base + static_cast<uint64_t>(r) * memory.stride),
           static_cast<size_t>(tile.row_bytes));
}

void store_tile(int index, const Memory& memory) {
  const Tile& tile = tile_at(index, "tilestored");
  for (int r = 0; r < tile.rows; ++r)
    memcpy(reinterpret_cast<void*>(memory.base + static_cast<uint64_t>(r) * memory.stride),
           tile.data[r], static_cast<size_t>(tile.row_bytes));
}

// The requirements of every TDP* instruction on its operands (exception class AMX-E4).
void require_product(int out, int a, int b, const char* name) {
  require(out != a && out != b && a != b, name, "two operands are one tile");
  const Tile &c = tile_at(out, name), &x = tile_at(a, name), &y = tile_at(b, name);
  require(c.row_bytes % 4 == 0 && x.row_bytes % 4 == 0 && y.row_bytes % 4 == 0, name,
          "a row is not whole groups of 4 bytes");
  require(c.rows == x.rows, name, "the result has not the rows of the first factor");
  require(x.row_bytes / 4 == y.rows, name, "the inner dimensions differ");
  require(c.row_bytes == y.row_bytes, name, "the result has not the columns of the second factor");
}

void clear_outside(Tile& tile) {
  for (int r = 0; r < kMaxRows; ++r) {
    const int from = r < tile.rows ? tile.row_bytes : 0;
    memset(tile.data[r] + from, 0, static_cast<size_t>(kRowBytes - from));
  }
}

// Placed in the first row, which no kernel pads.
void spoil(Tile& tile) {
  if (defect == AmxDefect::wrong_products) tile.data[0][0] ^= 1;
}

// C[m][n] += sum over k and i < 4 of A[m][4 k + i] * B[k][4 n + i], modulo 2^32.
template <class A, class B>
void dot_bytes(int out, int a, int b, const char* name) {
  require_product(out, a, b, name);
  Tile& c = state.tiles[out];
  const Tile &x = state.tiles[a], &y = state.tiles[b];
  for (int m = 0; m < c.rows; ++m) {
    uint32_t sums[kRowBytes / 4];
    memcpy(sums, c.data[m], kRowBytes);
    for (int k = 0; k < x.row_bytes / 4; ++k) {
      int32_t left[4];
      for (int i = 0; i < 4; ++i) left[i] = static_cast<A>(x.data[m][4 * k + i]);
      for (int n = 0; n < kRowBytes / 4; ++n) {
        int32_t sum = 0;
        for (int i = 0; i < 4; ++i) sum += left[i] * static_cast<B>(y.data[k][4 * n + i]);
        sums[n] += static_cast<uint32_t>(sum);
      }
    }
    memcpy(c.data[m], sums, kRowBytes);
  }
  clear_outside(c);
  spoil(c);
}

float widen_bf16(const uint8_t* p) {
  const uint32_t bits = static_cast<uint32_t>(p[0] | p[1] << 8) << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

// SDM, TDPBF16PS: for every element, a chain of fused multiply-adds over the even columns of the
// pairs and one over the odd ones, both starting at 0, then C += even + odd. Rounding is to nearest
// even, subnormal inputs and results are 0; MXCSR is neither read nor changed.
void dot_bf16(int out, int a, int b) {
  const char* name = "tdpbf16ps";
  require_product(out, a, b, name);
  Tile& c = state.tiles[out];
  const Tile &x = state.tiles[a], &y = state.tiles[b];
  constexpr unsigned kMaskedFlushAndZero = 0x1f80 | 0x8000 | 0x0040;
  const unsigned before = _mm_getcsr();
  _mm_setcsr(kMaskedFlushAndZero);
  float right[kMaxRows][2][kRowBytes / 4];
  for (int k = 0; k < y.rows; ++k)
    for (int n = 0; n < kRowBytes / 4; ++n)
      for (int odd = 0; odd < 2; ++odd) right[k][odd][n] = widen_bf16(y.data[k] + 4 * n + 2 * odd);
  for (int m = 0; m < c.rows; ++m) {
    float chain[2][kRowBytes / 4] = {};
    for (int k = 0; k < x.row_bytes / 4; ++k)
      for (int odd = 0; odd < 2; ++odd) {
        const float left = widen_bf16(x.data[m] + 4 * k + 2 * odd);
        for (int n = 0; n < kRowBytes / 4; ++n)
          chain[odd][n] = std::fma(left, right[k][odd][n], chain[odd][n]);
      }
    float sums[kRowBytes / 4];
    memcpy(sums, c.data[m], kRowBytes);
    for (int n = 0; n < kRowBytes / 4; ++n) sums[n] += chain[0][n] + chain[1][n];
    memcpy(c.data[m], sums, kRowBytes);
  }
  _mm_setcsr(before);
  clear_outside(c);
  spoil(c);
}

// The fields of a three-byte VEX prefix with ModRM, SIB and displacement (SDM volume 2, sections
// 2.1.5 and 2.3). AMX uses map 0F38, and so has no shorter form.
struct Instruction {
  int prefix;  // pp: 0 none, 1 66, 2 F3, 3 F2
  int opcode;
  int third;  // vvvv: the register that does not fit in ModRM
  int mod, reg, rm;
  bool has_sib;
  int length;
  Memory memory;  // if mod is not 3
};

bool decode(const uint8_t* code, const AmxRegisters& registers, Instruction& in) {
  if (code[0] != 0xc4 || (code[1] & 0x1f) != 2) return false;  // VEX3, map 0F38
  if ((code[2] & 0x84) != 0) return false;                     // W0, L0
  const int r = code[1] & 0x80 ? 0 : 8, x = code[1] & 0x40 ? 0 : 8, b = code[1] & 0x20 ? 0 : 8;
  in.prefix = code[2] & 3;
  in.third = ~(code[2] >> 3) & 15;
  in.opcode = code[3];
  in.mod = code[4] >> 6;
  in.reg = (code[4] >> 3 & 7) | r;
  in.rm = (code[4] & 7) | b;
  in.has_sib = in.mod != 3 && (code[4] & 7) == 4;
  in.length = 5;
  in.memory = {0, 0};
  if (in.mod == 3) return true;
  int base = in.rm;
  bool has_base = true;
  if (in.has_sib) {
    const uint8_t sib = code[in.length++];
    const int index = (sib >> 3 & 7) | x;
    base = (sib & 7) | b;
    if (index != 4) in.memory.stride = registers[index] << (sib >> 6);
    has_base = !((sib & 7) == 5 && in.mod == 0);
  } else if (in.mod == 0 && (code[4] & 7) == 5) {
    return false;  // relative to rip, which the caller has not passed: no kernel uses it
  }
  int64_t displacement = 0;
  if (in.mod == 1) {
    displacement = static_cast<int8_t>(code[in.length++]);
  } else if (in.mod == 2 || !has_base) {
    int32_t wide;
    memcpy(&wide, code + in.length, 4);
    displacement = wide;
    in.length += 4;
  }
  in.memory.base = (has_base ? registers[base] : 0) + static_cast<uint64_t>(displacement);
  return true;
}

bool run_config(const Instruction& in) {
  if (in.mod == 3) {
    if (in.prefix == 0 && in.reg == 0 && in.rm == 0) {
      state = State{};  // TILERELEASE
      return true;
    }
    if (in.prefix == 3 && in.rm == 0) {
      Tile& tile = tile_at(in.reg, "tilezero");
      memset(tile.data, 0, sizeof tile.data);
      return true;
    }
    return false;
  }
  // A 64-byte operand: here a SIB index is part of the address, and there is no stride.
  const uint64_t address = in.memory.base + in.memory.stride;
  if (in.reg != 0 || in.prefix > 1) return false;
  if (in.prefix == 0)
    load_config(reinterpret_cast<const uint8_t*>(address));
  else
    store_config(reinterpret_cast<uint8_t*>(address));
  return true;
}

bool run_memory(const Instruction& in) {
  if (!in.has_sib || in.prefix == 0) return false;
  if (in.prefix == 2)
    store_tile(in.reg, in.memory);
  else
    load_tile(in.reg, in.memory);  // F2 TILELOADD, 66 TILELOADDT1, which differ in cache hints
  return true;
}

bool run_byte_product(const Instruction& in) {
  if (in.mod != 3) return false;
  switch (in.prefix) {
    case 0: dot_bytes<uint8_t, uint8_t>(in.reg, in.rm, in.third, "tdpbuud"); return true;
    case 1: dot_bytes<uint8_t, int8_t>(in.reg, in.rm, in.third, "tdpbusd"); return true;
    case 2: dot_bytes<int8_t, uint8_t>(in.reg, in.rm, in.third, "tdpbsud"); return true;
    default: dot_bytes<int8_t, int8_t>(in.reg, in.rm, in.third, "tdpbssd"); return true;
  }
}

bool run(const Instruction& in) {
  switch (in.opcode) {
    case 0x49: return run_config(in);
    case 0x4b: return run_memory(in);
    case 0x5e: return run_byte_product(in);
    case 0x5c:
      if (in.mod != 3 || in.prefix != 2) return false;
      dot_bf16(in.reg, in.rm, in.third);
      return true;
    default: return false;
  }
}

void on_illegal_instruction(int, siginfo_t*, void* raw) {
  greg_t* saved = static_cast<ucontext_t*>(raw)->uc_mcontext.gregs;
  constexpr int kByEncoding[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                                   REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                   REG_R12, REG_R13, REG_R14, REG_R15};
  AmxRegisters registers;
  for (int i = 0; i < 16; ++i) registers[i] = static_cast<uint64_t>(saved[kByEncoding[i]]);
  const int length = emulate_amx(reinterpret_cast<const uint8_t*>(saved[REG_RIP]), registers);
  if (length == 0) {  // not ours: it recurs, and terminates the process as without a handler
    signal(SIGILL, SIG_DFL);
    return;
  }
  saved[REG_RIP] += length;
  num_emulated.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

int emulate_amx(const uint8_t* code, const AmxRegisters& registers) {
  Instruction instruction;
  if (!decode(code, registers, instruction) || !run(instruction)) return 0;
  return instruction.length;
}

void install_amx_emulator(AmxDefect which) {
  defect = which;
  struct sigaction action = {};
  action.sa_sigaction = on_illegal_instruction;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  if (sigaction(SIGILL, &action, nullptr) != 0) {
    perror("sigaction");
    abort();
  }
}

bool amx_tiles_configured() { return state.configured; }

uint64_t num_emulated_instructions() { return num_emulated.load(); }

}  // namespace potluck
