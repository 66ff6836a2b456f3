/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that a daemon shares with a program: a file without a name whose size is sealed, so that no access of the daemon can fail
 * because the program has cut it. What the program may not write is sealed against that, too, once the daemon has mapped it. */
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/program/internal.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

static int open_file(struct program_memory *memory, const char *name, bool shared, struct mfl_error *err)
{
        int seals = F_SEAL_SHRINK | F_SEAL_GROW | (shared ? 0 : F_SEAL_FUTURE_WRITE) | F_SEAL_SEAL;
        memory->fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
        if (memory->fd < 0)
                return mfl_fail_errno(err, "memory for a program");
        if (ftruncate(memory->fd, (off_t)memory->bytes))
                return mfl_fail_errno(err, "memory for a program: %zu bytes", memory->bytes);
        void *at = mmap(NULL, memory->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory->fd, 0);
        if (at == MAP_FAILED)
                return mfl_fail_errno(err, "map %zu bytes for a program", memory->bytes);
        memory->at = at;
        if (fcntl(memory->fd, F_ADD_SEALS, seals))
                return mfl_fail_errno(err, "seal a program's memory");
        return 0;
}

int mfl_program_memory_open(
        struct program_memory *memory, const char *name, size_t bytes, bool shared, struct mfl_error *err)
{
        *memory = (struct program_memory){.fd = -1, .bytes = bytes};
        int r = open_file(memory, name, shared, err);
        if (r)
                mfl_program_memory_close(memory);
        return r;
}

void mfl_program_memory_close(struct program_memory *memory)
{
        if (memory->at)
                munmap(memory->at, memory->bytes);
        if (memory->fd >= 0)
                close(memory->fd);
        *memory = (struct program_memory){.fd = -1};
}
