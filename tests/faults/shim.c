/* Faults on demand, for a process that is started with LD_PRELOAD. Operations that write below one folder are counted, and at
 * the chosen one the process is killed, or the operation fails, once or from then on. Forked processes count together, so the
 * fault meets one of them, or from then on all. Build: cc -shared -fPIC -o shim.so shim.c -ldl
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

enum { NONE, KILL, FULL, EIO_WRITE, FSYNC, READ_ONLY, EIO_READ, CLOCK };

static char folder[4096];
static struct { volatile long count, reads; } *shared;
static volatile long chosen;
static volatile int kind;

__attribute__((constructor)) static void begin(void) {
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

void fault_set(int what, long at, const char *below) {
    snprintf(folder, sizeof folder, "%s", below);
    shared->count = shared->reads = 0, chosen = at, kind = what;
}

long fault_count(void) { return shared->count; }
long fault_reads(void) { return shared->reads; }

static int below(const char *path) {
    return folder[0] && path && !strncmp(path, folder, strlen(folder));
}

static int fd_below(int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return below(path);
}

/* One operation that writes: returns the error it has to fail with, or 0. */
static int operation(int is_sync, int is_open) {
    long now = __sync_add_and_fetch(&shared->count, 1);
    if (kind == KILL && now == chosen) kill(getpid(), SIGKILL);
    if (kind == FULL && now >= chosen && !is_sync) return ENOSPC;
    if (kind == EIO_WRITE && now == chosen) return EIO;
    if (kind == FSYNC && is_sync && now >= chosen) return EIO;
    if (kind == READ_ONLY && is_open && now >= chosen) return EROFS;
    return 0;
}

#define REAL(name) static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define FAIL(error) do { errno = (error); return -1; } while (0)

ssize_t write(int fd, const void *data, size_t size) {
    REAL(write);
    if (kind != NONE || folder[0]) {
        int error = fd_below(fd) ? operation(0, 0) : 0;
        if (error) FAIL(error);
    }
    return real(fd, data, size);
}

int fsync(int fd) {
    REAL(fsync);
    int error = folder[0] && fd_below(fd) ? operation(1, 0) : 0;
    if (error) FAIL(error);
    return real(fd);
}

/* SQLite */
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    REAL(pwrite64);
    int error = folder[0] && fd_below(fd) ? operation(0, 0) : 0;
    if (error) FAIL(error);
    return real(fd, data, size, at);
}

int fdatasync(int fd) {
    REAL(fdatasync);
    int error = folder[0] && fd_below(fd) ? operation(1, 0) : 0;
    if (error) FAIL(error);
    return real(fd);
}

int rename(const char *from, const char *to) {
    REAL(rename);
    int error = below(to) ? operation(0, 1) : 0;
    if (error) FAIL(error);
    return real(from, to);
}

int open64(const char *path, int flags, ...) {
    REAL(open64);
    va_list rest;
    va_start(rest, flags);
    mode_t mode = va_arg(rest, mode_t);
    va_end(rest);
    int writes = flags & (O_WRONLY | O_RDWR | O_CREAT);
    int error = writes && below(path) ? operation(0, 1) : 0;
    if (error) FAIL(error);
    return real(path, flags, mode);
}

int open(const char *path, int flags, ...) {
    REAL(open);
    va_list rest;
    va_start(rest, flags);
    mode_t mode = va_arg(rest, mode_t);
    va_end(rest);
    int writes = flags & (O_WRONLY | O_RDWR | O_CREAT);
    int error = writes && below(path) ? operation(0, 1) : 0;
    if (error) FAIL(error);
    return real(path, flags, mode);
}

ssize_t read(int fd, void *data, size_t size) {
    REAL(read);
    if (kind == EIO_READ && size > 0 && fd_below(fd) && __sync_add_and_fetch(&shared->reads, 1) == chosen) FAIL(EIO);
    return real(fd, data, size);
}

int clock_gettime(clockid_t id, struct timespec *now) {
    REAL(clock_gettime);
    int code = real(id, now);
    if (kind == CLOCK && id == CLOCK_REALTIME && !code) {
        long step = __sync_add_and_fetch(&shared->reads, 1) / (chosen ? chosen : 1);
        now->tv_sec += (step % 2 ? -1 : 1) * 86400 * (step % 40);
    }
    return code;
}
