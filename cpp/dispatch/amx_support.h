// Whether AMX can be used: by the CPU, and by leave of the kernel.
#pragma once

namespace potluck {

// Tiles, their 8-bit and their bf16 products, and an operating system that switches tile state.
bool cpu_has_amx();

// Whether the kernel lets this process use tiles. It is asked once, at the first call; the answer
// holds for all threads, those that exist and those to come, and for forked children.
bool may_use_tiles();

}  // namespace potluck
