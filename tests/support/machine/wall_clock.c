/* Offsets the wall clock, and no other clock, of processes that load this library with LD_PRELOAD on Linux.

   The variable WALL_CLOCK_OFFSET is the path of a file with one int64, the offset in seconds. The file is mapped, so
   that a change takes effect at once. Waits with a deadline on the wall clock end by the kernel's unchanged clock. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const int64_t none;
static const volatile int64_t *offset_s = &none;

__attribute__((constructor)) static void map_offset(void) {
    const char *path = getenv("WALL_CLOCK_OFFSET");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *mapped = mmap(NULL, sizeof *offset_s, PROT_READ, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED) offset_s = mapped;
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*next)(clockid_t, struct timespec *);
    if (!next) next = dlsym(RTLD_NEXT, "clock_gettime");
    int result = next(clock, now);
    if (!result && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += *offset_s;
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec precise;
    int result = clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return result;
}

time_t time(time_t *now) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (now) *now = precise.tv_sec;
    return precise.tv_sec;
}

/* gRPC waits with futexes, some of them with a deadline on the wall clock. */
long syscall(long number, ...) {
    static long (*next)(long, ...);
    if (!next) next = dlsym(RTLD_NEXT, "syscall");
    long arguments[6];
    va_list list;
    va_start(list, number);
    for (int index = 0; index < 6; index++) arguments[index] = va_arg(list, long);
    va_end(list);
    struct timespec until;
    int is_wait = number == SYS_futex && (arguments[1] & FUTEX_CMD_MASK) == FUTEX_WAIT_BITSET;
    if (is_wait && (arguments[1] & FUTEX_CLOCK_REALTIME) && arguments[3]) {
        until = *(const struct timespec *)arguments[3];
        until.tv_sec -= *offset_s;
        arguments[3] = (long)&until;
    }
    return next(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], arguments[5]);
}
