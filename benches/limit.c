// The limit of a conversion on this machine: some threads read every byte of IN out of a mapping and write LEN constant bytes to OUT,
// whose room is set aside first, in pieces of a MiB, and do nothing else. If LEN is 0, they only read.
//
//   cc -O3 -march=native limit.c -o limit -lpthread && ./limit IN OUT LEN THREADS
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PIECE = 1 << 20 };

static int out;
static size_t in_len, out_len, next;
static const char *input;
static volatile unsigned long sink;

static void *work(void *unused) {
    char *constant = aligned_alloc(4096, PIECE);
    unsigned long sums[4] = {0};
    memset(constant, 7, PIECE);
    for (;;) {
        size_t at = __sync_fetch_and_add(&next, PIECE);
        if (at >= in_len) break;
        size_t len = in_len - at < PIECE ? in_len - at : PIECE;
        const unsigned long *words = (const void *)(input + at);
        for (size_t i = 0; i + 4 <= len / 8; i += 4)
            for (int lane = 0; lane < 4; lane++) sums[lane] += words[i + lane];
        // As large a share of the output, in whole pages.
        size_t from = (size_t)((double)at / in_len * out_len) & ~4095ul;
        size_t to = at + len >= in_len ? out_len : (size_t)((double)(at + len) / in_len * out_len) & ~4095ul;
        while (from < to) {
            ssize_t written = pwrite(out, constant, to - from < PIECE ? to - from : PIECE, from);
            if (written <= 0) abort();
            from += written;
        }
    }
    sink += sums[0] + sums[1] + sums[2] + sums[3];
    return unused;
}

int main(int count, char **arguments) {
    struct stat found;
    pthread_t threads[64];
    if (count != 5) return 2;
    int in = open(arguments[1], O_RDONLY), threads_len = atoi(arguments[4]);
    out_len = strtoul(arguments[3], 0, 0);
    if (in < 0 || fstat(in, &found) || threads_len < 1 || threads_len > 64) return 1;
    in_len = found.st_size;
    if (out_len) {
        unlink(arguments[2]);
        out = open(arguments[2], O_RDWR | O_CREAT, 0644);
        if (out < 0 || posix_fallocate(out, 0, out_len)) return 1;
    }
    input = mmap(0, in_len, PROT_READ, MAP_SHARED, in, 0);
    if (input == MAP_FAILED) return 1;
    for (int at = 0; at < threads_len; at++) pthread_create(threads + at, 0, work, 0);
    for (int at = 0; at < threads_len; at++) pthread_join(threads[at], 0);
    return 0;
}
