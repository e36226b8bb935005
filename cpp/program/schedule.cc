#include "program/schedule.h"

#include <algorithm>
#include <optional>
#include <type_traits>
#include <utility>

namespace potluck {
namespace {

std::optional<RowWise> as_row_wise(const op::Resolved& any) {
  return std::visit(
      [](const auto& o) -> std::optional<RowWise> {
        if constexpr (std::is_same_v<decltype(o), const op::Embed<int>&>) {
          if (!o.bounds.empty()) return std::nullopt;
        }
        if constexpr (std::is_constructible_v<RowWise, decltype(o)>) return RowWise(o);
        return std::nullopt;
      },
      any);
}

// Whether `any` is a linear op that can be computed together with `linears`: it has the same input,
// which none of them writes (Program has checked that), and a different output.
bool joins(const op::Resolved& any, const Linears& linears) {
  const auto* linear = std::get_if<op::Linear<int>>(&any);
  if (linear == nullptr || linear->x != linears.x) return false;
  return std::none_of(linears.ops.begin(), linears.ops.end(),
                      [&](const op::Linear<int>& other) { return other.out == linear->out; });
}

// The wide op that starts at ops[index], which advances past it.
Wide take_wide(const std::vector<op::Resolved>& ops, size_t& index) {
  const op::Resolved& any = ops[index++];
  if (const auto* embed = std::get_if<op::Embed<int>>(&any)) return *embed;
  if (const auto* gather = std::get_if<op::AllGather<int>>(&any)) return *gather;
  if (const auto* attention = std::get_if<op::Attention<int>>(&any)) return *attention;
  if (const auto* conv = std::get_if<op::CausalConv<int>>(&any)) return *conv;
  if (const auto* delta = std::get_if<op::GatedDelta<int>>(&any)) return *delta;
  if (const auto* scan = std::get_if<op::StateScan<int>>(&any)) return *scan;
  if (const auto* heads = std::get_if<op::HeadLinear<int>>(&any)) return *heads;
  if (const auto* moe = std::get_if<op::Moe<int>>(&any)) return *moe;
  if (const auto* head = std::get_if<op::Head<int>>(&any)) return *head;
  const auto& first = std::get<op::Linear<int>>(any);
  Linears linears{first.x, {first}};
  while (index < ops.size() && joins(ops[index], linears)) {
    linears.ops.push_back(std::get<op::Linear<int>>(ops[index++]));
  }
  return linears;
}

}  // namespace

std::vector<Phase> schedule(const std::vector<op::Resolved>& ops) {
  std::vector<Phase> phases;
  for (size_t index = 0; index < ops.size();) {
    Phase phase{index, {}, {}};
    while (index < ops.size()) {
      std::optional<RowWise> row_wise = as_row_wise(ops[index]);
      if (!row_wise) break;
      phase.row_wise.push_back(std::move(*row_wise));
      ++index;
    }
    if (index < ops.size()) phase.wide = take_wide(ops, index);
    phases.push_back(std::move(phase));
  }
  return phases;
}

}  // namespace potluck
