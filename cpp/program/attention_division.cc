#include "program/attention_division.h"

#include <algorithm>

#include "kernels/kernels.h"
#include "program/thread_pool.h"

namespace potluck {
namespace {

// Rows of one part: with fewer that share what they read, a thread waits for keys and values; with
// more, their queries and scores leave the second cache (64 rows are 200 KB at 128 columns).
constexpr int64_t kPartRows = 64;
// What reading a position costs, as rows that are computed: 32 bytes a nanosecond come from memory
// per core, or less, while 32 multiply-adds are done.
constexpr int64_t kReadRows = 4;

int64_t group_heads(const AttentionShape& shape) { return shape.num_heads / shape.num_kv_heads; }

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t most_tokens(const AttentionShape& shape, const AttentionLimits& limits) {
  const int64_t tokens = std::max<int64_t>(1, kPartRows / group_heads(shape));
  return std::min(tokens, limits.max_step_tokens);
}

// Key-value heads of one part.
int64_t most_heads(const AttentionShape& shape, int64_t num_tokens) {
  const int64_t heads = kPartRows / (num_tokens * group_heads(shape));
  return std::clamp<int64_t>(heads, 1, shape.num_kv_heads);
}

// The args of a tile, as far as spans follow from them.
AttentionArgs args_of(const AttentionTile& tile, const AttentionShape& shape) {
  AttentionArgs args{};
  args.num_tokens = tile.num_tokens;
  args.position = tile.position;
  args.window = shape.window;
  return args;
}

// Of one key-value head.
int64_t work_of(const AttentionTile& tile, const AttentionShape& shape) {
  const AttentionArgs args = args_of(tile, shape);
  const int64_t last = tile.position + tile.num_tokens - 1;
  int64_t seen = kReadRows * (last + 1 - first_position(args, 0));
  for (int64_t i = 0; i < tile.num_tokens; ++i)
    seen += group_heads(shape) * (tile.position + i + 1 - first_position(args, i));
  return 2 * shape.head_dim * seen;
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
  // In tiles as large as they may be while none is more than its fair share.
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

  // As many heads at once as fit, if need be cut by spans, then by heads.
  void add_tile(const AttentionTile& tile) {
    const AttentionArgs args = args_of(tile, shape_);
    const int64_t num_spans = end_span(args) - first_span(args);
    const int64_t head_work = work_of(tile, shape_);
    const int64_t head_rows = tile.num_tokens * group_heads(shape_);
    const int64_t head_floats = num_spans * attention_partial_floats(head_rows, shape_.head_dim);
    const bool can_cut = head_floats * shape_.num_kv_heads <= free_floats_;
    int64_t heads = most_heads(shape_, tile.num_tokens);
    const int64_t num_wanted = std::max<int64_t>(1, heads * head_work / fair_work_);
    const int64_t num_cuts = can_cut ? std::min(num_spans, num_wanted) : 1;
    heads = std::max<int64_t>(1, heads * num_cuts / num_wanted);
    const auto index = static_cast<int64_t>(division_.tiles.size());
    division_.tiles.push_back(tile);
    for (int64_t head = 0; head < shape_.num_kv_heads; head += heads) {
      const int64_t end_head = std::min(head + heads, shape_.num_kv_heads);
      const AttentionPart part{index, head, end_head, first_span(args), end_span(args),
                               kNoPartials, (end_head - head) * head_work};
      if (num_cuts == 1)
        division_.parts.push_back(part);
      else
        cut(part, num_cuts, (end_head - head) * head_floats);
    }
  }

  void cut(const AttentionPart& whole, int64_t num_cuts, int64_t floats) {
    const int64_t num_spans = whole.end_span - whole.first_span;
    division_.cuts.push_back({whole.tile, whole.first_kv_head, whole.end_kv_head, used_floats_});
    for (int64_t i = 0; i < num_cuts; ++i) {
      const int64_t begin = num_spans * i / num_cuts, end = num_spans * (i + 1) / num_cuts;
      AttentionPart part = whole;
      part.first_span = whole.first_span + begin;
      part.end_span = whole.first_span + end;
      part.partials = used_floats_ + floats / num_spans * begin;
      part.work = whole.work * (end - begin) / num_spans;
      division_.parts.push_back(part);
    }
    used_floats_ += floats;
    free_floats_ -= floats;
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
         a.head_dim == b.head_dim && a.window == b.window;
}

int64_t attention_part_rows(const AttentionShape& shape, const AttentionLimits& limits) {
  int64_t rows = 0;
  for (int64_t tokens = 1; tokens <= most_tokens(shape, limits); ++tokens)
    rows = std::max(rows, tokens * group_heads(shape) * most_heads(shape, tokens));
  return rows;
}

int64_t attention_cut_floats(const AttentionShape& shape, const AttentionLimits& limits) {
  if (limits.num_threads == 1) return 0;
  // Enough for as many of the longest sequences as have fewer key-value heads than there are
  // threads; more of them need no cuts.
  const int64_t num_sequences = divide_up(limits.num_threads, shape.num_kv_heads);
  const int64_t visible = std::min(limits.context_tokens, shape.window);
  // A window may begin and end within a span.
  const int64_t num_spans =
      std::min(divide_up(limits.context_tokens, kSpanTokens), divide_up(visible, kSpanTokens) + 1);
  if (num_spans == 1) return 0;
  return num_sequences * shape.num_kv_heads * num_spans *
         attention_partial_floats(group_heads(shape), shape.head_dim);
}

AttentionDivision divide_attention(const std::vector<BatchSlice>& slices,
                                   const AttentionShape& shape, const AttentionLimits& limits) {
  return Divider(shape, limits).divide(slices);
}

}  // namespace potluck
