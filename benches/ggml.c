// ggml's quantizer, timed on one thread: ggml.py compiles this file with ggml.c and ggml-quants.c of ggml.
//
//   ggml VALUES IMPORTANCE COLUMNS
//
// Both files hold float32; IMPORTANCE has COLUMNS of them. Each line of the input, "TYPE IMPORTANCE SECONDS OUT", encodes the values
// again and again for that long, IMPORTANCE being 0 or 1. The answer is the number of seconds of one time. OUT gets the bytes, if it
// is not "-".
#define _GNU_SOURCE
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <time.h>

#include "ggml.h"

// What the two files need of the rest of ggml.
void ggml_critical_section_start(void) {}
void ggml_critical_section_end(void) {}

static float *numbers(const char *path, size_t *count) {
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END)) exit(1);
    *count = ftell(file) / sizeof(float);
    float *read = malloc(*count * sizeof(float));
    rewind(file);
    if (!read || fread(read, sizeof(float), *count, file) != *count) exit(1);
    fclose(file);
    return read;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

int main(int arguments, char **argument) {
    if (arguments != 4) return 2;
    size_t count, columns;
    const float *values = numbers(argument[1], &count), *importance = numbers(argument[2], &columns);
    if (columns != strtoul(argument[3], 0, 10) || count % columns) return 2;
    char name[64], path[4096];
    double seconds;
    int with;
    while (scanf("%63s %d %lf %4095s", name, &with, &seconds, path) == 4) {
        enum ggml_type type = 0;
        while (type < GGML_TYPE_COUNT && (!ggml_type_name(type) || strcasecmp(ggml_type_name(type), name))) type++;
        if (type == GGML_TYPE_COUNT) return 3;
        size_t len = count / columns * ggml_row_size(type, columns);
        char *out = malloc(len);
        ggml_quantize_chunk(type, values, out, 0, count / columns, columns, with ? importance : 0);
        int times = 0;
        double start = now(), taken;
        do {
            ggml_quantize_chunk(type, values, out, 0, count / columns, columns, with ? importance : 0);
            times++;
        } while ((taken = now() - start) < seconds);
        if (path[0] != '-') {
            FILE *file = fopen(path, "wb");
            if (!file || fwrite(out, 1, len, file) != len || fclose(file)) return 4;
        }
        free(out);
        printf("%.9g\n", taken / times);
        fflush(stdout);
    }
    return 0;
}
