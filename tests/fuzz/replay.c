/* tests/fuzz/replay.c - runs a fuzz target over every file of a folder: what ctest does with the corpora. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/mem.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int replay_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f || fseek(f, 0, SEEK_END) != 0) {
        perror(path);
        exit(1);
    }
    long size = ftell(f);
    rewind(f);
    uint8_t *data = sl_xalloc(size > 0 ? (size_t)size : 1); /* exact: a sanitizer sees a read past the end */
    if (size < 0 || fread(data, 1, (size_t)size, f) != (size_t)size) {
        perror(path);
        exit(1);
    }
    fclose(f);
    LLVMFuzzerTestOneInput(data, (size_t)size);
    sl_free(data);
    return 1;
}

int main(int argc, char **argv)
{
    int n = 0;
    for (int i = 1; i < argc; i++) {
        DIR *dir = opendir(argv[i]);
        if (!dir) {
            perror(argv[i]);
            return 1;
        }
        for (struct dirent *e; (e = readdir(dir));) {
            char path[4096];
            if (e->d_name[0] != '.' &&
                snprintf(path, sizeof path, "%s/%s", argv[i], e->d_name) < (int)sizeof path)
                n += replay_file(path);
        }
        closedir(dir);
    }
    printf("%d inputs replayed\n", n);
    return n > 0 ? 0 : 1;
}
