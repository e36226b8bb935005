// The interface between kernels and everything above them: the arguments and guarantees of each
// kernel.
//
// Every kernel exists once per instruction set, built from one body over 16 virtual lanes
// (cpp/simd). All variants are bit-identical to the scalar one for every format (docs/adr/0004),
// except `linear_fast`, whose products of bf16 depend on the instruction set (docs/adr/0026).
// Kernels do not allocate, lock, throw or divide work among threads: the program runner calls them
// on ranges. Pointers need no alignment beyond their element's.
//
// Inline functions here are static: a plain one has one copy for the whole program, and the linker
// may keep the one from a file compiled for AVX-512.
#pragma once

#include <stdint.h>

namespace potluck {

// Storage formats of weights; the order is that of the dispatch table, and of those members of
// TensorFormat (types/tensor.py) that have kernels.
enum class Format : uint8_t {
  F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K, Q2_K, Q3_K, IQ4_NL, IQ4_XS, MXFP4,
};
constexpr int kNumFormats = 16;
constexpr int kNumFloatFormats = 3;

// Rows of one panel: the lanes of the widest register in use (16 x f32 in a zmm), and the rows of
// an AMX tile.
constexpr int64_t kPanelRows = 16;
// Columns that share one scale of the quantized activations.
constexpr int64_t kGroupColumns = 32;
// Positions of one key-value cache block.
constexpr int64_t kBlockTokens = 16;

struct FormatInfo {
  const char* name;
  int64_t block_columns;  // columns of one block; 1 for float formats
  int64_t block_bytes;    // bytes of one block of one row
};
FormatInfo format_info(Format format);
static inline bool is_quantized(Format format) { return format >= Format::Q8_0; }

// A weight matrix in panels of 16 rows: panel p holds rows [16 p, 16 p + 16), block after block of
// columns, with each field of the block interleaved over the 16 rows (see layout.h for every
// format). The last panel is padded with rows of zero bytes. It has as many bytes as the file's
// rows.
struct Matrix {
  Format format;
  int64_t rows;     // real rows
  int64_t columns;  // a multiple of block_columns
  const uint8_t* data;
};
int64_t panel_bytes(Format format, int64_t columns);
// Version of the bytes of panels, which are stored in files: increment it with every change to the
// output of pack_rows or `encode`. The same on every machine.
constexpr int kPanelLayout = 2;
static inline int64_t num_panels(int64_t rows) { return (rows + kPanelRows - 1) / kPanelRows; }

// Writes stored rows [start_row, start_row + num_rows) of the file's layout into the panels at
// `panels`. Any split into row ranges gives the same result; `panels` must be zeroed before the
// first call.
void pack_rows(Format format, int64_t columns, const uint8_t* rows, int64_t start_row,
               int64_t num_rows, uint8_t* panels);

// The formats to which weights can be quantized; the order is that of the dispatch table.
constexpr int kNumTargets = 7;
constexpr Format kTargets[kNumTargets] = {Format::Q8_0, Format::Q4_0, Format::Q5_0,  Format::Q4_K,
                                          Format::Q6_K, Format::Q3_K, Format::IQ4_NL};

// Dequantizes `count` columns, in whole blocks, of a quantized format. The arithmetic is that of
// the `gguf` package: one multiplication per value, and an addition or subtraction if the format
// has a minimum.
void dequantize(Format format, const uint8_t* stored, int64_t count, float* out);

// Activations in the forms that products read. Integers are q = round(x * 127 / max|x|) per group
// of 32 columns. A kernel reads only one form; the others may be null.
struct Activations {
  const float* x;        // [tokens][columns], for float formats
  const int8_t* q;       // [tokens][columns], for quantized formats
  const float* scales;   // [tokens][columns / 32]: max|x| / 127
  const int32_t* sums;   // [tokens][columns / 32]: sum of q
  const uint16_t* bf16;  // [tokens][columns], for linear_fast
};

struct LinearArgs {
  Matrix weight;
  Activations input;
  int64_t num_tokens;  // at least 1
  const float* bias;   // [rows] or null
  float* out;          // out[token * out_stride + row]
  int64_t out_stride;
};

// Consecutive tokens of one sequence, which attend together: token i is at position + i and sees
// the last `window` positions up to its own.
struct AttentionArgs {
  const float* q;               // [num_tokens][num_heads][head_dim]
  float* out;                   // [num_tokens][num_heads][value_dim]
  int64_t num_tokens;
  int64_t position;             // of the first token
  int64_t window;               // at least 1; kNoWindow to see everything
  const uint16_t* keys;         // f16 [block][kv_head][head_dim][16 positions]
  const uint16_t* values;       // f16 [block][kv_head][16 positions][padded value_dim]; or null:
                                // they are columns [value_start, value_start + value_dim) of keys
  const int32_t* block_table;   // cache block of positions [16 i, 16 i + 16)
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t head_dim;             // a multiple of 8
  int64_t value_dim;
  int64_t value_start;
  int64_t first_kv_head;        // computed are, of the query heads that share each of the key-value
  int64_t end_kv_head;          // heads [first_kv_head, end_kv_head), those with the places
  int64_t first_in_group;       // [first_in_group, end_in_group)
  int64_t end_in_group;
  float scale;
  float softcap;                // see `softcap` below; 0 for none
  const float* sinks;           // [num_heads], or null
  float* scratch;               // attention_scratch_floats(...) floats
};
constexpr int64_t kNoWindow = INT64_MAX;
// Value rows are filled up to whole lanes.
static inline int64_t padded_value_dim(int64_t value_dim) { return (value_dim + 15) / 16 * 16; }

// Attention is computed in spans [256 s, 256 s + 256) of absolute positions (docs/adr/0019): each
// has its own maximum, sum and weighted values, its *partial*, and these are merged in ascending
// order.
constexpr int64_t kSpanTokens = 256;
static inline int64_t first_position(const AttentionArgs& args, int64_t token) {
  const int64_t position = args.position + token;
  return position >= args.window ? position + 1 - args.window : 0;
}
// The spans [first, end) of which at least one token sees something.
static inline int64_t first_span(const AttentionArgs& args) {
  return first_position(args, 0) / kSpanTokens;
}
static inline int64_t end_span(const AttentionArgs& args) {
  return (args.position + args.num_tokens - 1) / kSpanTokens + 1;
}
// A row is a token and a query head.
static inline int64_t attention_rows(const AttentionArgs& args) {
  return args.num_tokens * (args.end_kv_head - args.first_kv_head) *
         (args.end_in_group - args.first_in_group);
}
// Each row of scores in a span is padded by one cache line, so that neighbouring rows do not fall
// into the same cache set.
constexpr int64_t kScoreStride = kSpanTokens + 16;
int64_t attention_partial_floats(int64_t num_rows, int64_t value_dim);
// Values that are columns of the keys are copied for some columns of one span at a time, as
// float32, position by position: the number of floats.
constexpr int64_t kTransposedFloats = 32 * kSpanTokens;
int64_t attention_scratch_floats(int64_t num_rows, int64_t head_dim, int64_t value_dim,
                                 bool has_values);

// A state of float32 matrices is stored in strips of 16 columns, [matrix][strip][rows][16], with
// the last strip padded with zeros: a strip stays in the L1 cache while tokens pass through it.
static inline int64_t num_state_strips(int64_t columns) { return (columns + 15) / 16; }

// Consecutive tokens of one sequence. `state` is the state before the first and becomes that after
// the last; with `is_fresh` it starts as zeros, whatever it contains.
constexpr int64_t kMaxConvKernel = 16;
struct ConvArgs {
  const float* x;  // [num_tokens][width]
  float* out;      // likewise; may be x
  int64_t num_tokens;
  int64_t width;
  int64_t kernel;       // from 2 to kMaxConvKernel
  const float* weight;  // [width][kernel]
  const float* bias;    // [width], or null
  float* state;         // [kernel - 1][width]: the preceding inputs, oldest first
  bool is_fresh;
  bool has_silu;
  int64_t first_column;  // computed are columns [first_column, end_column); a multiple of 16
  int64_t end_column;
};

// The arguments for one token.
struct DeltaInputArgs {
  const float* x;           // [num_key_heads][key_dim] queries, then keys
  const float* decay;       // [num_heads]
  const float* beta;        // [num_heads]
  const float* rate;        // [num_heads]
  const float* decay_bias;  // [num_heads]
  int64_t num_heads;
  int64_t num_key_heads;
  int64_t key_dim;
  float epsilon;
  float* keys;     // of a key head: its key, then its query; key_stride floats from head to head
  int64_t key_stride;
  float* products;  // [num_key_heads]: key . query
  float* decays;    // [num_heads]
  float* betas;     // [num_heads]
};

struct DeltaArgs {
  const float* keys;  // [num_key_heads at key_head_stride][num_tokens][2][key_dim]
  int64_t key_head_stride;
  const float* products;  // [num_tokens][num_key_heads]
  const float* decays;    // [num_tokens][num_heads]
  const float* betas;     // likewise
  const float* values;    // [num_tokens at value_stride][num_heads][value_dim]
  int64_t value_stride;
  float* out;  // [num_tokens at out_stride][num_heads][value_dim]
  int64_t out_stride;
  int64_t num_tokens;
  int64_t num_heads;
  int64_t num_key_heads;
  int64_t key_dim;
  int64_t value_dim;
  bool is_tiled;  // head h has key head h % num_key_heads, and not h / (num_heads / num_key_heads)
  bool is_fresh;
  float* state;         // [num_heads][strips of value_dim][key_dim][16]
  int64_t first_strip;  // computed are strips [first_strip, end_strip) of those of all heads
  int64_t end_strip;
};

// The arguments for one token.
struct ScanInputArgs {
  const float* step;       // [num_heads]
  const float* step_bias;  // [num_heads]
  const float* rate;       // [num_heads]
  int64_t num_heads;
  float least_step;
  float largest_step;
  float* steps;   // [num_heads]
  float* decays;  // [num_heads]
};

struct ScanArgs {
  const float* x;  // [num_tokens at x_stride]: inputs [num_heads][head_dim], then b and c,
  int64_t x_stride;  // [num_groups][state_dim] each
  const float* steps;   // [num_tokens][num_heads]
  const float* decays;  // likewise
  const float* skip;    // [num_heads]
  float* out;           // [num_tokens at out_stride][num_heads][head_dim]
  int64_t out_stride;
  int64_t num_tokens;
  int64_t num_heads;
  int64_t head_dim;
  int64_t num_groups;
  int64_t state_dim;
  bool is_fresh;
  float* state;         // [num_heads][strips of head_dim][state_dim][16]
  int64_t first_strip;  // as in DeltaArgs
  int64_t end_strip;
};

// Number of logits that sampling processes as a block.
constexpr int64_t kSamplingBlock = 128;
// No draw of 24 bits can select a weight of e^-80, whatever the size of the vocabulary.
constexpr float kLeastExponent = -80.0f;

// The kernels of one instruction set.
struct Kernels {
  const char* isa;

