// The least that a conversion of a small file can do: maps IN, writes LEN constant bytes to a new file beside OUT, and gives it the
// name OUT. Without arguments, it only starts and ends, like `tcast --version`.
//
//   cc -O2 start.c -o start && ./start IN OUT LEN
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

int main(int count, char **arguments) {
    static char temporary[4096], constant[1 << 16];
    struct stat found;
    if (count == 1) return puts("start 1.0") < 0;
    if (count != 4) return 2;
    size_t len = strtoul(arguments[3], 0, 0);
    int in = open(arguments[1], O_RDONLY);
    if (in < 0 || fstat(in, &found) || len > sizeof constant) return 1;
    const char *input = mmap(0, found.st_size, PROT_READ, MAP_SHARED, in, 0);
    if (input == MAP_FAILED) return 1;
    memset(constant, input[found.st_size - 1], len);
    snprintf(temporary, sizeof temporary, "%s.new", arguments[2]);
    int out = open(temporary, O_WRONLY | O_CREAT | O_EXCL, 0644);
    if (out < 0 || write(out, constant, len) != (ssize_t)len || close(out)) return 1;
    return rename(temporary, arguments[2]) != 0;
}
