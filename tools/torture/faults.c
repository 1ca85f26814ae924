/* Preloaded into a builder and its workers: another clock, and file operations that fail.

   Environment, all optional:
     FAULTS_CLOCK    "A,B,PERIOD": the wall clock is A seconds off, for PERIOD seconds, then B, then A again
     FAULTS_ROOT     directory below which file operations fail
     FAULTS_RATE     how many of a million operations fail there
     FAULTS_SHORT    how many of a million writes there write less than they were asked to
     FAULTS_SEED     a number that decides which
     FAULTS_ERRORS   "EIO", "ENOSPC" or "EIO,ENOSPC"
     FAULTS_LOG      file that takes one line for each operation that failed: its name, the error, the path
     FAULTS_KILL     the process kills itself before its so-many-th operation that changes something there
   The monotonic clock is left alone, as setting the time leaves it alone. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#define REAL(name, type) ((type)real(&slot_##name, #name))
#define SLOT(name) static _Atomic(void *) slot_##name

static void *real(_Atomic(void *) *slot, const char *name) {
  void *found = atomic_load(slot);
  if (found == NULL) {
    found = dlsym(RTLD_NEXT, name);
    if (found == NULL) abort();
    atomic_store(slot, found);
  }
  return found;
}

/* ---- the clock */

SLOT(clock_gettime);
typedef int (*clock_gettime_type)(clockid_t, struct timespec *);

