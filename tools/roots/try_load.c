// Asks the dynamic linker: reads paths from standard input, a line each, opens each in a process of
// its own as Python opens extension modules (RTLD_NOW, RTLD_LOCAL), and writes a line for each:
// nothing where it loads, or what dlerror() says, or "signal N" where opening it ended the process.
//
// It is linked with all of libpython, which it exports as an interpreter does, and never starts it;
// with expat and zlib, as the interpreters of distributions are.
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { kMaxSeconds = 120, kMaxLine = 65536 };

static void answer(int out, const char* path) {
  alarm(kMaxSeconds);
  dup2(STDERR_FILENO, STDOUT_FILENO);  // what initializers print is no answer
  const char* message = dlopen(path, RTLD_NOW | RTLD_LOCAL) != NULL ? "" : dlerror();
  if (write(out, message, strlen(message)) < 0) _exit(1);
  _exit(0);  // destructors are not run
}

static void try_load(const char* path) {
  int ends[2];
  if (pipe(ends) != 0) return;
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    answer(ends[1], path);
  }
  close(ends[1]);
  char message[kMaxLine];
  size_t length = 0;
  ssize_t got;
  while (length < sizeof message &&
         (got = read(ends[0], message + length, sizeof message - length)) > 0) {
    length += (size_t)got;
  }
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) {
    printf("signal %d\n", WTERMSIG(status));
    return;
  }
  for (size_t i = 0; i < length; ++i) {
    if (message[i] == '\n') message[i] = ' ';
  }
  printf("%.*s\n", (int)length, message);
}

int main(void) {
  char path[kMaxLine];
  while (fgets(path, sizeof path, stdin) != NULL) {
    path[strcspn(path, "\n")] = '\0';
    try_load(path);
  }
  return 0;
}
