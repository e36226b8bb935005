// Checks which rows of a ragged step go through linear_fast, using kernels that mark their results:
// with quantized weights those of prompts, with BF16 weights all. Exits with 1 and a line on stderr
// if a row took another path than it should.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "dispatch/table.h"
#include "program/stage.h"

namespace {

using namespace potluck;

constexpr int64_t kWidth = 64;
constexpr float kMark = 1e6f;

void expect(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "failed: %s\n", what);
  std::exit(1);
}

float from_bf16(uint16_t bits) {
  const uint32_t word = static_cast<uint32_t>(bits) << 16;
  float x;
  std::memcpy(&x, &word, sizeof x);
  return x;
}

// A mark, plus the input activation in the output's own column.
void marking_linear(const LinearArgs& args, int64_t first_panel, int64_t end_panel) {
  for (int64_t t = 0; t < args.num_tokens; ++t) {
    for (int64_t r = first_panel * kPanelRows; r < end_panel * kPanelRows; ++r) {
      args.out[t * args.out_stride + r] =
          kMark + from_bf16(args.input.bf16[t * args.weight.columns + r]);
    }
  }
}

// hidden += first hidden + second hidden, both for the input hidden state.
std::shared_ptr<const Program> two_products() {
  ProgramSpec spec{};
  spec.registers = {{"hidden", kWidth}, {"x", kWidth}, {"y", kWidth}};
  spec.ops = {op::Linear<std::string>{"hidden", "first", "x", std::nullopt},
              op::Linear<std::string>{"hidden", "second", "y", std::nullopt},
              op::Add<std::string>{"hidden", "x"}, op::Add<std::string>{"hidden", "y"}};
  spec.weights = {{"first", {kWidth, kWidth}}, {"second", {kWidth, kWidth}}};
  spec.hidden_size = kWidth;
  spec.vocab_size = 1;
  spec.context_tokens = 64;
  return std::make_shared<const Program>(std::move(spec));
}

// Rows of Q8_0: an f16 scale of 1, and quanta that differ between rows. For BF16: the same byte
// twice, which is a valid number.
std::vector<uint8_t> stored_rows(Format format) {
  std::vector<uint8_t> rows;
  if (format == Format::BF16) rows.assign(2 * kWidth * kWidth, 0x3e);
  for (int64_t r = 0; format == Format::Q8_0 && r < kWidth; ++r) {
    for (int64_t group = 0; group < kWidth / kGroupColumns; ++group) {
      rows.push_back(0x00);
      rows.push_back(0x3c);
      for (int64_t i = 0; i < kGroupColumns; ++i) {
        rows.push_back(static_cast<uint8_t>((3 * r + 7 * group + 5 * i) % 100));
      }
    }
  }
  return rows;
}

// The stage's output for slices of `lengths` tokens, in rows of kWidth.
std::vector<float> computed(const Kernels& kernels, Arithmetic arithmetic, Format format,
                            const std::vector<int64_t>& lengths) {
  Stage stage(two_products(), kernels, std::make_shared<ThreadPool>(2), 0, 0, 64, arithmetic);
  const std::vector<uint8_t> rows = stored_rows(format);
  for (const char* name : {"first", "second"}) {
    stage.begin_weight(name, {kWidth, kWidth}, format);
    stage.write_rows(name, 0, kWidth, rows.data(), rows.size());
    stage.finish_weight(name);
  }
  Step step;
  int64_t num_tokens = 0;
  for (const int64_t length : lengths) {
    const auto id = static_cast<int64_t>(step.slices.size());
    step.slices.push_back({id, std::vector<int64_t>(length, 0), 0, {}, false});
    num_tokens += length;
  }
  std::vector<float> in(static_cast<size_t>(num_tokens * kWidth));
  // Multiples of 1/4 below 64: bf16 represents them and their sums with marks exactly.
  for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<float>(i * 37 % 256) / 4.0f;
  std::vector<float> out(in.size());
  stage.step(step, MatrixView{in.data(), num_tokens, kWidth},
             MutableMatrixView{out.data(), num_tokens, kWidth});
  return out;
}

}  // namespace

int main() {
  // Decodes between chunks of prompts, one of which has a single token.
  const std::vector<int64_t> lengths = {1, 1, 3, 1, 2, 5, 1};
  const Kernels& real = *kernels_at(0);
  for (const Format format : {Format::Q8_0, Format::BF16}) {
    Kernels marking = real;
    marking.linear_fast[static_cast<int>(format)] = marking_linear;

    const std::vector<float> exact = computed(real, Arithmetic::Exact, format, lengths);
    const std::vector<float> mixed = computed(marking, Arithmetic::Fast, format, lengths);
    size_t row = 0;
    for (const int64_t length : lengths) {
      for (int64_t i = 0; i < length; ++i, ++row) {
        for (size_t column = 0; column < kWidth; ++column) {
          const size_t at = row * kWidth + column;
          if (length == 1 && format == Format::Q8_0) {
            expect(mixed[at] == exact[at], "a row of one token has the exact kernel's bits");
          } else {
            const float in = static_cast<float>(at * 37 % 256) / 4.0f;
            expect(mixed[at] == 2 * kMark + 3 * in,
                   "a row went through the fast kernel, with its own activations");
          }
        }
      }
    }

    expect(computed(marking, Arithmetic::Exact, format, lengths) == exact,
           "without being asked for, nothing is fast");
    expect(computed(real, Arithmetic::Fast, format, lengths) == exact,
           "a format without a fast kernel is exact");
  }
  return 0;
}
