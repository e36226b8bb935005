#include "program/attention_division.h"

#include <algorithm>

#include "kernels/kernels.h"
#include "program/thread_pool.h"

namespace potluck {
namespace {

// Rows of one part: with fewer rows that share what they read, a thread waits for keys and values;
// with more, their queries and scores do not fit in the L2 cache (64 rows are 200 KB at 128
// columns).
constexpr int64_t kPartRows = 64;
// The cost of reading a position, in rows that are computed: at most 32 bytes per nanosecond and
// core come from memory, the time of 32 multiply-adds. Values that are columns of the keys are
// transposed instead of read, which takes as long in total (docs/adr/0055).
constexpr int64_t kReadRows = 4;
// Query heads that share a key-value head are divided into parts of this many rows, not fewer,
// because each part reads all keys.
constexpr int64_t kLeastRows = 8;

int64_t group_heads(const AttentionShape& shape) { return shape.num_heads / shape.num_kv_heads; }

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t most_tokens(const AttentionShape& shape, const AttentionLimits& limits) {
  const int64_t tokens = std::max<int64_t>(1, kPartRows / group_heads(shape));
  return std::min(tokens, limits.max_step_tokens);
}

// Number of query heads of one part that share a key-value head.
int64_t most_in_group(const AttentionShape& shape, int64_t num_tokens) {
  return std::clamp<int64_t>(kPartRows / num_tokens, 1, group_heads(shape));
}

// Number of key-value heads of one part.
int64_t most_heads(const AttentionShape& shape, int64_t num_tokens) {
  const int64_t heads = kPartRows / (num_tokens * group_heads(shape));
  return std::clamp<int64_t>(heads, 1, shape.num_kv_heads);
}

// The args of a tile, as far as spans depend on them.
AttentionArgs args_of(const AttentionTile& tile, const AttentionShape& shape) {
  AttentionArgs args{};
  args.num_tokens = tile.num_tokens;
  args.position = tile.position;
  args.window = shape.window;
  return args;
}

// For one key-value head.
int64_t work_of(const AttentionTile& tile, const AttentionShape& shape) {
  const AttentionArgs args = args_of(tile, shape);
  const int64_t last = tile.position + tile.num_tokens - 1;
  int64_t seen = kReadRows * (last + 1 - first_position(args, 0));
  for (int64_t i = 0; i < tile.num_tokens; ++i)
    seen += group_heads(shape) * (tile.position + i + 1 - first_position(args, i));
  return (shape.head_dim + shape.value_dim) * seen;
}

class Divider {
 public:
  Divider(const AttentionShape& shape, const AttentionLimits& limits)
      : shape_(shape),
        num_threads_(limits.num_threads),
        tile_tokens_(most_tokens(shape, limits)),
        free_floats_(attention_cut_floats(shape, limits)) {}

  AttentionDivision divide(const std::vector<BatchSlice>& slices) {
    int64_t work = 0;
    for (const BatchSlice& slice : slices)
      work += shape_.num_kv_heads * work_of({slice.first_row, slice.num_tokens, slice.position},
                                            shape_);
    fair_work_ = std::max(kMinChunkWork, work / (num_threads_ * kChunksPerThread));
    for (const BatchSlice& slice : slices) add_slice(slice);
    std::stable_sort(
        division_.parts.begin(), division_.parts.end(),
        [](const AttentionPart& a, const AttentionPart& b) { return a.work > b.work; });
    add_chunks();
    return std::move(division_);
  }

 private:
  // In tiles as large as possible while none exceeds its fair share.
  void add_slice(const BatchSlice& slice) {
    int64_t most = tile_tokens_;
    const int64_t end = slice.num_tokens;
    while (num_threads_ > 1 && most > 1) {
      const int64_t tokens = std::min(most, end);
      const int64_t last = slice.position + end - tokens;
      if (work_of({slice.first_row + end - tokens, tokens, last}, shape_) <= fair_work_) break;
      most = divide_up(tokens, 2);
    }
    for (int64_t i = 0; i < end; i += most)
      add_tile({slice.first_row + i, std::min(most, end - i), slice.position + i});
  }

