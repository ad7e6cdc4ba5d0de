/* Preloaded into a process, fails or kills it at a chosen file operation; compiled and armed by shim.py.

   Only paths that contain `pattern` count. Operation number `at` (from 1) and the `times - 1` after it fail with
   `code`, or the process is killed where `code` is -1. Before it is armed, nothing changes. */
#define _GNU_SOURCE
#undef _FILE_OFFSET_BITS
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static char pattern[4096], operations[128];
static int code, at, times;
static atomic_int armed, count;

void shim_arm(const char *path_pattern, const char *names, int first, int number, int error) {
  snprintf(pattern, sizeof pattern, "%s", path_pattern);
  snprintf(operations, sizeof operations, " %s ", names);
  at = first;
  times = number;
  code = error;
  count = 0;
  armed = 1;
}

int shim_count(void) { return count; }

static int fails(const char *operation, const char *path) {
  char word[32];
  if (!armed || !path || !strstr(path, pattern)) return 0;
  snprintf(word, sizeof word, " %s ", operation);
  if (!strstr(operations, word)) return 0;
  int number = ++count;
  if (number < at || number >= at + times) return 0;
  if (code == -1) kill(getpid(), SIGKILL);
  errno = code;
  return 1;
}

static int fails_open_file(const char *operation, int descriptor) {
  char link[64], path[4096];
  if (!armed) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return 0;
  path[length] = 0;
  return fails(operation, path);
}

#define NEXT(name) __typeof__(&name) next = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define OPENS(name)                                                        \
  int name(const char *path, int flags, ...) {                              \
    va_list rest;                                                           \
    va_start(rest, flags);                                                  \
    int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, int) : 0;       \
    va_end(rest);                                                           \
    if (fails(flags & (O_WRONLY | O_RDWR) ? "create" : "open", path)) return -1; \
    NEXT(name);                                                             \
    return next(path, flags, mode);                                         \
  }
OPENS(open)
OPENS(open64)
ssize_t write(int file, const void *data, size_t size) {
  if (fails_open_file("write", file)) return -1;
  NEXT(write);
  return next(file, data, size);
}
ssize_t read(int file, void *data, size_t size) {
  if (fails_open_file("read", file)) return -1;
  NEXT(read);
  return next(file, data, size);
}
int fsync(int file) {
  if (fails_open_file("sync", file)) return -1;
  NEXT(fsync);
  return next(file);
}
int rename(const char *from, const char *to) {
  if (fails("rename", to)) return -1;
  NEXT(rename);
  return next(from, to);
}
int renameat2(int a, const char *from, int b, const char *to, unsigned flags) {
  if (fails("rename", to)) return -1;
  NEXT(renameat2);
  return next(a, from, b, to, flags);
}
int unlink(const char *path) {
  if (fails("unlink", path)) return -1;
  NEXT(unlink);
  return next(path);
}
int mkdir(const char *path, mode_t mode) {
  if (fails("mkdir", path)) return -1;
  NEXT(mkdir);
  return next(path, mode);
}
