#include "bind/kernels_module.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "dispatch/isa_trial.h"
#include "dispatch/table.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace potluck {
namespace {

// Arguments are used as they are or rejected: no copies, and no type conversions.
template <class T, int num_dims>
using Array = nb::ndarray<T, nb::ndim<num_dims>, nb::c_contig, nb::device::cpu>;
template <class T>
using Vector = Array<T, 1>;
template <class T>
using Rows = Array<T, 2>;
// Rows whose stride may exceed their length.
using StridedRows = nb::ndarray<float, nb::ndim<2>, nb::device::cpu>;

void require(bool condition, const char* what) {
  if (!condition) throw std::invalid_argument(what);
}

template <class T, class... Dims>
void require_shape(const T& array, const char* what, Dims... dims) {
  const int64_t want[] = {static_cast<int64_t>(dims)...};
  for (size_t i = 0; i < sizeof...(dims); ++i)
    require(static_cast<int64_t>(array.shape(i)) == want[i], what);
}

Format find_format(const std::string& name) {
  for (int i = 0; i < kNumFormats; ++i)
    if (name == format_info(static_cast<Format>(i)).name) return static_cast<Format>(i);
  throw std::invalid_argument("no such format: " + name);
}

Format find_format(const std::string& name, int64_t columns) {
  const Format format = find_format(name);
  require(columns > 0 && columns % format_info(format).block_columns == 0,
          "columns must be whole blocks");
  return format;
}

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (int i = 0; i < num_isas(); ++i) names.push_back(kernels_at(i)->isa);
  return names;
}

[[noreturn]] void refuse_isa(const std::string& isa) {
  std::string message = "no kernels for '" + isa + "' here; available:";
  for (const std::string& name : available_isas()) message += " " + name;
  throw std::invalid_argument(message);
}

const Kernels& find_kernels(const std::string& isa) {
  const Kernels* kernels = kernels_for(isa.c_str());
  if (!kernels) refuse_isa(isa);
  return *kernels;
}

std::vector<std::string> fast_formats(const std::string& isa) {
  const Kernels& kernels = find_kernels(isa);
  std::vector<std::string> names;
  for (int i = 0; i < kNumFormats; ++i)
    if (kernels.linear_fast[i]) names.push_back(format_info(static_cast<Format>(i)).name);
  return names;
}

std::string find_isa_problem(const std::string& isa) { return isa_problem(find_kernels(isa)); }

Matrix make_matrix(const std::string& format, Vector<const uint8_t> panels, int64_t rows,
                   int64_t columns) {
  const Matrix matrix{find_format(format, columns), rows, columns, panels.data()};
  require(rows > 0, "there are no rows");
  require_shape(panels, "panels has not the size of its rows and columns",
                num_panels(rows) * panel_bytes(matrix.format, columns));
  return matrix;
}

void pack(const std::string& format, int64_t columns, Vector<const uint8_t> rows, int64_t start_row,
          int64_t num_rows, Vector<uint8_t> panels) {
  const Format type = find_format(format, columns);
  require(start_row >= 0 && num_rows >= 0, "the row range is negative");
  const int64_t bytes = panel_bytes(type, columns);
  require_shape(rows, "rows has not the size of num_rows", num_rows * bytes / kPanelRows);
  require(num_panels(start_row + num_rows) * bytes <= static_cast<int64_t>(panels.size()),
          "panels is too small");
  nb::gil_scoped_release release;
  pack_rows(type, columns, rows.data(), start_row, num_rows, panels.data());
}

void quantize(const Kernels& kernels, Rows<const float> x, Rows<int8_t> q, Rows<float> scales,
              Rows<int32_t> sums) {
  const int64_t num_tokens = x.shape(0), columns = x.shape(1);
  require(columns % kGroupColumns == 0, "columns must be a multiple of 32");
  require_shape(q, "q must be [tokens, columns]", num_tokens, columns);
  require_shape(scales, "scales must be [tokens, columns / 32]", num_tokens,
                columns / kGroupColumns);
  require_shape(sums, "sums must be [tokens, columns / 32]", num_tokens, columns / kGroupColumns);
  nb::gil_scoped_release release;
  kernels.quantize(x.data(), num_tokens, columns, q.data(), scales.data(), sums.data());
}

void round_bf16(const Kernels& kernels, Vector<const float> x, Vector<uint16_t> out) {
  require_shape(out, "out must be as long as x", x.shape(0));
  nb::gil_scoped_release release;
  kernels.round_bf16(x.data(), x.shape(0), out.data());
}

void check_output(const StridedRows& out, int64_t num_tokens, int64_t rows) {
  require(num_tokens > 0, "there must be a token");
  require_shape(out, "out must be [tokens, rows]", num_tokens, rows);
  require(out.stride(1) == 1 && (num_tokens == 1 || out.stride(0) >= rows),
          "the rows of out must be contiguous");
}

