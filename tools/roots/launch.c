// Starts the program that EMULATED_PROGRAM names under /mnt/emulator, with this program's own
// arguments and argv[0]: a Python started so has this file as sys.executable, so that the Pythons
// that it starts are emulated as well.
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char** argv) {
  char** command = calloc((size_t)argc + 4, sizeof(char*));
  if (command == NULL) return 126;
  command[0] = "/mnt/emulator";
  command[1] = "-0";
  command[2] = argv[0];
  command[3] = getenv("EMULATED_PROGRAM");
  memcpy(command + 4, argv + 1, (size_t)argc * sizeof(char*));  // with the NULL at the end
  execv(command[0], command);
  return 127;
}
