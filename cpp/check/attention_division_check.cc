// Checks how attention is divided: that every row, head and span is computed exactly once, that
// partials have places of their own, and that no thread gets much more than its share.
// Usage: attention_division_check; exits with 1 and a line on stderr when a check fails.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "kernels/kernels.h"
#include "program/attention_division.h"

namespace {

using namespace potluck;

void expect(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "failed: %s\n", what);
  std::exit(1);
}

AttentionArgs args_of(const AttentionTile& tile, const AttentionShape& shape) {
  AttentionArgs args{};
  args.num_tokens = tile.num_tokens;
  args.position = tile.position;
  args.window = shape.window;
  return args;
}

// The division of slices (num_tokens, position), checked.
AttentionDivision divide(const std::vector<std::pair<int64_t, int64_t>>& slices,
                         const AttentionShape& shape, const AttentionLimits& limits) {
  std::vector<BatchSlice> batch;
  int64_t num_rows = 0;
  for (const auto& [num_tokens, position] : slices) {
    batch.push_back({num_rows, num_tokens, position, 0});
    num_rows += num_tokens;
  }
  const AttentionDivision division = divide_attention(batch, shape, limits);
  const int64_t group = shape.num_heads / shape.num_kv_heads;
  const auto rows_of = [&](const AttentionTile& tile, const AttentionHeads& heads) {
    return tile.num_tokens * (heads.end_in_group - heads.first_in_group) *
           (heads.end_kv_head - heads.first_kv_head);
  };

  std::map<int64_t, int64_t> positions;  // of rows
  for (const AttentionTile& tile : division.tiles)
    for (int64_t i = 0; i < tile.num_tokens; ++i)
      expect(positions.emplace(tile.first_row + i, tile.position + i).second, "a row twice");
  for (const BatchSlice& slice : batch)
    for (int64_t i = 0; i < slice.num_tokens; ++i)
      expect(positions.at(slice.first_row + i) == slice.position + i, "a row elsewhere");
  expect(static_cast<int64_t>(positions.size()) == num_rows, "every row");

  std::set<std::tuple<int64_t, int64_t, int64_t>> done;  // tile, head, span
  std::map<int64_t, int64_t> places;  // of partials: where they begin, and how long they are
  size_t num_wanted = 0;
  for (const AttentionTile& tile : division.tiles) {
    const AttentionArgs args = args_of(tile, shape);
    num_wanted += static_cast<size_t>((end_span(args) - first_span(args)) * shape.num_heads);
  }
  for (const AttentionPart& part : division.parts) {
    const AttentionTile& tile = division.tiles.at(static_cast<size_t>(part.tile));
    const AttentionArgs args = args_of(tile, shape);
    const int64_t rows = rows_of(tile, part.heads);
    expect(rows <= attention_part_rows(shape, limits), "no more rows than there is scratch for");
    const bool is_whole =
        part.first_span == first_span(args) && part.end_span == end_span(args);
    expect(is_whole == (part.partials == kNoPartials), "partials where they are needed");
    for (int64_t span = part.first_span; span < part.end_span; ++span) {
      for (int64_t head = part.heads.first_kv_head; head < part.heads.end_kv_head; ++head)
        for (int64_t i = part.heads.first_in_group; i < part.heads.end_in_group; ++i)
          expect(done.insert({part.tile, head * group + i, span}).second, "a span twice");
      if (is_whole) continue;
      const int64_t floats = attention_partial_floats(rows, shape.value_dim);
      const int64_t place = part.partials + (span - part.first_span) * floats;
      expect(places.emplace(place, floats).second, "a place for each partial");
    }
  }
  expect(done.size() == num_wanted, "every span");
  int64_t end_of_partials = 0;
  for (const auto& [place, floats] : places) {
    expect(place >= end_of_partials, "partials do not overlap");
    end_of_partials = place + floats;
  }
  expect(end_of_partials <= attention_cut_floats(shape, limits), "partials fit");

  // Those of a cut lie one after another from where it says.
  for (const AttentionCut& cut : division.cuts) {
    const AttentionTile& tile = division.tiles.at(static_cast<size_t>(cut.tile));
    const AttentionArgs args = args_of(tile, shape);
    const int64_t rows = rows_of(tile, cut.heads);
    for (const AttentionPart& part : division.parts) {
      if (part.tile != cut.tile || part.heads.first_kv_head != cut.heads.first_kv_head ||
          part.heads.first_in_group != cut.heads.first_in_group)
        continue;
      expect(part.heads.end_kv_head == cut.heads.end_kv_head &&
                 part.heads.end_in_group == cut.heads.end_in_group,
             "a cut's heads");
      expect(part.partials == cut.partials + (part.first_span - first_span(args)) *
                                                 attention_partial_floats(rows, shape.value_dim),
             "a cut's partials");
    }
  }
  expect(division.chunks.front() == 0 &&
             division.chunks.back() == static_cast<int64_t>(division.parts.size()) &&
             std::is_sorted(division.chunks.begin(), division.chunks.end()),
         "chunks cover the parts");
  return division;
}