void run_linear(void (*linear)(const LinearArgs&, int64_t, int64_t), LinearArgs args,
                std::optional<Vector<const float>> bias, StridedRows out, int64_t first_panel,
                int64_t end_panel) {
  const Matrix& weight = args.weight;
  require(0 <= first_panel && first_panel <= end_panel && end_panel <= num_panels(weight.rows),
          "no such panels");
  if (bias) {
    require_shape(*bias, "bias must be [rows]", weight.rows);
    args.bias = bias->data();
  }
  check_output(out, args.num_tokens, weight.rows);
  args.out = out.data();
  args.out_stride = out.stride(0);
  nb::gil_scoped_release release;
  linear(args, first_panel, end_panel);
}

void linear_float(const Kernels& kernels, const std::string& format, Vector<const uint8_t> panels,
                  Rows<const float> x, std::optional<Vector<const float>> bias, StridedRows out,
                  int64_t first_panel, int64_t end_panel) {
  LinearArgs args{};
  args.weight = make_matrix(format, panels, out.shape(1), x.shape(1));
  require(!is_quantized(args.weight.format), "the format takes quantized activations");
  args.input.x = x.data();
  args.num_tokens = x.shape(0);
  run_linear(kernels.linear[static_cast<int>(args.weight.format)], args, bias, out, first_panel,
             end_panel);
}

void linear_quantized(const Kernels& kernels, const std::string& format,
                      Vector<const uint8_t> panels, Rows<const int8_t> q, Rows<const float> scales,
                      Rows<const int32_t> sums, std::optional<Vector<const float>> bias,
                      StridedRows out, int64_t first_panel, int64_t end_panel) {
  const int64_t num_tokens = q.shape(0), columns = q.shape(1);
  LinearArgs args{};
  args.weight = make_matrix(format, panels, out.shape(1), columns);
  require(is_quantized(args.weight.format), "the format takes float activations");
  require_shape(scales, "scales must be [tokens, columns / 32]", num_tokens,
                columns / kGroupColumns);
  require_shape(sums, "sums must be [tokens, columns / 32]", num_tokens, columns / kGroupColumns);
  args.input.q = q.data();
  args.input.scales = scales.data();
  args.input.sums = sums.data();
  args.num_tokens = num_tokens;
  run_linear(kernels.linear[static_cast<int>(args.weight.format)], args, bias, out, first_panel,
             end_panel);
}

void linear_fast(const Kernels& kernels, const std::string& format, Vector<const uint8_t> panels,
                 Rows<const uint16_t> x, std::optional<Vector<const float>> bias, StridedRows out,
                 int64_t first_panel, int64_t end_panel) {
  LinearArgs args{};
  args.weight = make_matrix(format, panels, out.shape(1), x.shape(1));
  const auto linear = kernels.linear_fast[static_cast<int>(args.weight.format)];
  require(linear != nullptr, "the instruction set has no fast product of the format");
  args.input.bf16 = x.data();
  args.num_tokens = x.shape(0);
  run_linear(linear, args, bias, out, first_panel, end_panel);
}

void embed(const Kernels& kernels, const std::string& format, Vector<const uint8_t> panels,
           int64_t rows, int64_t row, Vector<float> out) {
  const Matrix weight = make_matrix(format, panels, rows, out.shape(0));
  require(0 <= row && row < rows, "no such row");
  nb::gil_scoped_release release;
  kernels.embed[static_cast<int>(weight.format)](weight, row, out.data());
}

float widen(const Kernels& kernels, const std::string& format, Vector<const uint8_t> stored,
            Vector<float> out) {
  const Format type = find_format(format);
  require(!is_quantized(type), "the format is quantized");
  const int64_t count = out.shape(0);
  require_shape(stored, "stored has not the size of out", count * format_info(type).block_bytes);
  nb::gil_scoped_release release;
  return kernels.widen[static_cast<int>(type)](stored.data(), count, out.data());
}

bool encode(const Kernels& kernels, const std::string& format, Vector<const float> x,
            Vector<uint8_t> out) {
  const int64_t count = x.shape(0);
  const Format type = find_format(format, count);
  const Format* target = std::find(kTargets, kTargets + kNumTargets, type);
  require(target != kTargets + kNumTargets, "the format is no target");
  require_shape(out, "out has not the size of x", panel_bytes(type, count) / kPanelRows);
  nb::gil_scoped_release release;
  return kernels.encode[target - kTargets](x.data(), count, out.data());
}

