#include "program/products.h"

#include <algorithm>

namespace potluck {
namespace {

// A piece takes about 3 us on one core: long enough that the cost of taking it is negligible, and
// short enough that nobody waits long for the last one. Counted in bytes of weights read at about
// 20 GB/s; with many tokens, multiply-adds dominate, and about as many of them take the time of a
// byte as a vector has lanes.
constexpr int64_t kPieceCost = 65536;
constexpr int64_t kMultiplyAddsPerByte = 32;

// Kernels process several panels at a time if there are enough.
constexpr int64_t kUnitPanels = 4;
// With fewer units per worker, single panels are divided.
constexpr int64_t kLeastUnits = 4;

// From this number of tokens on, products take longer than reading their weights from memory.
constexpr int64_t kManyTokens = 16;

// How one product is divided: `unit_panels * num_units` panels (the last unit may have fewer), in
// `num_pieces` pieces per worker.
struct Division {
  int64_t unit_panels;
  int64_t num_units;
  int64_t num_pieces;
};

int64_t panel_cost(const LinearArgs& args) {
  const Matrix& weight = args.weight;
  return panel_bytes(weight.format, weight.columns) +
         kPanelRows * weight.columns * args.num_tokens / kMultiplyAddsPerByte;
}

Division divide(const Product& product, int64_t num_workers) {
  const LinearArgs& args = product.args;
  const int64_t panels = num_panels(args.weight.rows);
  const int64_t unit_panels =
      panels >= kUnitPanels * kLeastUnits * num_workers ? kUnitPanels : 1;
  const int64_t num_units = (panels + unit_panels - 1) / unit_panels;
  const int64_t worth = panels * panel_cost(args) / (kPieceCost * num_workers);
  int64_t most = num_units / num_workers;
  if (args.num_tokens >= kManyTokens) {
    most = std::min(most, panels / (product.least_panels * num_workers));
  }
  return {unit_panels, num_units, std::clamp<int64_t>(worth, 1, std::max<int64_t>(1, most))};
}

void run_piece(const Product& product, const Division& division, int64_t piece,
               int64_t num_pieces) {
  const int64_t panels = num_panels(product.args.weight.rows);
  const int64_t begin = division.num_units * piece / num_pieces * division.unit_panels;
  const int64_t end =
      std::min(division.num_units * (piece + 1) / num_pieces * division.unit_panels, panels);
  // With fewer units than workers, some pieces are empty.
  if (begin < end) product.kernel(product.args, begin, end);
}

}  // namespace

bool uses_fast(const Kernels& kernels, Arithmetic arithmetic, Format format, bool is_prefill) {
  return arithmetic == Arithmetic::Fast &&
         kernels.linear_fast[static_cast<int>(format)] != nullptr &&
         (is_prefill || !is_quantized(format));
}

void multiply(const std::vector<Product>& products, ThreadPool::Session& session) {
  const int64_t num_workers = session.num_threads();
  std::vector<Division> divisions;
  int64_t num_pieces = 0;  // per worker
  int64_t cost = 0;
  for (const Product& product : products) {
    divisions.push_back(divide(product, num_workers));
    num_pieces += divisions.back().num_pieces;
    cost += num_panels(product.args.weight.rows) * panel_cost(product.args);
  }
  if (num_workers == 1 || cost <= kPieceCost) {
    for (const Product& product : products) {
      product.kernel(product.args, 0, num_panels(product.args.weight.rows));
    }
    return;
  }
  session.parallel_for(num_workers * num_pieces, [&](int64_t chunk, int) {
    const int64_t worker = chunk / num_pieces;
    int64_t piece = chunk % num_pieces;
    size_t i = 0;
    while (piece >= divisions[i].num_pieces) piece -= divisions[i++].num_pieces;
    const int64_t of_worker = divisions[i].num_pieces;
    run_piece(products[i], divisions[i], worker * of_worker + piece, num_workers * of_worker);
  });
}

}  // namespace potluck
