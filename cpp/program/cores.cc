#include "program/cores.h"

namespace potluck {

int current_core() {
  const int core = sched_getcpu();
  return core >= 0 ? core : kNoCore;
}

// This fails on a machine with more cores than cpu_set_t supports.
AllowedCores::AllowedCores() : is_known_(sched_getaffinity(0, sizeof cores_, &cores_) == 0) {}

bool AllowedCores::avoid(const std::vector<int>& taken) const {
  if (!is_known_) return false;
  cpu_set_t others = cores_;
  for (const int core : taken) {
    if (core >= 0 && core < CPU_SETSIZE) CPU_CLR(static_cast<size_t>(core), &others);
  }
  return CPU_COUNT(&others) > 0 && sched_setaffinity(0, sizeof others, &others) == 0;
}

}  // namespace potluck