// Without a weight, the group is the whole row.
void rms_norm(const Kernels& kernels, Rows<const float> x,
              std::optional<Vector<const float>> weight, Rows<float> out, float epsilon) {
  const int64_t group = weight ? weight->shape(0) : x.shape(1);
  require(group > 0 && x.shape(1) % group == 0, "columns must be whole groups");
  require_shape(out, "out must have the shape of x", x.shape(0), x.shape(1));
  nb::gil_scoped_release release;
  kernels.rms_norm(x.data(), weight ? weight->data() : nullptr, out.data(), x.shape(0), x.shape(1),
                   group, epsilon);
}

void layer_norm(const Kernels& kernels, Rows<const float> x, Vector<const float> weight,
                Rows<float> out, float epsilon) {
  require_shape(weight, "weight must be as long as a row", x.shape(1));
  require_shape(out, "out must have the shape of x", x.shape(0), x.shape(1));
  nb::gil_scoped_release release;
  kernels.layer_norm(x.data(), weight.data(), out.data(), x.shape(0), x.shape(1), epsilon);
}

void rope(const Kernels& kernels, Rows<float> x, Vector<const float> cos, Vector<const float> sin) {
  const int64_t head_dim = x.shape(1), num_pairs = cos.shape(0);
  require(2 * num_pairs <= head_dim, "cos must have at most half the size of a head");
  require_shape(sin, "sin must be as long as cos", num_pairs);
  nb::gil_scoped_release release;
  kernels.rope(x.data(), cos.data(), sin.data(), x.shape(0), head_dim, 2 * num_pairs);
}

// Computes out from gate and up, with one of the gated activations.
template <void (*Kernels::*gate_kernel)(const float*, const float*, float*, int64_t)>
void run_gate(const Kernels& kernels, Vector<const float> gate, Vector<const float> up,
              Vector<float> out) {
  require_shape(up, "up must be as long as gate", gate.shape(0));
  require_shape(out, "out must be as long as gate", gate.shape(0));
  nb::gil_scoped_release release;
  (kernels.*gate_kernel)(gate.data(), up.data(), out.data(), gate.shape(0));
}

void add(const Kernels& kernels, Vector<float> x, Vector<const float> y) {
  require_shape(y, "y must be as long as x", x.shape(0));
  nb::gil_scoped_release release;
  kernels.add(x.data(), y.data(), x.shape(0));
}

void add_scaled(const Kernels& kernels, Vector<float> x, Vector<const float> y, float scale) {
  require_shape(y, "y must be as long as x", x.shape(0));
  nb::gil_scoped_release release;
  kernels.add_scaled(x.data(), y.data(), scale, x.shape(0));
}

void scale(const Kernels& kernels, Vector<float> x, float factor) {
  nb::gil_scoped_release release;
  kernels.scale(x.data(), factor, x.shape(0));
}

void multiply(const Kernels& kernels, Vector<float> x, Vector<const float> y) {
  require_shape(y, "y must be as long as x", x.shape(0));
  nb::gil_scoped_release release;
  kernels.multiply(x.data(), y.data(), x.shape(0));
}

void sigmoid(const Kernels& kernels, Vector<const float> x, Vector<float> out) {
  require_shape(out, "out must be as long as x", x.shape(0));
  nb::gil_scoped_release release;
  kernels.sigmoid(x.data(), out.data(), x.shape(0));
}

void relu_squared(const Kernels& kernels, Vector<const float> x, Vector<float> out) {
  require_shape(out, "out must be as long as x", x.shape(0));
  nb::gil_scoped_release release;
  kernels.relu_squared(x.data(), out.data(), x.shape(0));
}

void softcap(const Kernels& kernels, Vector<float> x, float cap) {
  nb::gil_scoped_release release;
  kernels.softcap(x.data(), cap, x.shape(0));
}

float exp_sum(const Kernels& kernels, Vector<const float> x, float max, Vector<float> out) {
  require_shape(out, "out must be as long as x", x.shape(0));
  nb::gil_scoped_release release;
  return kernels.exp_sum(x.data(), x.shape(0), max, out.data());
}

void copy_allowed(const Kernels& kernels, Vector<const float> logits, Vector<const uint32_t> mask,
                  Vector<float> out) {
  const auto count = static_cast<int64_t>(logits.shape(0));
  require_shape(out, "out must be as long as logits", count);
  require_shape(mask, "mask must have a bit per logit", (count + 31) / 32);
  nb::gil_scoped_release release;
  kernels.copy_allowed(logits.data(), mask.data(), count, out.data());
}

int64_t sampling_blocks(int64_t count) { return (count + kSamplingBlock - 1) / kSamplingBlock; }

void draw_weights(const Kernels& kernels, Vector<const float> logits, float largest,
                  float temperature, Vector<float> weights, Vector<double> sums) {
  const auto count = static_cast<int64_t>(logits.shape(0));
  require_shape(weights, "weights must be as long as logits", count);
  require_shape(sums, "sums must have one for each block", sampling_blocks(count));
  nb::gil_scoped_release release;
  kernels.draw_weights(logits.data(), count, largest, temperature, weights.data(), sums.data());
}

