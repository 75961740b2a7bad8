/* Refuses to map files below $NO_MAPS, as some file systems do; with $NO_SHARED_MAPS only shared maps. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int refused(int fd, int flags) {
    const char *below = getenv("NO_MAPS");
    char link[64], path[4096];
    if (!below || fd < 0 || (getenv("NO_SHARED_MAPS") && !(flags & MAP_SHARED))) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return strncmp(path, below, strlen(below)) == 0;
}

typedef void *(*map)(void *, size_t, int, int, int, off_t);

static void *next(const char *name, void *at, size_t length, int access, int flags, int fd, off_t offset) {
    if (refused(fd, flags)) {
        errno = ENODEV;
        return MAP_FAILED;
    }
    return ((map)dlsym(RTLD_NEXT, name))(at, length, access, flags, fd, offset);
}

void *mmap(void *at, size_t length, int access, int flags, int fd, off_t offset) {
    return next("mmap", at, length, access, flags, fd, offset);
}

void *mmap64(void *at, size_t length, int access, int flags, int fd, off_t offset) {
    return next("mmap64", at, length, access, flags, fd, offset);
}
