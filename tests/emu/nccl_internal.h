/* SPDX-License-Identifier: Apache-2.0 */
/* What the emulated NCCL's files share: nccl.c says what it is. */
#ifndef MFL_TESTS_EMU_NCCL_INTERNAL_H
#define MFL_TESTS_EMU_NCCL_INTERNAL_H

#include <stdatomic.h>

#include "kernels/cuda/nccl/nccl_load.h"
#include "tests/emu/runtime.h"

enum {
        RANKS_MAX = 64,
        LOOKS_INIT = 3, /* queries until something is done */
        LOOKS_CALL = 1,
        AHEAD = 4, /* reductions of which a rank may be ahead of others */
};
#define AREA_BYTES ((size_t)16 << 20) /* of a rank's contribution; unused pages cost nothing */
#define DIRECTORY "/dev/shm/"

enum kind { REDUCE, ALL_REDUCE, BROADCAST };
struct call {
        uint64_t count;
        int root;
        enum kind kind;
};
struct seat {
        atomic_bool taken, finalized;
        uint64_t host;
        int bus;
        struct call call[AHEAD];
        _Atomic uint64_t begun, ended; /* reductions that this rank's stream has reached, and taken */
};
struct shared {
        struct seat seats[RANKS_MAX];
        _Alignas(4096) unsigned char areas[];
};
#define SHARED_BYTES (sizeof(struct shared) + AHEAD * RANKS_MAX * AREA_BYTES)

struct registration {
        struct registration *next;
        const void *memory;
        size_t bytes;
};
enum phase { OPENING, IDLE, LAUNCHING, FINALIZING, FINALIZED };
struct reduction {
        ncclComm_t comm;
        enum kind kind;
        uint64_t number, count;
        const void *send;
        void *recv;
        int root;
};
struct ncclComm {
        struct ncclComm *next;
        char name[NCCL_UNIQUE_ID_BYTES];
        int rank, n_ranks, bus, looks;
        enum phase phase;
        ncclResult_t error;
        bool aborted;
        unsigned refs; /* the caller's, and those of works in streams */
        struct shared *shared;
        struct registration *registrations;
        uint64_t n_reductions;
        struct reduction launch;
        cudaStream_t launch_stream;
};

/* nccl.c. The lock is held from `enter` or `lock` to `leave` or `misuse`. */
void mfl_emu_nccl_lock(void);
ncclResult_t mfl_emu_nccl_leave(ncclResult_t result, const char *text);
ncclResult_t mfl_emu_nccl_misuse(const char *text);
/* The start of every call with a communicator: the lock is held if it returns ncclSuccess. */
ncclResult_t mfl_emu_nccl_enter(ncclComm_t comm, const char *name);
void mfl_emu_nccl_unref(struct ncclComm *comm);
/* nccl_sums.c. The reduction that was called goes into its stream. */
void mfl_emu_nccl_launch(struct ncclComm *comm);

#endif