void kept_sums(const Kernels& kernels, Vector<const float> logits, Vector<const float> weights,
               float least_logit, float least_weight, Vector<double> sums) {
  const auto count = static_cast<int64_t>(logits.shape(0));
  require_shape(weights, "weights must be as long as logits", count);
  require_shape(sums, "sums must have one for each block", sampling_blocks(count));
  nb::gil_scoped_release release;
  kernels.kept_sums(logits.data(), weights.data(), count, least_logit, least_weight, sums.data());
}

void split_logits(const Kernels& kernels, Vector<const float> logits, Vector<const float> weights,
                  float low, float high, Vector<double> above, Vector<int32_t> num_above,
                  Vector<int32_t> within, Vector<int32_t> num_within) {
  const auto count = static_cast<int64_t>(logits.shape(0));
  const int64_t blocks = sampling_blocks(count);
  require_shape(weights, "weights must be as long as logits", count);
  require_shape(above, "above must have one for each block", blocks);
  require_shape(num_above, "num_above must have one for each block", blocks);
  require_shape(num_within, "num_within must have one for each block", blocks);
  require_shape(within, "within must have room for whole blocks", blocks * kSamplingBlock);
  nb::gil_scoped_release release;
  kernels.split_logits(logits.data(), weights.data(), count, low, high, above.data(),
                       num_above.data(), within.data(), num_within.data());
}

// Keys and values as stored in the cache, f16 as raw bits.
using CacheIn = Array<const uint16_t, 4>;
using CacheOut = Array<uint16_t, 4>;

template <class Cache>
void check_cache(const Cache& keys, const std::optional<Cache>& values, int64_t num_kv_heads,
                 int64_t head_dim, int64_t value_dim) {
  require(head_dim > 0 && head_dim % 8 == 0, "the head size must be a multiple of 8");
  require_shape(keys, "keys must be [blocks, kv_heads, head_dim, 16]", keys.shape(0), num_kv_heads,
                head_dim, kBlockTokens);
  if (values)
    require_shape(*values, "values must be [blocks, kv_heads, 16, padded value_dim]",
                  keys.shape(0), num_kv_heads, kBlockTokens, padded_value_dim(value_dim));
}

void append_kv(const Kernels& kernels, Rows<const float> k, std::optional<Rows<const float>> v,
               CacheOut keys, std::optional<CacheOut> values, int64_t block, int64_t offset) {
  const int64_t num_kv_heads = k.shape(0), head_dim = k.shape(1);
  const int64_t value_dim = v ? v->shape(1) : 0;
  require(v.has_value() == values.has_value(), "v and values come together");
  if (v) require_shape(*v, "v must have the heads of k", num_kv_heads, value_dim);
  check_cache(keys, values, num_kv_heads, head_dim, value_dim);
  require(0 <= block && block < static_cast<int64_t>(keys.shape(0)), "no such block");
  require(0 <= offset && offset < kBlockTokens, "no such offset");
  nb::gil_scoped_release release;
  kernels.append_kv(k.data(), v ? v->data() : nullptr, keys.data(),
                    values ? values->data() : nullptr, block, offset, num_kv_heads, head_dim,
                    value_dim);
}

// Consecutive tokens [tokens, heads, head_dim] of a sequence; without a window they see everything.
// Without values, these are columns of the keys from `value_start` on.
using Heads = Array<float, 3>;
using HeadsIn = Array<const float, 3>;

AttentionArgs attention_args(HeadsIn q, CacheIn keys, const std::optional<CacheIn>& values,
                             Vector<const int32_t> block_table, int64_t position,
                             std::optional<int64_t> window, float scale, Heads out,
                             float softcap, const std::optional<Vector<const float>>& sinks,
                             int64_t value_start) {
  const int64_t num_tokens = q.shape(0), num_heads = q.shape(1), head_dim = q.shape(2);
  const int64_t num_kv_heads = keys.shape(1), num_blocks = keys.shape(0);
  require(num_tokens > 0, "there must be a token");
  require(num_kv_heads > 0 && num_heads % num_kv_heads == 0,
          "heads must be a multiple of key-value heads");
  const int64_t value_dim = out.shape(2);
  check_cache(keys, values, num_kv_heads, head_dim, value_dim);
  require(value_dim > 0, "values must have a column");
  require_shape(out, "out must have the tokens and heads of q", num_tokens, num_heads, value_dim);
  require(values || (value_start >= 0 && value_start + value_dim <= head_dim),
          "keys do not have the columns of the values");
  require(0 <= position, "no such position");
  require((position + num_tokens - 1) / kBlockTokens <
              static_cast<int64_t>(block_table.shape(0)),
          "the block table does not reach the position");
  require(!window || *window > 0, "a window must have a position");
  for (size_t i = 0; i < block_table.shape(0); ++i)
    require(0 <= block_table(i) && block_table(i) < num_blocks, "no such block");
  AttentionArgs args{};
  args.q = q.data();
  args.out = out.data();
  args.num_tokens = num_tokens;
  args.position = position;
  args.window = window.value_or(kNoWindow);
  args.keys = keys.data();
  args.values = values ? values->data() : nullptr;
  args.block_table = block_table.data();
  args.num_heads = num_heads;
  args.num_kv_heads = num_kv_heads;
  args.head_dim = head_dim;
  args.value_dim = value_dim;
  args.value_start = value_start;
  args.end_kv_head = num_kv_heads;
  args.end_in_group = num_heads / num_kv_heads;
  args.scale = scale;
  args.softcap = softcap;
  if (sinks) {
    require_shape(*sinks, "sinks must have one for each head", num_heads);
    args.sinks = sinks->data();
  }
  return args;
}

