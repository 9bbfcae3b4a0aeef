/* A library for LD_PRELOAD: one file call of a process fails, is cut short, or is lost.
 *
 * From the environment (benchmarks/calls.py sets it):
 * CALLS_KINDS  kinds of calls, between commas: write fsync truncate openw openr read rename link
 *              unlink mkdir stat opendir utime
 * CALLS_BELOW  only files whose path holds this
 * CALLS_AT     which of these calls is struck, from 1
 * CALLS_MODE   fail: it does nothing and returns CALLS_ERRNO.  deaf: it is done, and fails all the
 *              same, as when an answer is lost.  short: half of it is done.  lose: a write is not
 *              done, and counts as done.  flip: one bit of what is read is another one
 * CALLS_RANK   the MPI rank whose calls are counted
 * CALLS_LOG    a file to which a line is added when the call is struck
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { PATH = 4096 };
enum mode { FAIL, DEAF, SHORT, LOSE, FLIP };
static const char *const MODES[] = {"fail", "deaf", "short", "lose", "flip"};

static char kinds[256];
static const char *below, *record;
static enum mode mode;
static int error;
static long at, seen;

__attribute__((constructor)) static void begin(void)
{
    const char *rank = getenv("OMPI_COMM_WORLD_RANK"), *wanted = getenv("CALLS_RANK");
    if (!getenv("CALLS_KINDS") || (rank && wanted && strcmp(rank, wanted)))
        return;
    snprintf(kinds, sizeof kinds, ",%s,", getenv("CALLS_KINDS"));
    below = getenv("CALLS_BELOW");
    record = getenv("CALLS_LOG");
    error = atoi(getenv("CALLS_ERRNO"));
    for (int i = FAIL; i <= FLIP; i++)
        if (!strcmp(getenv("CALLS_MODE"), MODES[i]))
            mode = i;
    at = atol(getenv("CALLS_AT"));
}

/* Whether this call is the one to be struck. */
static int struck(const char *kind, const char *path)
{
    char word[32];
    snprintf(word, sizeof word, ",%s,", kind);
    if (!at || !path || !strstr(kinds, word) || !strstr(path, below))
        return 0;
    if (__atomic_add_fetch(&seen, 1, __ATOMIC_SEQ_CST) != at)
        return 0;
    char text[PATH + 64];
    int n = snprintf(text, sizeof text, "%s %s\n", kind, path);
    int log = syscall(SYS_openat, AT_FDCWD, record, O_WRONLY | O_CREAT | O_APPEND, 0644);
    syscall(SYS_write, log, text, n);
    syscall(SYS_close, log);
    return 1;
}

/* The same for a call with an open file. */
static int struck_file(const char *kind, int file)
{
    char link[64], path[PATH];
    int before = errno;
    if (!at)
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t n = readlink(link, path, sizeof path - 1);
    errno = before;
    if (n < 0)
        return 0;
    path[n] = 0;
    return struck(kind, path);
}

static long refused(void)
{
    errno = error;
    return -1;
}

#define REAL(type, name, ...)                                                                      \
    static type (*real)(__VA_ARGS__);                                                              \
    if (!real)                                                                                     \
        real = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

ssize_t write(int file, const void *data, size_t n)
{
    REAL(ssize_t, write, int, const void *, size_t);
    if (!struck_file("write", file))
        return real(file, data, n);
    if (mode == SHORT)
        return real(file, data, n > 1 ? n / 2 : n);
    if (mode == LOSE) {
        lseek(file, n, SEEK_CUR);
        return n;
    }
    return refused();
}

ssize_t pwritev2(int file, const struct iovec *data, int count, off_t where, int flags)
{
    REAL(ssize_t, pwritev2, int, const struct iovec *, int, off_t, int);
    if (!struck_file("write", file))
        return real(file, data, count, where, flags);
    if (mode == SHORT) {
        struct iovec half = {data[0].iov_base, data[0].iov_len / 2};
        return real(file, &half, 1, where, flags);
    }
    return mode == LOSE ? (ssize_t)data[0].iov_len : refused();
}

ssize_t pwritev64v2(int file, const struct iovec *data, int count, off_t where, int flags)
{
    return pwritev2(file, data, count, where, flags);
}

ssize_t read(int file, void *data, size_t n)
{
    REAL(ssize_t, read, int, void *, size_t);
    if (!struck_file("read", file))
        return real(file, data, n);
    if (mode == SHORT)
        return real(file, data, n > 1 ? n / 2 : n);
    if (mode != FLIP)
        return refused();
    ssize_t done = real(file, data, n);
    if (done > 0)
        ((char *)data)[done / 2] ^= 1;
    return done;
}

/* Calls with nothing but success or failure: struck, they fail, before or after the deed. */
#define PLAIN(name, test, parameters, ...)                                                         \
    int name parameters                                                                            \
    {                                                                                              \
        static int(*real) parameters;                                                              \
        if (!real)                                                                                 \
            real = (int(*) parameters)dlsym(RTLD_NEXT, #name);                                     \
        if (!test)                                                                                 \
            return real(__VA_ARGS__);                                                              \
        if (mode == DEAF)                                                                          \
            real(__VA_ARGS__);                                                                     \
        return refused();                                                                          \
    }

PLAIN(fsync, struck_file("fsync", file), (int file), file)
PLAIN(fdatasync, struck_file("fsync", file), (int file), file)
PLAIN(ftruncate, struck_file("truncate", file), (int file, off_t n), file, n)
PLAIN(ftruncate64, struck_file("truncate", file), (int file, off64_t n), file, n)
PLAIN(rename, struck("rename", to), (const char *from, const char *to), from, to)
PLAIN(link, struck("link", to), (const char *from, const char *to), from, to)
PLAIN(linkat, struck("link", to), (int a, const char *from, int b, const char *to, int flags), a,
      from, b, to, flags)
PLAIN(unlink, struck("unlink", path), (const char *path), path)
PLAIN(rmdir, struck("unlink", path), (const char *path), path)
PLAIN(mkdir, struck("mkdir", path), (const char *path, mode_t rights), path, rights)
PLAIN(stat, struck("stat", path), (const char *restrict path, struct stat *restrict found), path,
      found)
PLAIN(stat64, struck("stat", path), (const char *restrict path, struct stat64 *restrict found),
      path, found)
PLAIN(utimensat, struck("utime", path),
      (int folder, const char *path, const struct timespec times[2], int flags), folder, path, times,
      flags)

#define OPEN(name)                                                                                 \
    int name(const char *path, int flags, ...)                                                     \
    {                                                                                              \
        REAL(int, name, const char *, int, ...);                                                   \
        va_list more;                                                                              \
        va_start(more, flags);                                                                     \
        int rights = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, int) : 0;                        \
        va_end(more);                                                                              \
        int writes = flags & (O_WRONLY | O_RDWR | O_CREAT);                                        \
        return struck(writes ? "openw" : "openr", path) ? refused() : real(path, flags, rights);   \
    }

OPEN(open)
OPEN(open64)

void *opendir(const char *path)
{
    REAL(void *, opendir, const char *);
    if (!struck("opendir", path))
        return real(path);
    refused();
    return NULL;
}