  // As many heads at once as fit; if necessary, cut by spans, then by heads.
  void add_tile(const AttentionTile& tile) {
    const AttentionArgs args = args_of(tile, shape_);
    const int64_t num_spans = end_span(args) - first_span(args);
    const int64_t head_work = work_of(tile, shape_);
    const int64_t group = group_heads(shape_);
    const int64_t cut_floats = num_spans * shape_.num_kv_heads * partial_floats(tile, group);
    const bool can_cut = cut_floats <= free_floats_;
    int64_t heads = most_heads(shape_, tile.num_tokens);
    int64_t in_group = most_in_group(shape_, tile.num_tokens);
    const int64_t part_work = heads * head_work * in_group / group;
    const int64_t num_wanted = std::max<int64_t>(1, part_work / fair_work_);
    const int64_t num_cuts = can_cut ? std::min(num_spans, num_wanted) : 1;
    if (heads < divide_up(num_wanted, num_cuts)) {
      const int64_t least = divide_up(kLeastRows, tile.num_tokens);
      in_group = std::clamp(in_group * heads * num_cuts / num_wanted, std::min(least, in_group),
                            in_group);
    }
    heads = std::max<int64_t>(1, heads * num_cuts / num_wanted);
    const auto index = static_cast<int64_t>(division_.tiles.size());
    division_.tiles.push_back(tile);
    const int64_t num_groups = divide_up(group, in_group);
    for (int64_t head = 0; head < shape_.num_kv_heads; head += heads) {
      const int64_t end_head = std::min(head + heads, shape_.num_kv_heads);
      for (int64_t i = 0; i < num_groups; ++i) {
        const int64_t first = group * i / num_groups, end = group * (i + 1) / num_groups;
        const AttentionPart part{index, {head, end_head, first, end}, first_span(args),
                                 end_span(args), kNoPartials,
                                 (end_head - head) * head_work * (end - first) / group};
        if (num_cuts == 1)
          division_.parts.push_back(part);
        else
          cut(part, num_cuts, (end_head - head) * partial_floats(tile, end - first));
      }
    }
  }

  // For one key-value head, and `in_group` query heads that share it.
  int64_t partial_floats(const AttentionTile& tile, int64_t in_group) const {
    return attention_partial_floats(tile.num_tokens * in_group, shape_.value_dim);
  }

  // `floats` is the size per span.
  void cut(const AttentionPart& whole, int64_t num_cuts, int64_t floats) {
    const int64_t num_spans = whole.end_span - whole.first_span;
    division_.cuts.push_back({whole.tile, whole.heads, used_floats_});
    for (int64_t i = 0; i < num_cuts; ++i) {
      const int64_t begin = num_spans * i / num_cuts, end = num_spans * (i + 1) / num_cuts;
      AttentionPart part = whole;
      part.first_span = whole.first_span + begin;
      part.end_span = whole.first_span + end;
      part.partials = used_floats_ + floats * begin;
      part.work = whole.work * (end - begin) / num_spans;
      division_.parts.push_back(part);
    }
    used_floats_ += floats * num_spans;
    free_floats_ -= floats * num_spans;
  }

  void add_chunks() {
    int64_t work = kMinChunkWork;
    for (size_t i = 0; i < division_.parts.size(); ++i) {
      if (work >= kMinChunkWork) {
        division_.chunks.push_back(static_cast<int64_t>(i));
        work = 0;
      }
      work += division_.parts[i].work;
    }
    division_.chunks.push_back(static_cast<int64_t>(division_.parts.size()));
  }

  const AttentionShape& shape_;
  const int64_t num_threads_;
  const int64_t tile_tokens_;
  int64_t free_floats_;
  int64_t used_floats_ = 0;
  int64_t fair_work_ = 0;
  AttentionDivision division_;
};

}  // namespace

bool operator==(const AttentionShape& a, const AttentionShape& b) {
  return a.num_heads == b.num_heads && a.num_kv_heads == b.num_kv_heads &&
         a.head_dim == b.head_dim && a.value_dim == b.value_dim &&
         a.has_values == b.has_values && a.window == b.window;
}

int64_t attention_part_rows(const AttentionShape& shape, const AttentionLimits& limits) {
  int64_t rows = 0;
  for (int64_t tokens = 1; tokens <= most_tokens(shape, limits); ++tokens)
    rows = std::max(rows, tokens * most_in_group(shape, tokens) * most_heads(shape, tokens));
  return rows;
}

int64_t attention_cut_floats(const AttentionShape& shape, const AttentionLimits& limits) {
  if (limits.num_threads == 1) return 0;
  // Enough for as many of the longest sequences as have fewer parts by heads alone than there are
  // threads; more of them need no cuts.
  const int64_t num_groups = std::max<int64_t>(1, group_heads(shape) / kLeastRows);
  const int64_t num_sequences = divide_up(limits.num_threads, shape.num_kv_heads * num_groups);
  const int64_t visible = std::min(limits.context_tokens, shape.window);
  // A window may start and end within a span.
  const int64_t num_spans =
      std::min(divide_up(limits.context_tokens, kSpanTokens), divide_up(visible, kSpanTokens) + 1);
  if (num_spans == 1) return 0;
  return num_sequences * shape.num_kv_heads * num_spans *
         attention_partial_floats(group_heads(shape), shape.value_dim);
}

AttentionDivision divide_attention(const std::vector<BatchSlice>& slices,
                                   const AttentionShape& shape, const AttentionLimits& limits) {
  return Divider(shape, limits).divide(slices);
}

}  // namespace potluck