  // Minimum number of panels per call of linear or linear_fast with many tokens: more than one if
  // it first copies all of the tokens.
  int64_t least_panels;

  // Computes q, scales, sums for rows of x; columns is a multiple of 32.
  void (*quantize)(const float* x, int64_t num_tokens, int64_t columns, int8_t* q, float* scales,
                   int32_t* sums);

  // Rounds each of `count` numbers to the nearest bf16, ties to even; NaN stays NaN.
  void (*round_bf16)(const float* x, int64_t count, uint16_t* out);

  // out = weight x + bias for all tokens and the rows of panels [first_panel, end_panel). For each
  // output element, quantized formats add group by group in ascending order, with one fma of the
  // exact integer sum (and one of the minimum's term if the format has one); float formats use one
  // fma per column, ascending. bias is added last.
  void (*linear[kNumFormats])(const LinearArgs& args, int64_t first_panel, int64_t end_panel);

  // One row of a matrix as float32.
  void (*embed[kNumFormats])(const Matrix& weight, int64_t row, float* out);

  // Converts `count` stored numbers of F32, F16 or BF16, which need no alignment, to float32.
  // Returns max |x|, which is infinite or NaN if not all are finite.
  float (*widen[kNumFloatFormats])(const uint8_t* stored, int64_t count, float* out);