std::vector<float> attention_scratch(const AttentionArgs& args) {
  return std::vector<float>(static_cast<size_t>(attention_scratch_floats(
      attention_rows(args), args.head_dim, args.value_dim, args.values != nullptr)));
}

void attention(const Kernels& kernels, HeadsIn q, CacheIn keys, std::optional<CacheIn> values,
               Vector<const int32_t> block_table, int64_t position, std::optional<int64_t> window,
               float scale, Heads out, float softcap, std::optional<Vector<const float>> sinks,
               int64_t value_start) {
  AttentionArgs args = attention_args(q, keys, values, block_table, position, window, scale, out,
                                      softcap, sinks, value_start);
  std::vector<float> scratch = attention_scratch(args);
  args.scratch = scratch.data();
  nb::gil_scoped_release release;
  kernels.attention(args);
}

// Key-value heads separately, and the heads that share one in two halves.
void attention_in_parts(const Kernels& kernels, HeadsIn q, CacheIn keys,
                        std::optional<CacheIn> values, Vector<const int32_t> block_table,
                        int64_t position, std::optional<int64_t> window, float scale, Heads out,
                        float softcap, std::optional<Vector<const float>> sinks,
                        int64_t value_start) {
  AttentionArgs args = attention_args(q, keys, values, block_table, position, window, scale, out,
                                      softcap, sinks, value_start);
  std::vector<float> scratch = attention_scratch(args);
  args.scratch = scratch.data();
  nb::gil_scoped_release release;
  const int64_t group = args.end_in_group;
  for (int64_t part = 0; part < 2 * args.num_kv_heads; ++part) {
    args.first_kv_head = part / 2;
    args.end_kv_head = part / 2 + 1;
    args.first_in_group = part % 2 == 0 ? 0 : group / 2;
    args.end_in_group = part % 2 == 0 ? group / 2 : group;
    if (args.first_in_group == args.end_in_group) continue;
    const int64_t span_floats = attention_partial_floats(attention_rows(args), args.value_dim);
    const int64_t num_spans = end_span(args) - first_span(args);
    std::vector<float> partials(static_cast<size_t>(num_spans * span_floats));
    for (int64_t i = num_spans; i-- > 0;)
      kernels.attention_span(args, first_span(args) + i, partials.data() + i * span_floats);
    kernels.attention_merge(args, partials.data());
  }
}

// The states of the ops below have the kernels' layout; 0 tokens are rejected, because they have no
// state.
void causal_conv(const Kernels& kernels, Rows<const float> x, Rows<const float> weight,
                 std::optional<Vector<const float>> bias, Rows<float> state, bool is_fresh,
                 bool has_silu, Rows<float> out, int64_t first_column, int64_t end_column) {
  const int64_t num_tokens = x.shape(0), width = x.shape(1), kernel = weight.shape(1);
  require(num_tokens > 0, "there must be a token");
  require(kernel >= 2 && kernel <= kMaxConvKernel, "the kernel must be from 2 to 16");
  require_shape(weight, "weight must be [width, kernel]", width, kernel);
  require_shape(state, "state must be [kernel - 1, width]", kernel - 1, width);
  require_shape(out, "out must have the shape of x", num_tokens, width);
  if (bias) require_shape(*bias, "bias must be [width]", width);
  require(first_column >= 0 && first_column % 16 == 0 && first_column < end_column &&
              end_column <= width && (end_column % 16 == 0 || end_column == width),
          "no such columns");
  nb::gil_scoped_release release;
  kernels.causal_conv({x.data(), out.data(), num_tokens, width, kernel, weight.data(),
                       bias ? bias->data() : nullptr, state.data(), is_fresh, has_silu,
                       first_column, end_column});
}

