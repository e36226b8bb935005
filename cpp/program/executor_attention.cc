// Attention ops of the executor.
#include "program/executor.h"

#include "program/op_work.h"

namespace potluck {

int64_t Executor::input_work(const op::Attention<int>& o) const {
  const int64_t columns = o.head_dim + (o.v ? value_dim_of(o) : 0);
  return o.k ? kNormWork * o.num_kv_heads * columns : 0;
}

// The keys and values of all tokens are stored in the cache before attention reads it.
void Executor::make_input(const op::Attention<int>& o, const Batch& batch, int64_t t) {
  if (!o.k) return;
  const KvCache& cache = caches_[o.cache_index];
  const BatchRow& token = batch.rows()[t];
  kernels_.append_kv(row(*o.k, t), o.v ? row(*o.v, t) : nullptr, cache.keys(), cache.values(),
                     token.block_table[token.position / kBlockTokens],
                     token.position % kBlockTokens, o.num_kv_heads, o.head_dim,
                     o.v ? value_dim_of(o) : 0);
}

void Executor::run_op(const op::Attention<int>& o, const Batch& batch,
                      ThreadPool::Session& session) {
  const KvCache& cache = caches_[o.cache_index];
  const int64_t value_dim = value_dim_of(o);
  const float* q = register_data(o.q);
  float* out = register_data(o.out);

  const AttentionDivision& division = division_for(shape_of(o), batch);
  float* partials = floats(partials_offset_);
  const auto args_of = [&](const auto& part, int worker) {
    const AttentionTile& t = division.tiles[static_cast<size_t>(part.tile)];
    AttentionArgs args{};
    args.q = q + t.first_row * o.num_heads * o.head_dim;
    args.out = out + t.first_row * o.num_heads * value_dim;
    args.num_tokens = t.num_tokens;
    args.position = t.position;
    args.window = o.window.value_or(kNoWindow);
    args.keys = cache.keys();
    args.values = o.value_start ? nullptr : cache.values();
    args.block_table = batch.rows()[static_cast<size_t>(t.first_row)].block_table;
    args.num_heads = o.num_heads;
    args.num_kv_heads = o.num_kv_heads;
    args.head_dim = o.head_dim;
    args.value_dim = value_dim;
    args.value_start = o.value_start.value_or(0);
    args.first_kv_head = part.heads.first_kv_head;
    args.end_kv_head = part.heads.end_kv_head;
    args.first_in_group = part.heads.first_in_group;
    args.end_in_group = part.heads.end_in_group;
    args.scale = o.scale;
    args.softcap = o.softcap.value_or(0.0f);
    args.sinks = vector(o.sinks);
    args.scratch = floats(attention_offset_) + attention_floats_ * static_cast<uint64_t>(worker);
    return args;
  };
  session.parallel_for(division.num_chunks(), [&](int64_t chunk, int worker) {
    const auto begin = static_cast<size_t>(division.chunks[static_cast<size_t>(chunk)]);
    const auto end = static_cast<size_t>(division.chunks[static_cast<size_t>(chunk) + 1]);
    for (size_t i = begin; i < end; ++i) {
      const AttentionPart& part = division.parts[i];
      const AttentionArgs args = args_of(part, worker);
      if (part.partials == kNoPartials) {
        kernels_.attention(args);
        continue;
      }
      float* partial = partials + part.partials;
      for (int64_t span = part.first_span; span < part.end_span; ++span) {
        kernels_.attention_span(args, span, partial);
        partial += attention_partial_floats(attention_rows(args), args.value_dim);
      }
    }
  });
  session.parallel_for(static_cast<int64_t>(division.cuts.size()), [&](int64_t i, int worker) {
    const AttentionCut& cut = division.cuts[static_cast<size_t>(i)];
    kernels_.attention_merge(args_of(cut, worker), partials + cut.partials);
  });
}

const AttentionDivision& Executor::division_for(const AttentionShape& shape, const Batch& batch) {
  for (const auto& [known, division] : part_->divisions) {
    if (known == shape) return division;
  }
  part_->divisions.emplace_back(shape, divide_attention(batch.slices(), shape, attention_limits_));
  return part_->divisions.back().second;
}

}  // namespace potluck