  // Quantizes `count` finite numbers, in whole blocks, to the file's layout of kTargets[i]. Q8_0,
  // Q4_0 and Q5_0 have the same bytes as in the `gguf` package; the K formats and IQ4_NL minimize
  // each block's squared error by a search (convert/q4_k.h, q6_k.h, q3_k.h, iq4_nl.h). Returns
  // false if a scale exceeds f16: such a block of 32 has an infinite scale, and one of a K format
  // only zero bytes.
  bool (*encode[kNumTargets])(const float* x, int64_t count, uint8_t* out);

  // out = x / sqrt(mean(x^2) + epsilon) * weight per group of columns; weight has `group` entries,
  // or is null, which means ones.
  void (*rms_norm)(const float* x, const float* weight, float* out, int64_t num_tokens,
                   int64_t columns, int64_t group, float epsilon);

  // out = (x - mean(x)) / sqrt(variance(x) + epsilon) * weight for each token.
  void (*layer_norm)(const float* x, const float* weight, float* out, int64_t num_tokens,
                     int64_t columns, float epsilon);

  // Rotates pairs (i, i + rotary_dim / 2) of every head of one token; cos and sin have
  // rotary_dim / 2.
  void (*rope)(float* x, const float* cos, const float* sin, int64_t num_heads, int64_t head_dim,
               int64_t rotary_dim);

