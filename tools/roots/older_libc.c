// What Debian's libpython takes of its C library (2.36) and one of 2.17 lacks, by system calls. Each
// behaves as its manual page says, but that cancellation points are none.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

ssize_t getrandom(void* buffer, size_t length, unsigned flags) {
  return syscall(SYS_getrandom, buffer, length, flags);
}

int getentropy(void* buffer, size_t length) {
  if (length > 256) {
    errno = EIO;
    return -1;
  }
  return syscall(SYS_getrandom, buffer, length, 0) == (long)length ? 0 : -1;
}

void arc4random_buf(void* buffer, size_t length) {
  for (char* at = buffer; length > 0;) {
    ssize_t got = getrandom(at, length, 0);
    if (got < 0 && errno != EINTR) abort();
    if (got > 0) {
      at += got;
      length -= (size_t)got;
    }
  }
}

int memfd_create(const char* name, unsigned flags) {
  return (int)syscall(SYS_memfd_create, name, flags);
}

ssize_t copy_file_range(int in, off64_t* in_offset, int out, off64_t* out_offset, size_t length,
                        unsigned flags) {
  return syscall(SYS_copy_file_range, in, in_offset, out, out_offset, length, flags);
}

// The low and the high half of an offset are two arguments; the second is unused on 64 bits.
ssize_t preadv64v2(int fd, const struct iovec* parts, int count, off64_t offset, int flags) {
  return syscall(SYS_preadv2, fd, parts, count, offset, 0, flags);
}

ssize_t pwritev64v2(int fd, const struct iovec* parts, int count, off64_t offset, int flags) {
  return syscall(SYS_pwritev2, fd, parts, count, offset, 0, flags);
}

int close_range(unsigned first, unsigned last, int flags) {
  return (int)syscall(SYS_close_range, first, last, flags);
}

void __explicit_bzero_chk(void* bytes, size_t length, size_t bound) {
  (void)bound;
  for (volatile char* at = bytes; length > 0; --length) *at++ = 0;
}

int fcntl64(int fd, int command, ...) {
  va_list arguments;
  va_start(arguments, command);
  void* argument = va_arg(arguments, void*);
  va_end(arguments);
  return fcntl(fd, command, argument);
}

// The wall clock stands in for whatever clock is asked for: the time that is left is the same.
int sem_clockwait(sem_t* semaphore, clockid_t clock, const struct timespec* until) {
  struct timespec now, wall;
  if (clock_gettime(clock, &now) != 0 || clock_gettime(CLOCK_REALTIME, &wall) != 0) return -1;
  wall.tv_sec += until->tv_sec - now.tv_sec;
  wall.tv_nsec += until->tv_nsec - now.tv_nsec;
  if (wall.tv_nsec < 0) {
    wall.tv_nsec += 1000000000;
    --wall.tv_sec;
  } else if (wall.tv_nsec >= 1000000000) {
    wall.tv_nsec -= 1000000000;
    ++wall.tv_sec;
  }
  return sem_timedwait(semaphore, &wall);
}
