// Prints the four words that Philox4x32-10 gives for six hexadecimal words: counter, then key.
#include <cstdio>
#include <cstdlib>

#include "program/philox.h"

int main(int argc, char** argv) {
  if (argc != 7) return 2;
  uint32_t words[6];
  for (int i = 0; i < 6; ++i) {
    words[i] = static_cast<uint32_t>(std::strtoul(argv[i + 1], nullptr, 16));
  }
  const auto out = potluck::philox4x32_10({words[0], words[1], words[2], words[3]},
                                          {words[4], words[5]});
  std::printf("%08x %08x %08x %08x\n", out[0], out[1], out[2], out[3]);
  return 0;
}