// Keys and queries [key_heads, 2, key_dim] of one token.
void delta_inputs(const Kernels& kernels, Vector<const float> x, Vector<const float> decay,
                  Vector<const float> beta, Vector<const float> rate,
                  Vector<const float> decay_bias, float epsilon, Heads keys,
                  Vector<float> products, Vector<float> decays, Vector<float> betas) {
  const int64_t num_heads = decay.shape(0), num_key_heads = keys.shape(0);
  const int64_t key_dim = keys.shape(2);
  require(num_key_heads > 0 && key_dim > 0, "there are no keys");
  require_shape(keys, "keys must be [key_heads, 2, key_dim]", num_key_heads, 2, key_dim);
  require(static_cast<int64_t>(x.shape(0)) >= 2 * num_key_heads * key_dim,
          "x does not have the queries and keys");
  for (const auto& each : {beta, rate, decay_bias})
    require_shape(each, "there must be one factor for each head", num_heads);
  require_shape(products, "there must be one product for each key head", num_key_heads);
  for (const auto& each : {decays, betas})
    require_shape(each, "there must be one factor for each head", num_heads);
  nb::gil_scoped_release release;
  kernels.delta_inputs({x.data(), decay.data(), beta.data(), rate.data(), decay_bias.data(),
                        num_heads, num_key_heads, key_dim, epsilon, keys.data(), 2 * key_dim,
                        products.data(), decays.data(), betas.data()});
}

// keys [key_heads, tokens, 2, key_dim], values [tokens, heads, value_dim].
void gated_delta(const Kernels& kernels, Array<const float, 4> keys, Rows<const float> products,
                 Rows<const float> decays, Rows<const float> betas, HeadsIn values,
                 Array<float, 4> state, bool is_tiled, bool is_fresh, Heads out,
                 int64_t first_strip, int64_t end_strip) {
  const int64_t num_key_heads = keys.shape(0), num_tokens = keys.shape(1);
  const int64_t key_dim = keys.shape(3), num_heads = values.shape(1);
  const int64_t value_dim = values.shape(2), num_strips = num_state_strips(value_dim);
  require(num_tokens > 0, "there must be a token");
  require(num_key_heads > 0 && num_heads % num_key_heads == 0,
          "heads must be a multiple of key heads");
  require_shape(keys, "keys must be [key_heads, tokens, 2, key_dim]", num_key_heads, num_tokens, 2,
                key_dim);
  require_shape(products, "products must be [tokens, key_heads]", num_tokens, num_key_heads);
  for (const auto& each : {decays, betas})
    require_shape(each, "factors must be [tokens, heads]", num_tokens, num_heads);
  require_shape(values, "values must be [tokens, heads, value_dim]", num_tokens, num_heads,
                value_dim);
  require_shape(out, "out must have the shape of values", num_tokens, num_heads, value_dim);
  require_shape(state, "state must be [heads, strips, key_dim, 16]", num_heads, num_strips, key_dim,
                16);
  require(0 <= first_strip && first_strip <= end_strip && end_strip <= num_heads * num_strips,
          "no such strips");
  DeltaArgs args{};
  args.keys = keys.data();
  args.key_head_stride = num_tokens * 2 * key_dim;
  args.products = products.data();
  args.decays = decays.data();
  args.betas = betas.data();
  args.values = values.data();
  args.value_stride = num_heads * value_dim;
  args.out = out.data();
  args.out_stride = num_heads * value_dim;
  args.num_tokens = num_tokens;
  args.num_heads = num_heads;
  args.num_key_heads = num_key_heads;
  args.key_dim = key_dim;
  args.value_dim = value_dim;
  args.is_tiled = is_tiled;
  args.is_fresh = is_fresh;
  args.state = state.data();
  args.first_strip = first_strip;
  args.end_strip = end_strip;
  nb::gil_scoped_release release;
  kernels.gated_delta(args);
}

void scan_inputs(const Kernels& kernels, Vector<const float> step, Vector<const float> step_bias,
                 Vector<const float> rate, float least_step, float largest_step,
                 Vector<float> steps, Vector<float> decays) {
  const int64_t num_heads = step.shape(0);
  for (const auto& each : {step_bias, rate})
    require_shape(each, "there must be one factor for each head", num_heads);
  for (const auto& each : {steps, decays})
    require_shape(each, "there must be one factor for each head", num_heads);
  nb::gil_scoped_release release;
  kernels.scan_inputs({step.data(), step_bias.data(), rate.data(), num_heads, least_step,
                       largest_step, steps.data(), decays.data()});
}

