/* SPDX-License-Identifier: MIT */

/*
 * Runs a fuzz target over files instead of invented input: the seed corpus, and every
 * input that once broke something, as a plain test. The name of each file is printed
 * before it runs, so that the last line before a crash names the culprit.
 */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint8_t *read_file(const char *path, size_t *size)
{
    FILE *f = fopen(path, "rb");
    if (!f || fseek(f, 0, SEEK_END) != 0) {
        perror(path);
        exit(2);
    }
    const long end = ftell(f);
    uint8_t *data = malloc(end > 0 ? (size_t)end : 1); /* exact: overreads are seen */
    rewind(f);
    *size = data ? fread(data, 1, (size_t)end, f) : 0;
    fclose(f);
    if (!data || *size != (size_t)end) {
        fprintf(stderr, "%s: cannot read it whole\n", path);
        exit(2);
    }
    return data;
}

int main(int argc, char **argv)
{
    static const uint8_t nothing[1];
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("(empty input)\n");
    LLVMFuzzerTestOneInput(nothing, 0);
    for (int i = 1; i < argc; i++) {
        size_t size;
        printf("%s\n", argv[i]);
        uint8_t *data = read_file(argv[i], &size);
        LLVMFuzzerTestOneInput(data, size);
        free(data);
    }
    return 0;
}