// The largest chunk, in shares of what each thread would have to do.
double largest_chunk(const AttentionDivision& division, int num_threads) {
  int64_t total = 0, largest = 0;
  for (int64_t i = 0; i < division.num_chunks(); ++i) {
    int64_t work = 0;
    for (int64_t p = division.chunks[static_cast<size_t>(i)];
         p < division.chunks[static_cast<size_t>(i) + 1]; ++p)
      work += division.parts[static_cast<size_t>(p)].work;
    total += work;
    largest = std::max(largest, work);
  }
  return static_cast<double>(largest) * num_threads / static_cast<double>(total);
}

AttentionShape shape_of(int64_t num_heads, int64_t num_kv_heads, int64_t head_dim,
                        int64_t window) {
  return {num_heads, num_kv_heads, head_dim, head_dim, true, window};
}

// As multi-head latent attention has it.
AttentionShape latent(int64_t num_heads) { return {num_heads, 1, 576, 512, false, kNoWindow}; }

}  // namespace

int main() {
  const AttentionShape llama = shape_of(32, 8, 64, kNoWindow);
  for (const int num_threads : {1, 2, 5, 16, 64}) {
    const AttentionLimits limits{512, 131072, num_threads};
    for (const AttentionShape& shape :
         {llama, shape_of(32, 32, 128, kNoWindow), shape_of(7, 1, 40, kNoWindow),
          shape_of(32, 8, 64, 1000), shape_of(71, 1, 64, 1), latent(20), latent(128)}) {
      divide({{1, 0}}, shape, limits);
      divide({{1, 5000}, {1, 255}, {1, 256}}, shape, limits);
      divide({{300, 250}, {1, 70}, {17, 2000}}, shape, limits);
      if (num_threads == 1) expect(attention_cut_floats(shape, limits) == 0, "no cuts alone");
    }
    // One long sequence, decoded or in chunks, keeps every thread busy; so does a ragged batch.
    if (num_threads > 16) continue;
    expect(largest_chunk(divide({{1, 4095}}, llama, limits), num_threads) <= 1, "a long one");
    if (num_threads == 1) continue;
    expect(largest_chunk(divide({{1, 4095}}, llama, limits), num_threads) <= 0.5, "a long decode");
    expect(largest_chunk(divide({{512, 0}}, llama, limits), num_threads) <= 0.5, "a prompt");
    expect(largest_chunk(divide({{20, 8000}}, llama, limits), num_threads) <= 0.5, "a chunk");
    const auto ragged = divide({{1, 50}, {1, 9000}, {500, 0}, {1, 700}}, llama, limits);
    expect(largest_chunk(ragged, num_threads) <= 0.5, "a ragged batch");
    // Where all query heads share one key-value head, too; also where there are no spans to cut by.
    for (const AttentionShape& shape : {latent(20), latent(128)}) {
      const auto share = [&](const std::vector<std::pair<int64_t, int64_t>>& slices) {
        return largest_chunk(divide(slices, shape, limits), num_threads);
      };
      expect(share({{1, 8191}}) <= 0.5, "a long latent decode");
      expect(share({{512, 0}}) <= 0.5, "a latent prompt");
      expect(share({{3, 2000}}) <= 1, "a few latent tokens");
    }
    if (num_threads <= 5) {
      expect(largest_chunk(divide({{1, 200}}, latent(128), limits), num_threads) <= 1,
             "a short latent decode");
    }
  }
  return 0;
}