// x [tokens, heads * head_dim + 2 * groups * state_dim].
void state_scan(const Kernels& kernels, Rows<const float> x, Rows<const float> steps,
                Rows<const float> decays, Vector<const float> skip, int64_t num_groups,
                Array<float, 4> state, bool is_fresh, Heads out, int64_t first_strip,
                int64_t end_strip) {
  const int64_t num_tokens = out.shape(0), num_heads = out.shape(1), head_dim = out.shape(2);
  const int64_t state_dim = state.shape(2), num_strips = num_state_strips(head_dim);
  require(num_tokens > 0, "there must be a token");
  require(num_groups > 0 && num_heads % num_groups == 0, "heads must be a multiple of groups");
  require_shape(x, "x must be [tokens, heads * head_dim + 2 * groups * state_dim]", num_tokens,
                num_heads * head_dim + 2 * num_groups * state_dim);
  for (const auto& each : {steps, decays})
    require_shape(each, "factors must be [tokens, heads]", num_tokens, num_heads);
  require_shape(skip, "skip must have one for each head", num_heads);
  require_shape(state, "state must be [heads, strips, state_dim, 16]", num_heads, num_strips,
                state_dim, 16);
  require(0 <= first_strip && first_strip <= end_strip && end_strip <= num_heads * num_strips,
          "no such strips");
  ScanArgs args{};
  args.x = x.data();
  args.x_stride = x.shape(1);
  args.steps = steps.data();
  args.decays = decays.data();
  args.skip = skip.data();
  args.out = out.data();
  args.out_stride = num_heads * head_dim;
  args.num_tokens = num_tokens;
  args.num_heads = num_heads;
  args.head_dim = head_dim;
  args.num_groups = num_groups;
  args.state_dim = state_dim;
  args.is_fresh = is_fresh;
  args.state = state.data();
  args.first_strip = first_strip;
  args.end_strip = end_strip;
  nb::gil_scoped_release release;
  kernels.state_scan(args);
}

}  // namespace