  // gate / (1 + exp(-gate)) * up.
  void (*silu_gate)(const float* gate, const float* up, float* out, int64_t count);
  // gate / (1 + exp(-2 u)) * up with u = sqrt(2 / pi) (gate + 0.044715 gate^3), which is
  // 0.5 gate (1 + tanh(u)) * up.
  void (*gelu_gate)(const float* gate, const float* up, float* out, int64_t count);
  // g / (1 + exp(-1.702 g)) * (u + 1) with g = min(gate, 7) and u = up, clamped to [-7, 7].
  void (*clamped_gate)(const float* gate, const float* up, float* out, int64_t count);

  // gate * up.
  void (*product_gate)(const float* gate, const float* up, float* out, int64_t count);
  // max(x, 0)^2.
  void (*relu_squared)(const float* x, float* out, int64_t count);

  void (*add)(float* x, const float* y, int64_t count);
  // x += scale * y: a product, then a sum.
  void (*add_scaled)(float* x, const float* y, float scale, int64_t count);
  // x *= factor.
  void (*scale)(float* x, float factor, int64_t count);
  // x *= y.
  void (*multiply)(float* x, const float* y, int64_t count);
  // out = 1 / (1 + exp(-x)).
  void (*sigmoid)(const float* x, float* out, int64_t count);
  // x = cap * tanh(x / cap).
  void (*softcap)(float* x, float cap, int64_t count);

  // Stores one token's keys [num_kv_heads][head_dim] and, unless value_dim is 0, its values
  // [num_kv_heads][value_dim] into its cache block.
  void (*append_kv)(const float* k, const float* v, uint16_t* keys, uint16_t* values,
                    int64_t block, int64_t offset, int64_t num_kv_heads, int64_t head_dim,
                    int64_t value_dim);

