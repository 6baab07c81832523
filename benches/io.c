// Ways to read an input and to write an output, each timed alone, by programs that compute nothing: `io.py` compares them.
//
//   cc -O3 -march=native io.c -o io -lpthread && ./io IN OUT LEN THREADS READ WRITE PIECE SHIFT
//
// Threads take pieces of IN from a counter, add up their words, fill as large a share of the LEN bytes of OUT with a constant, and
// write that. READ and WRITE are names of the tables below, "none" is nothing. A piece is PIECE bytes of the longer file; all but
// the first begin SHIFT bytes later. Prints the seconds from the first open to the last close.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, HUGE_PAGE = 2 << 20 };

static int in, out;
static size_t in_len, out_len, piece, shift, next;
static char *input, *output;
static volatile unsigned long sink;

static void check(int is_right, const char *what) {
    if (is_right) return;
    perror(what);
    exit(errno == EINVAL || errno == EOPNOTSUPP || errno == ENOSYS || errno == EPERM ? 77 : 1); // 77: the system lacks it
}

static char *memory(size_t len, int is_huge) {
    char *got = aligned_alloc(HUGE_PAGE, (len + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE);
    if (is_huge) madvise(got, len, MADV_HUGEPAGE);
    memset(got, 0, len);
    return got;
}

// What a thread has.
struct worker {
    char *buffer[2], *source;
    int pipe[2], ring, turn, busy;
    struct io_uring_sqe *entries;
    unsigned *head, *tail, *mask, *array, *done_head, *done_tail, *done_mask;
    struct io_uring_cqe *done;
};

/* Reading: gives the bytes at an offset of the input. */

static char *read_mapped(struct worker *self, size_t at, size_t len) { return input + at; }

static char *read_populated(struct worker *self, size_t at, size_t len) {
    size_t from = at / PAGE * PAGE;
    check(!madvise(input + from, at + len - from, MADV_POPULATE_READ), "MADV_POPULATE_READ");
    return input + at;
}

static char *read_piece_mapped(struct worker *self, size_t at, size_t len) {
    size_t from = at / PAGE * PAGE;
    self->source = mmap(0, at + len - from, PROT_READ, MAP_SHARED | MAP_POPULATE, in, from);
    check(self->source != MAP_FAILED, "mmap");
    return self->source + at - from;
}

static char *read_copied(struct worker *self, size_t at, size_t len) {
    check(pread(in, self->source, len, at) == (ssize_t)len, "pread");
    return self->source;
}

/* Writing: fills bytes and writes them. */

static void write_plain(struct worker *self, size_t at, size_t len) {
    memset(self->buffer[0], 7, len);
    check(pwrite(out, self->buffer[0], len, at) == (ssize_t)len, "pwrite");
}

static void write_mapped(struct worker *self, size_t at, size_t len) { memset(output + at, 7, len); }

static void write_populated(struct worker *self, size_t at, size_t len) {
    size_t from = at / PAGE * PAGE;
    check(!madvise(output + from, at + len - from, MADV_POPULATE_WRITE), "MADV_POPULATE_WRITE");
    memset(output + at, 7, len);
}

// From the mapping of the input, as tensors are copied.
static void write_source(struct worker *self, size_t at, size_t len) {
    check(pwrite(out, input + at, len, at) == (ssize_t)len, "pwrite");
}

static void write_range(struct worker *self, size_t at, size_t len) {
    while (len) {
        off_t from = at, to = at;
        ssize_t copied = copy_file_range(in, &from, out, &to, len, 0);
        check(copied > 0, "copy_file_range");
        at += copied, len -= copied;
    }
}

static void write_spliced(struct worker *self, size_t at, size_t len) {
    struct iovec rest = {self->buffer[0], len};
    memset(self->buffer[0], 7, len);
    while (rest.iov_len) {
        ssize_t given = vmsplice(self->pipe[1], &rest, 1, 0);
        check(given > 0, "vmsplice");
        rest.iov_base = (char *)rest.iov_base + given, rest.iov_len -= given;
        while (given) {
            off_t to = at;
            ssize_t moved = splice(self->pipe[0], 0, out, &to, given, SPLICE_F_MOVE);
            check(moved > 0, "splice");
            at += moved, given -= moved;
        }
    }
}

static void wait_for_ring(struct worker *self) {
    if (!self->busy) return;
    while (__atomic_load_n(self->done_tail, __ATOMIC_ACQUIRE) == *self->done_head)
        check(syscall(SYS_io_uring_enter, self->ring, 0, 1, IORING_ENTER_GETEVENTS, 0, 0) >= 0, "io_uring_enter");
    errno = -self->done[*self->done_head & *self->done_mask].res;
    check(self->done[*self->done_head & *self->done_mask].res == self->busy, "io_uring write");
    __atomic_store_n(self->done_head, *self->done_head + 1, __ATOMIC_RELEASE);
    self->busy = 0;
}

// One buffer is written while the other is filled.
static void write_ring(struct worker *self, size_t at, size_t len) {
    int turn = self->turn ^= 1;
    memset(self->buffer[turn], 7, len);
    wait_for_ring(self);
    unsigned tail = *self->tail, slot = tail & *self->mask;
    self->entries[slot] = (struct io_uring_sqe){.opcode = IORING_OP_WRITE_FIXED, .fd = out, .off = at,
        .addr = (unsigned long)self->buffer[turn], .len = len, .buf_index = turn};
    self->array[slot] = slot;
    __atomic_store_n(self->tail, tail + 1, __ATOMIC_RELEASE);
    check(syscall(SYS_io_uring_enter, self->ring, 1, 0, 0, 0, 0) == 1, "io_uring_enter");
    self->busy = len;
}

static void open_ring(struct worker *self) {
    struct io_uring_params set = {0};
    struct iovec buffers[2] = {{self->buffer[0], piece + PAGE}, {self->buffer[1], piece + PAGE}};
    self->ring = syscall(SYS_io_uring_setup, 4, &set);
    check(self->ring >= 0, "io_uring_setup");
    check(!syscall(SYS_io_uring_register, self->ring, IORING_REGISTER_BUFFERS, buffers, 2), "io_uring_register");
    char *queue = mmap(0, set.sq_off.array + set.sq_entries * 4, PROT_READ | PROT_WRITE, MAP_SHARED, self->ring, IORING_OFF_SQ_RING);
    char *over = mmap(0, set.cq_off.cqes + set.cq_entries * sizeof *self->done, PROT_READ | PROT_WRITE, MAP_SHARED, self->ring, IORING_OFF_CQ_RING);
    self->entries = mmap(0, set.sq_entries * sizeof *self->entries, PROT_READ | PROT_WRITE, MAP_SHARED, self->ring, IORING_OFF_SQES);
    check(queue != MAP_FAILED && over != MAP_FAILED && self->entries != MAP_FAILED, "mmap");
    self->tail = (void *)(queue + set.sq_off.tail), self->mask = (void *)(queue + set.sq_off.ring_mask);
    self->array = (void *)(queue + set.sq_off.array), self->done = (void *)(over + set.cq_off.cqes);
    self->done_head = (void *)(over + set.cq_off.head), self->done_tail = (void *)(over + set.cq_off.tail);
    self->done_mask = (void *)(over + set.cq_off.ring_mask);
}

enum { MAPS = 1, HUGE_INPUT = 2, COPIES = 4, UNMAPS = 8 };
static const struct { const char *name; char *(*get)(struct worker *, size_t, size_t); int how; } READS[] = {
    {"none", 0, MAPS}, {"mapped", read_mapped, MAPS}, {"populated", read_populated, MAPS},
    {"huge", read_mapped, MAPS | HUGE_INPUT}, {"piece-mapped", read_piece_mapped, UNMAPS}, {"copied", read_copied, COPIES},
};

enum { RESERVES = 1, MAPS_OUT = 2, DIRECT = 4, PIPES = 8, RINGS = 16, HUGE_BUFFER = 32 };
static const struct { const char *name; void (*put)(struct worker *, size_t, size_t); int how; } WRITES[] = {
    {"none", 0, 0}, {"plain", write_plain, RESERVES}, {"unreserved", write_plain, 0},
    {"huge-buffer", write_plain, RESERVES | HUGE_BUFFER}, {"direct", write_plain, RESERVES | DIRECT},
    {"mapped", write_mapped, RESERVES | MAPS_OUT}, {"populated", write_populated, RESERVES | MAPS_OUT},
    {"ring", write_ring, RESERVES | RINGS}, {"direct-ring", write_ring, RESERVES | RINGS | DIRECT},
    {"spliced", write_spliced, RESERVES | PIPES}, {"source", write_source, RESERVES}, {"range", write_range, RESERVES},
};

static int reading, writing;

static void *work(void *unused) {
    struct worker self = {{0}};
    unsigned long sums[4] = {0};
    size_t total = in_len > out_len ? in_len : out_len;
    int get = READS[reading].how, put = WRITES[writing].how;
    if (get & COPIES) self.source = memory(piece + PAGE, 0);
    for (int at = 0; at < 2; at++) self.buffer[at] = memory(piece + PAGE, put & HUGE_BUFFER);
    if (put & PIPES) check(!pipe(self.pipe) && fcntl(self.pipe[1], F_SETPIPE_SZ, 1 << 20) > 0, "pipe");
    if (put & RINGS) open_ring(&self);
    for (;;) {
        size_t start = __sync_fetch_and_add(&next, piece);
        if (start >= total) break;
        size_t at = start ? start + shift : 0, end = start + piece >= total ? total : start + piece + shift;
        if (end > total) end = total;
        // As large a share of either file, in whole pages.
        #define share(offset, len) ((offset) >= total ? (len) : (size_t)((double)(offset) / total * (len)) & ~(PAGE - 1ul))
        size_t from = share(at, in_len), to = share(end, in_len);
        if (READS[reading].get && from < to) {
            const unsigned long *words = (const void *)READS[reading].get(&self, from, to - from);
            for (size_t i = 0; i + 4 <= (to - from) / 8; i += 4)
                for (int lane = 0; lane < 4; lane++) sums[lane] += words[i + lane];
            if (get & UNMAPS) munmap(self.source, to - from);
        }
        from = share(at, out_len), to = share(end, out_len);
        if (put & DIRECT && from < to) to = (to + PAGE - 1) & ~(PAGE - 1ul); // what is too much is cut off at the end
        if (WRITES[writing].put && from < to) WRITES[writing].put(&self, from, to - from);
    }
    if (put & RINGS) wait_for_ring(&self);
    sink += sums[0] + sums[1] + sums[2] + sums[3];
    return unused;
}

int main(int count, char **arguments) {
    struct stat found;
    struct timespec begin, end;
    pthread_t threads[64];
    if (count != 9) return 2;
    int threads_len = atoi(arguments[4]), reads = sizeof READS / sizeof *READS, writes = sizeof WRITES / sizeof *WRITES;
    while (reading < reads && strcmp(READS[reading].name, arguments[5])) reading++;
    while (writing < writes && strcmp(WRITES[writing].name, arguments[6])) writing++;
    out_len = strtoul(arguments[3], 0, 0), piece = strtoul(arguments[7], 0, 0), shift = strtoul(arguments[8], 0, 0);
    if (reading == reads || writing == writes || threads_len < 1 || threads_len > 64 || !piece) return 2;
    int get = READS[reading].how, put = WRITES[writing].how;
    unlink(arguments[2]);
    clock_gettime(CLOCK_MONOTONIC, &begin);
    in = open(arguments[1], O_RDONLY);
    check(in >= 0 && !fstat(in, &found), arguments[1]);
    in_len = found.st_size;
    if (get & MAPS) {
        input = mmap(0, in_len, PROT_READ, MAP_SHARED, in, 0);
        check(input != MAP_FAILED, "mmap");
        if (get & HUGE_INPUT) check(!madvise(input, in_len, MADV_HUGEPAGE), "MADV_HUGEPAGE");
    }
    if (writing) {
        out = open(arguments[2], O_RDWR | O_CREAT | (put & DIRECT ? O_DIRECT : 0), 0644);
        check(out >= 0, arguments[2]);
        if (put & RESERVES) check(!fallocate(out, 0, 0, out_len), "fallocate");
        if (put & MAPS_OUT) {
            output = mmap(0, out_len, PROT_READ | PROT_WRITE, MAP_SHARED, out, 0);
            check(output != MAP_FAILED, "mmap");
        }
    }
    for (int at = 0; at < threads_len; at++) pthread_create(threads + at, 0, work, 0);
    for (int at = 0; at < threads_len; at++) pthread_join(threads[at], 0);
    if (input) munmap(input, in_len);
    if (output) munmap(output, out_len);
    if (writing) {
        if (put & DIRECT) check(!ftruncate(out, out_len), "ftruncate");
        close(out);
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    printf("%.6f\n", end.tv_sec - begin.tv_sec + (end.tv_nsec - begin.tv_nsec) / 1e9);
    return 0;
}