void bind_kernels(nb::module_& m, KernelLookup lookup) {
  m.def("available_isas", &available_isas);
  m.def("fast_formats", &fast_formats, "isa"_a);
  m.def("isa_problem", &find_isa_problem, "isa"_a, nb::call_guard<nb::gil_scoped_release>());
  m.def("kernels_for", [lookup](const std::string& isa) {
    const Kernels* kernels = lookup(isa.c_str());
    if (!kernels) refuse_isa(isa);
    return kernels;
  }, "isa"_a, nb::rv_policy::reference);
  m.def("format_info", [](const std::string& name) {
    const FormatInfo info = format_info(find_format(name));
    return nb::make_tuple(info.block_columns, info.block_bytes);
  }, "format"_a);
  m.attr("PANEL_LAYOUT") = kPanelLayout;
  m.def("panel_bytes", [](const std::string& name, int64_t columns) {
    return panel_bytes(find_format(name, columns), columns);
  }, "format"_a, "columns"_a);
  m.def("pack_rows", &pack, "format"_a, "columns"_a, "rows"_a.noconvert(), "start_row"_a,
        "num_rows"_a, "panels"_a.noconvert());

  nb::class_<Kernels>(m, "Kernels")
      .def_prop_ro("isa", [](const Kernels& kernels) { return std::string(kernels.isa); })
      .def("quantize", &quantize, "x"_a.noconvert(), "q"_a.noconvert(), "scales"_a.noconvert(),
           "sums"_a.noconvert())
      .def("round_bf16", &round_bf16, "x"_a.noconvert(), "out"_a.noconvert())
      .def("linear_float", &linear_float, "format"_a, "panels"_a.noconvert(), "x"_a.noconvert(),
           "bias"_a.noconvert().none(), "out"_a.noconvert(), "first_panel"_a, "end_panel"_a)
      .def("linear_quantized", &linear_quantized, "format"_a, "panels"_a.noconvert(),
           "q"_a.noconvert(), "scales"_a.noconvert(), "sums"_a.noconvert(),
           "bias"_a.noconvert().none(), "out"_a.noconvert(), "first_panel"_a, "end_panel"_a)
      .def("linear_fast", &linear_fast, "format"_a, "panels"_a.noconvert(), "x"_a.noconvert(),
           "bias"_a.noconvert().none(), "out"_a.noconvert(), "first_panel"_a, "end_panel"_a)
      .def("embed", &embed, "format"_a, "panels"_a.noconvert(), "rows"_a, "row"_a,
           "out"_a.noconvert())
      .def("widen", &widen, "format"_a, "stored"_a.noconvert(), "out"_a.noconvert())
      .def("encode", &encode, "format"_a, "x"_a.noconvert(), "out"_a.noconvert())
      .def("rms_norm", &rms_norm, "x"_a.noconvert(), "weight"_a.noconvert().none(),
           "out"_a.noconvert(), "epsilon"_a)
      .def("layer_norm", &layer_norm, "x"_a.noconvert(), "weight"_a.noconvert(),
           "out"_a.noconvert(), "epsilon"_a)
      .def("rope", &rope, "x"_a.noconvert(), "cos"_a.noconvert(), "sin"_a.noconvert())
      .def("silu_gate", &run_gate<&Kernels::silu_gate>, "gate"_a.noconvert(), "up"_a.noconvert(),
           "out"_a.noconvert())
      .def("gelu_gate", &run_gate<&Kernels::gelu_gate>, "gate"_a.noconvert(), "up"_a.noconvert(),
           "out"_a.noconvert())
      .def("clamped_gate", &run_gate<&Kernels::clamped_gate>, "gate"_a.noconvert(), "up"_a.noconvert(),
           "out"_a.noconvert())
      .def("product_gate", &run_gate<&Kernels::product_gate>, "gate"_a.noconvert(),
           "up"_a.noconvert(), "out"_a.noconvert())
      .def("relu_squared", &relu_squared, "x"_a.noconvert(), "out"_a.noconvert())
      .def("add", &add, "x"_a.noconvert(), "y"_a.noconvert())
      .def("add_scaled", &add_scaled, "x"_a.noconvert(), "y"_a.noconvert(), "scale"_a)
      .def("scale", &scale, "x"_a.noconvert(), "factor"_a)
      .def("multiply", &multiply, "x"_a.noconvert(), "y"_a.noconvert())
      .def("sigmoid", &sigmoid, "x"_a.noconvert(), "out"_a.noconvert())
      .def("softcap", &softcap, "x"_a.noconvert(), "cap"_a)
      .def("append_kv", &append_kv, "k"_a.noconvert(), "v"_a.noconvert().none(),
           "keys"_a.noconvert(), "values"_a.noconvert().none(), "block"_a, "offset"_a)
      .def("attention", &attention, "q"_a.noconvert(), "keys"_a.noconvert(),
           "values"_a.noconvert().none(), "block_table"_a.noconvert(), "position"_a,
           "window"_a.none(), "scale"_a, "out"_a.noconvert(), "softcap"_a = 0.0f,
           "sinks"_a.noconvert() = nb::none(), "value_start"_a = 0)
      .def("attention_in_parts", &attention_in_parts, "q"_a.noconvert(), "keys"_a.noconvert(),
           "values"_a.noconvert().none(), "block_table"_a.noconvert(), "position"_a,
           "window"_a.none(), "scale"_a, "out"_a.noconvert(), "softcap"_a = 0.0f,
           "sinks"_a.noconvert() = nb::none(), "value_start"_a = 0)
      .def("causal_conv", &causal_conv, "x"_a.noconvert(), "weight"_a.noconvert(),
           "bias"_a.noconvert().none(), "state"_a.noconvert(), "is_fresh"_a, "has_silu"_a,
           "out"_a.noconvert(), "first_column"_a, "end_column"_a)
      .def("delta_inputs", &delta_inputs, "x"_a.noconvert(), "decay"_a.noconvert(),
           "beta"_a.noconvert(), "rate"_a.noconvert(), "decay_bias"_a.noconvert(), "epsilon"_a,
           "keys"_a.noconvert(), "products"_a.noconvert(), "decays"_a.noconvert(),
           "betas"_a.noconvert())
      .def("gated_delta", &gated_delta, "keys"_a.noconvert(), "products"_a.noconvert(),
           "decays"_a.noconvert(), "betas"_a.noconvert(), "values"_a.noconvert(),
           "state"_a.noconvert(), "is_tiled"_a, "is_fresh"_a, "out"_a.noconvert(),
           "first_strip"_a, "end_strip"_a)
      .def("scan_inputs", &scan_inputs, "step"_a.noconvert(), "step_bias"_a.noconvert(),
           "rate"_a.noconvert(), "least_step"_a, "largest_step"_a, "steps"_a.noconvert(),
           "decays"_a.noconvert())
      .def("state_scan", &state_scan, "x"_a.noconvert(), "steps"_a.noconvert(),
           "decays"_a.noconvert(), "skip"_a.noconvert(), "num_groups"_a, "state"_a.noconvert(),
           "is_fresh"_a, "out"_a.noconvert(), "first_strip"_a, "end_strip"_a)
      .def("exp_sum", &exp_sum, "x"_a.noconvert(), "max"_a, "out"_a.noconvert())
      .def("copy_allowed", &copy_allowed, "logits"_a.noconvert(), "mask"_a.noconvert(),
           "out"_a.noconvert())
      .def("draw_weights", &draw_weights, "logits"_a.noconvert(), "largest"_a, "temperature"_a,
           "weights"_a.noconvert(), "sums"_a.noconvert())
      .def("kept_sums", &kept_sums, "logits"_a.noconvert(), "weights"_a.noconvert(),
           "least_logit"_a, "least_weight"_a, "sums"_a.noconvert())
      .def("split_logits", &split_logits, "logits"_a.noconvert(), "weights"_a.noconvert(), "low"_a,
           "high"_a, "above"_a.noconvert(), "num_above"_a.noconvert(), "within"_a.noconvert(),
           "num_within"_a.noconvert());
}

}  // namespace potluck
