#include "program/gathers.h"

#include <optional>
#include <variant>

namespace potluck {
namespace {

// The registers of an op other than AllGather and Linear. A register that it writes partially is
// also read.
struct Registers {
  std::vector<int> read;
  std::vector<int> written;  // in full
};

Registers registers_of(const op::Embed<int>& o) { return {{}, {o.out}}; }
Registers registers_of(const op::RmsNorm<int>& o) { return {{o.x}, {o.out}}; }
Registers registers_of(const op::LayerNorm<int>& o) { return {{o.x}, {o.out}}; }
Registers registers_of(const op::Linear<int>& o) { return {{}, {o.out}}; }
// A member without a part reads nothing: its `x` is `out`.
Registers registers_of(const op::AllGather<int>& o) {
  if (o.x == o.out) return {};
  return {{o.x}, {}};
}
Registers registers_of(const op::HeadLinear<int>& o) { return {{o.x, o.out}, {}}; }
Registers registers_of(const op::CopyColumns<int>& o) { return {{o.x, o.out}, {}}; }
Registers registers_of(const op::Rope<int>& o) { return {{o.x}, {}}; }
Registers registers_of(const op::Attention<int>& o) {
  Registers all{{o.q}, {o.out}};
  if (o.k) all.read.push_back(*o.k);
  if (o.v) all.read.push_back(*o.v);
  return all;
}
Registers registers_of(const op::CausalConv<int>& o) { return {{o.x}, {o.out}}; }
Registers registers_of(const op::GatedDelta<int>& o) { return {{o.x, o.decay, o.beta}, {o.out}}; }
Registers registers_of(const op::StateScan<int>& o) { return {{o.x, o.step}, {o.out}}; }
Registers registers_of(const op::GatedActivation<int>& o) {
  Registers all{{o.up}, {o.out}};
  if (o.gate) all.read.push_back(*o.gate);
  return all;
}
Registers registers_of(const op::Moe<int>& o) { return {{o.x, o.logits}, {o.out}}; }
Registers registers_of(const op::SigmoidGate<int>& o) { return {{o.x, o.gate}, {}}; }
Registers registers_of(const op::Scale<int>& o) { return {{o.x}, {}}; }
Registers registers_of(const op::Multiply<int>& o) { return {{o.x}, {}}; }
Registers registers_of(const op::Add<int>& o) { return {{o.x, o.y}, {}}; }
Registers registers_of(const op::Head<int>& o) { return {{o.x}, {}}; }

}  // namespace

Gathers::Gathers(const Program& program) {
  // Maps a register to the gather whose rows it contains.
  std::vector<int> held(program.spec().registers.size(), kNone);
  for (const op::Resolved& any : program.ops()) {
    const Registers registers = std::visit([](const auto& o) { return registers_of(o); }, any);
    int index = kNone;
    for (const int read : registers.read) {
      if (held[read] != kNone) gathers_[held[read]].is_read_otherwise = true;
    }
    if (const auto* linear = std::get_if<op::Linear<int>>(&any)) {
      index = held[linear->x];
      if (index != kNone) gathers_[index].matrices.push_back(linear->weight);
    }
    for (const int written : registers.written) held[written] = kNone;
    if (const auto* gather = std::get_if<op::AllGather<int>>(&any)) {
      index = static_cast<int>(gathers_.size());
      gathers_.push_back({gather->out, gather->widths, {}, false});
      held[gather->out] = index;
    }
    of_op_.push_back(index);
  }
  const int last = held[program.hidden()];
  if (!program.spec().has_head && last != kNone) gathers_[last].is_read_otherwise = true;
}

}  // namespace potluck