static int64_t offset_now(void) {
  const char *text = getenv("FAULTS_CLOCK");
  long long first, second, period;
  if (text == NULL || sscanf(text, "%lld,%lld,%lld", &first, &second, &period) != 3) return 0;
  struct timespec now;
  if (period <= 0 || REAL(clock_gettime, clock_gettime_type)(CLOCK_MONOTONIC, &now) != 0) return first;
  return (now.tv_sec / period) % 2 == 0 ? first : second;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  int status = REAL(clock_gettime, clock_gettime_type)(clock, now);
  if (status == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += offset_now();
  return status;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  (void)zone;
  struct timespec exact;
  if (clock_gettime(CLOCK_REALTIME, &exact) != 0) return -1;
  now->tv_sec = exact.tv_sec;
  now->tv_usec = exact.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *result) {
  struct timespec now;
  if (clock_gettime(CLOCK_REALTIME, &now) != 0) return (time_t)-1;
  if (result != NULL) *result = now.tv_sec;
  return now.tv_sec;
}

/* ---- operations that fail */

SLOT(open);
SLOT(write);
typedef int (*open_type)(const char *, int, ...);
typedef int (*openat_type)(int, const char *, int, ...);
typedef ssize_t (*write_type)(int, const void *, size_t);

static _Atomic uint64_t drawn;

/* A number below a million: the next of a sequence that FAULTS_SEED begins (splitmix64). */
static unsigned draw(void) {
  const char *seed = getenv("FAULTS_SEED");
  uint64_t step = atomic_fetch_add(&drawn, 1) + 1;
  uint64_t z = (seed == NULL ? 0 : strtoull(seed, NULL, 10)) + step * UINT64_C(0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
  return (unsigned)((z ^ (z >> 31)) % 1000000);
}

static int happens(const char *rate_name) {
  const char *rate = getenv(rate_name);
  return rate != NULL && draw() < strtoul(rate, NULL, 10);
}

static int below_root(const char *path) {
  const char *root = getenv("FAULTS_ROOT");
  if (root == NULL || path == NULL) return 0;
  size_t length = strlen(root);
  return strncmp(path, root, length) == 0 && (path[length] == '/' || path[length] == '\0');
}

/* The path behind a descriptor; empty if it has none. */
static const char *path_of(int descriptor, char *buffer, size_t size) {
  char name[64];
  snprintf(name, sizeof name, "/proc/self/fd/%d", descriptor);
  ssize_t length = readlink(name, buffer, size - 1);
  buffer[length < 0 ? 0 : length] = '\0';
  return buffer;
}

static const char *path_at(int directory, const char *path, char *buffer, size_t size) {
  if (path == NULL || path[0] == '/' || directory == AT_FDCWD) return path;
  path_of(directory, buffer, size);
  size_t length = strlen(buffer);
  if (length + strlen(path) + 2 > size) return path;
  buffer[length] = '/';
  strcpy(buffer + length + 1, path);
  return buffer;
}

static void note(const char *operation, const char *what, const char *path) {
  const char *log = getenv("FAULTS_LOG");
  char line[PATH_MAX + 64];
  if (log == NULL) return;
  int length = snprintf(line, sizeof line, "%s %s %s\n", operation, what, path);
  int descriptor = REAL(open, open_type)(log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
  if (descriptor < 0) return;
  ssize_t ignored = REAL(write, write_type)(descriptor, line, (size_t)length);
  (void)ignored;
  close(descriptor);
}

static _Atomic unsigned long changes;

/* How many operations changed something below FAULTS_ROOT so far, in this process. */
unsigned long faults_changes(void) { return atomic_load(&changes); }

/* Whether this operation, which changes something, is to fail; then errno is set and it is noted. */
static int fails(const char *operation, const char *path) {
  if (!below_root(path)) return 0;
  const char *last = getenv("FAULTS_KILL");
  if (atomic_fetch_add(&changes, 1) + 1 == (last == NULL ? 0 : strtoul(last, NULL, 10))) {
    note(operation, "kill", path);
    kill(getpid(), SIGKILL);
  }
  if (getenv("FAULTS_RATE") == NULL || !happens("FAULTS_RATE")) return 0;
  const char *errors = getenv("FAULTS_ERRORS");
  int full = errors != NULL && strstr(errors, "ENOSPC") != NULL;
  int broken = errors == NULL || strstr(errors, "EIO") != NULL;
  int chosen = full && (!broken || draw() % 2 == 0) ? ENOSPC : EIO;
  note(operation, chosen == EIO ? "EIO" : "ENOSPC", path);
  errno = chosen;
  return 1;
}

static int fails_at(const char *operation, int directory, const char *path) {
  char buffer[PATH_MAX];
  return getenv("FAULTS_ROOT") != NULL && fails(operation, path_at(directory, path, buffer, sizeof buffer));
}

static int fails_on(const char *operation, int descriptor) {
  char buffer[PATH_MAX];
  return getenv("FAULTS_ROOT") != NULL && fails(operation, path_of(descriptor, buffer, sizeof buffer));
}

/* Opening for reading fails as well, for that is how a bad disk shows; it changes nothing. */
static int fails_to_open(int directory, const char *path, int flags) {
  if ((flags & (O_WRONLY | O_RDWR | O_CREAT)) != 0) return fails_at("open", directory, path);
  char buffer[PATH_MAX];
  if (getenv("FAULTS_RATE") == NULL) return 0;
  path = path_at(directory, path, buffer, sizeof buffer);
  if (!below_root(path) || !happens("FAULTS_RATE")) return 0;
  note("open", "EIO", path);
  errno = EIO;
  return 1;
}

#define OPEN(name)                                                       \
  SLOT(own_##name);                                                      \
  int name(const char *path, int flags, ...) {                           \
    va_list rest;                                                        \
    va_start(rest, flags);                                               \
    mode_t mode = va_arg(rest, mode_t);                                  \
    va_end(rest);                                                        \
    if (fails_to_open(AT_FDCWD, path, flags)) return -1;                                      \
    return ((open_type)real(&slot_own_##name, #name))(path, flags, mode); \
  }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                                      \
  SLOT(own_##name);                                                                       \
  int name(int directory, const char *path, int flags, ...) {                             \
    va_list rest;                                                                         \
    va_start(rest, flags);                                                                \
    mode_t mode = va_arg(rest, mode_t);                                                   \
    va_end(rest);                                                                         \
    if (fails_to_open(directory, path, flags)) return -1;                                     \
    return ((openat_type)real(&slot_own_##name, #name))(directory, path, flags, mode);     \
  }
OPENAT(openat)
OPENAT(openat64)

ssize_t write(int descriptor, const void *data, size_t size) {
  char buffer[PATH_MAX];
  if (fails_on("write", descriptor)) return -1;
  if (size > 1 && getenv("FAULTS_SHORT") != NULL &&
      below_root(path_of(descriptor, buffer, sizeof buffer)) && happens("FAULTS_SHORT")) {
    note("write", "short", buffer);
    size = 1 + draw() % (size - 1);
  }
  return REAL(write, write_type)(descriptor, data, size);
}

#define ON_DESCRIPTOR(name)                                        \
  SLOT(name);                                                      \
  int name(int descriptor) {                                       \
    if (fails_on(#name, descriptor)) return -1;                    \
    return REAL(name, int (*)(int))(descriptor);                   \
  }
ON_DESCRIPTOR(fsync)
ON_DESCRIPTOR(fdatasync)

#define ON_TWO(name)                                                             \
  SLOT(name);                                                                    \
  int name(const char *from, const char *to) {                                   \
    if (fails(#name, to)) return -1;                                             \
    return REAL(name, int (*)(const char *, const char *))(from, to);            \
  }
ON_TWO(rename)
ON_TWO(link)

SLOT(renameat);
int renameat(int from_directory, const char *from, int to_directory, const char *to) {
  if (fails_at("rename", to_directory, to)) return -1;
  return REAL(renameat, int (*)(int, const char *, int, const char *))(from_directory, from, to_directory, to);
}

SLOT(unlink);
int unlink(const char *path) {
  if (fails("unlink", path)) return -1;
  return REAL(unlink, int (*)(const char *))(path);
}

SLOT(unlinkat);
int unlinkat(int directory, const char *path, int flags) {
  if (fails_at("unlink", directory, path)) return -1;
  return REAL(unlinkat, int (*)(int, const char *, int))(directory, path, flags);
}

SLOT(rmdir);
int rmdir(const char *path) {
  if (fails("rmdir", path)) return -1;
  return REAL(rmdir, int (*)(const char *))(path);
}

SLOT(mkdir);
int mkdir(const char *path, mode_t mode) {
  if (fails("mkdir", path)) return -1;
  return REAL(mkdir, int (*)(const char *, mode_t))(path, mode);
}
