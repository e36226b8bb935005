// Whether AMX can be used: CPU support, and permission from the Linux kernel.
#pragma once

namespace potluck {

// Return whether the CPU has AMX-TILE, AMX-INT8 and AMX-BF16, and the operating system saves tile
// state on context switches.
bool cpu_has_amx();

// Request permission to use AMX tiles (arch_prctl ARCH_REQ_XCOMP_PERM) and return whether the kernel
// grants it. The request is made once, on the first call; the result applies to all existing and
// future threads of the process and to forked children.
bool request_amx_permission();

}  // namespace potluck
