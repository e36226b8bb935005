#include "program/cores.h"

#include <sched.h>
#include <unistd.h>

namespace potluck {

int current_core() {
  const int core = sched_getcpu();
  return core >= 0 ? core : kNoCore;
}

bool avoid_cores(const std::vector<int>& taken) {
  // The first thread may use all cores of the process: only the pool's own threads avoid any. They
  // are read each time, because the cpuset of a control group can change. Reading them fails on a
  // machine with more cores than cpu_set_t supports.
  cpu_set_t others;
  if (sched_getaffinity(getpid(), sizeof others, &others) != 0) return false;
  for (const int core : taken) {
    if (core >= 0 && core < CPU_SETSIZE) CPU_CLR(static_cast<size_t>(core), &others);
  }
  return CPU_COUNT(&others) > 0 && sched_setaffinity(0, sizeof others, &others) == 0;
}

}  // namespace potluck