  // softmax(scale * q . keys) . values, over the positions that each token sees. Scores are capped
  // before the softmax, and a head's sink is one more score, without a value.
  void (*attention)(const AttentionArgs& args);

  // The same in two steps, with the same bits: compute the partial of one span, and merge those of
  // all the spans [first_span(args), end_span(args)), which are contiguous, each of
  // attention_partial_floats(...) floats.
  void (*attention_span)(const AttentionArgs& args, int64_t span, float* partial);
  void (*attention_merge)(const AttentionArgs& args, float* partials);

  // A short convolution of each column over its last inputs: one fma per input, oldest first, then
  // the bias is added; with has_silu, the result y becomes y / (1 + exp(-y)).
  void (*causal_conv)(const ConvArgs& args);

  // The factors of the gated delta rule for a token. Keys and queries are divided by sqrt(sum of
  // squares + epsilon), queries also by sqrt(key_dim); decays = exp(rate * softplus(decay +
  // decay_bias)), betas = 1 / (1 + exp(-beta)).
  void (*delta_inputs)(const DeltaInputArgs& args);

  // Token by token, with S the head's state and d = beta * (value - decay * (key . S)): out = (key
  // . query) * d + decay * (query . S), and S = S * decay + key d. Sums over key_dim are in
  // ascending order, one fma per term.
  void (*gated_delta)(const DeltaArgs& args);

  // steps = softplus(step + step_bias) clamped to [least_step, largest_step], decays = exp(rate *
  // steps).
  void (*scan_inputs)(const ScanInputArgs& args);

  // Token by token, with S the head's state: S = S * decay + b (step * x), out = skip * x + c . S.
  // Sums over state_dim are in ascending order, one fma per term.
  void (*state_scan)(const ScanArgs& args);

  // out[i] = exp(x[i] - max); returns the sum over 16 lanes and one tree. Used for
  // log-probabilities.
  float (*exp_sum)(const float* x, int64_t count, float max, float* out);

  // For sampling, from logits that are finite or minus infinity, by blocks of kSamplingBlock (the
  // last may be shorter). Sums of a block's weights are in float64, over 16 lanes and one tree.
  //
  // out[i] = logits[i] where bit i % 32 of mask[i / 32] is 1, elsewhere minus infinity.
  void (*copy_allowed)(const float* logits, const uint32_t* mask, int64_t count, float* out);
  // weights[i] = exp((logits[i] - largest) / temperature), or 0 for an exponent below
  // kLeastExponent, and the sum of each block.
  void (*draw_weights)(const float* logits, int64_t count, float largest, float temperature,
                       float* weights, double* sums);
  // The sum of each block's weights that are at least `least_weight` and whose logits are at least
  // `least_logit`.
  void (*kept_sums)(const float* logits, const float* weights, int64_t count, float least_logit,
                    float least_weight, double* sums);
  // For each block, the sum of the weights of logits above `high` and their number, and, from
  // within[kSamplingBlock * block] on, the offsets in the block of those in [low, high], in
  // ascending order, and their number. `within` has room for whole blocks, and low <= high.
  void (*split_logits)(const float* logits, const float* weights, int64_t count, float low,
                       float high, double* above, int32_t* num_above, int32_t* within,
                       int32_t* num_within);

  // Like `linear`, but faster and not bit-identical to it: BF16 weights, or quantized ones rounded
  // to bf16, are multiplied with Activations::bf16 in the instruction set's order of additions, and
  // subnormals are treated as zero (docs/adr/0017). An output element still depends on its token
  // alone. Null if the instruction set has no such product of the format, as always for F32 and
  // F16.
  void (*linear_fast[kNumFormats])(const LinearArgs& args, int64_t first_panel, int64_t end_panel);
};

}  // namespace potluck
