/* common/base/file_map.c - see file_map.h. */
#include "common/base/file_map.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static int64_t ns_of(const struct timespec *t)
{
    return (int64_t)t->tv_sec * 1000000000 + t->tv_nsec;
}

enum sl_err sl_file_map_open(const char *path, struct sl_file_map *out, struct sl_why *why)
{
    struct stat st;
    enum sl_err e = SL_OK;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return sl_why_set(why, SL_EIO,
                          "%s: cannot open the model file (%s); check the path and its permissions", path,
                          strerror(errno));
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        e = sl_why_set(why, SL_EIO,
                       "%s: not a regular file; give the path of a .gguf file or of a folder with a Hugging "
                       "Face model",
                       path);
        goto close_fd;
    }
    if (st.st_size == 0) { /* cannot be mapped */
        e = sl_why_set(
            why, SL_EPARSE,
            "%s: the file is empty, expected a model in GGUF or safetensors form; download it again", path);
        goto close_fd;
    }
    size_t size = (size_t)st.st_size;
    void *map = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (map == MAP_FAILED) {
        e = sl_why_set(why, SL_EIO, "%s: cannot map %zu bytes (%s)", path, size, strerror(errno));
        goto close_fd;
    }
    *out = (struct sl_file_map){.base = map,
                                .size = size,
                                .id = {(uint64_t)st.st_dev, (uint64_t)st.st_ino, (uint64_t)st.st_size,
                                       ns_of(&st.st_mtim), ns_of(&st.st_ctim)}};
close_fd:
    close(fd);
    return e;
}

void sl_file_map_close(struct sl_file_map *m)
{
    if (m->base)
        munmap((void *)m->base, m->size);
    *m = (struct sl_file_map){0};
}

int64_t sl_file_id_newest_ns(const struct sl_file_id *id)
{
    return id->modified_ns > id->changed_ns ? id->modified_ns : id->changed_ns;
}

void sl_file_map_release(const struct sl_file_map *m, const void *p, size_t n)
{
    const uint8_t *from = p;
    size_t before = (uintptr_t)p % (size_t)sysconf(_SC_PAGESIZE);
    if (m->base && from >= m->base && from < m->base + m->size && n > 0 &&
        n <= (size_t)(m->base + m->size - from)) /* a page shared with a neighbour is only read once more */
        (void)madvise((void *)(from - before), n + before, MADV_DONTNEED);
}
