// Checks of how ops are grouped. Usage: schedule_check CHECK; exits with 1 and a line on stderr when
// the check fails.
#include "program/schedule.h"

#include <cstdio>
#include <cstdlib>
#include <string>
#include <variant>
#include <vector>

namespace {

using potluck::Linears;
using potluck::Phase;
using potluck::schedule;
namespace op = potluck::op;

void expect(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "failed: %s\n", what);
  std::exit(1);
}

enum Registers { kHidden, kBranch, kQ, kK, kV, kAttended, kGate, kUp };

op::Resolved norm(int x, int out) { return op::RmsNorm<int>{x, 0, out, 8, 1e-5f}; }
op::Resolved linear(int x, int out) { return op::Linear<int>{x, 0, out, std::nullopt}; }
op::Resolved rope(int x) { return op::Rope<int>{x, 2, 8}; }
op::Resolved add(int x, int y) { return op::Add<int>{x, y}; }
op::Resolved attention() {
  return op::Attention<int>{kQ, kK, kV, kAttended, 0, 2, 2, 8, 1.0f, std::nullopt};
}

// "3r2" for three row-wise ops and two linear ones; "a", "m", "h" and "-" for
// attention, experts, head and none.
std::string text(const std::vector<Phase>& phases) {
  std::string all;
  for (const Phase& phase : phases) {
    if (!all.empty()) all += ' ';
    all += std::to_string(phase.row_wise.size()) + "r";
    if (const auto* linears = std::get_if<Linears>(&phase.wide)) {
      all += std::to_string(linears->ops.size());
    } else if (std::holds_alternative<op::Attention<int>>(phase.wide)) {
      all += "a";
    } else if (std::holds_alternative<op::Moe<int>>(phase.wide)) {
      all += "m";
    } else if (std::holds_alternative<op::Head<int>>(phase.wide)) {
      all += "h";
    } else {
      all += "-";
    }
  }
  return all;
}

void a_model() {
  const std::vector<op::Resolved> ops = {
      op::Embed<int>{0, kHidden},
      norm(kHidden, kBranch),
      linear(kBranch, kQ),
      linear(kBranch, kK),
      linear(kBranch, kV),
      norm(kQ, kQ),
      rope(kQ),
      norm(kK, kK),
      rope(kK),
      attention(),
      linear(kAttended, kBranch),
      add(kHidden, kBranch),
      norm(kHidden, kBranch),
      linear(kBranch, kGate),
      linear(kBranch, kUp),
      op::GatedActivation<int>{kGate, kUp, kGate},
      linear(kGate, kBranch),
      add(kHidden, kBranch),
      norm(kHidden, kBranch),
      op::Head<int>{kBranch, 0, 100},
  };
  const std::vector<Phase> phases = schedule(ops);
  expect(text(phases) == "2r3 4ra 0r1 2r2 1r1 2rh", "a layer has five phases");
  const size_t first_ops[] = {0, 5, 10, 11, 15, 17};
  for (size_t i = 0; i < phases.size(); ++i) {
    expect(phases[i].first_op == first_ops[i], "a phase knows its first op");
  }
}

void experts() {
  const op::Moe<int> moe{kBranch, kGate, 0, 0, 0, kBranch, 4, 2, 16, true};
  const std::vector<op::Resolved> ops = {norm(kHidden, kBranch), linear(kBranch, kGate), moe,
                                         add(kHidden, kBranch)};
  expect(text(schedule(ops)) == "1r1 0rm 1r-", "experts wait for their router");
}

void inputs_differ() {
  expect(text(schedule({linear(kBranch, kQ), linear(kAttended, kK)})) == "0r1 0r1",
         "linear ops with different inputs are not one phase");
  // The second reads what the first writes.
  expect(text(schedule({linear(kBranch, kQ), linear(kQ, kK)})) == "0r1 0r1",
         "a linear op waits for its input");
}

void outputs_differ() {
  const std::vector<Phase> phases =
      schedule({linear(kBranch, kQ), linear(kBranch, kK), linear(kBranch, kQ)});
  expect(text(phases) == "0r2 0r1", "two writers of one register are not one phase");
  expect(std::get<Linears>(phases[0].wide).ops[1].out == kK, "ops keep their order");
}

void row_wise_ops_keep_their_order() {
  const std::vector<Phase> phases = schedule({rope(kQ), add(kHidden, kBranch), norm(kHidden, kQ)});
  expect(text(phases) == "3r-", "a program may end with row-wise ops");
  expect(std::holds_alternative<op::Rope<int>>(phases[0].row_wise[0]) &&
             std::holds_alternative<op::Add<int>>(phases[0].row_wise[1]) &&
             std::holds_alternative<op::RmsNorm<int>>(phases[0].row_wise[2]),
         "row-wise ops keep their order");
  expect(schedule({}).empty(), "no ops are no phases");
}

}  // namespace

int main(int argc, char** argv) {
  const std::string check = argc > 1 ? argv[1] : "";
  if (check == "a_model") a_model();
  else if (check == "experts") experts();
  else if (check == "inputs_differ") inputs_differ();
  else if (check == "outputs_differ") outputs_differ();
  else if (check == "row_wise_ops_keep_their_order") row_wise_ops_keep_their_order();
  else expect(false, "a check of that name exists");
  return 0;
}
