/* SPDX-License-Identifier: Apache-2.0 */
/* A job, its graph, a runtime and a scratch directory for the tests of the server's parts. */
#ifndef MFL_TESTS_UNIT_SERVER_FIXTURE_H
#define MFL_TESTS_UNIT_SERVER_FIXTURE_H

#include "tests/lib/test.h"
#include "common/base/budget.h"
#include "server/runtime/runtime.h"
#include "server/store/store.h"

/* Logistic regression over 1 x side x side and 10 classes. strategy with the defaults of job files. */
struct fixture {
        struct mfl_job spec;
        struct mfl_graph *graph;
        struct mfl_fixed fixed;
        char dir[64];
        uint64_t n;
        uint32_t n_threads; /* of the pass over single updates; 0 at first */
};
void fixture_init(struct fixture *f, enum mfl_strategy_kind strategy, int side);
/* Two dense layers in the place of the model: the first is frozen; n counts what moves. */
void fixture_freeze(struct fixture *f);
void fixture_deinit(struct fixture *f); /* removes the directory with what is in it */
void fixture_remove(const char *dir);

/* resume NULL: from the start. */
struct mfl_runtime *fixture_open(
        const struct fixture *f, uint32_t n_slots, const struct mfl_store_resume *resume);
/* Number i of client k in round r: within +-0.5, the same each time. */
float fixture_delta(uint64_t k, uint64_t r, uint64_t i);
/* One whole update in one chunk: opened, written, added, freed. item: the client; its delta is fixture_delta.
 */
void fixture_add_f32(
        const struct fixture *f, struct mfl_runtime *rt, uint64_t client, uint64_t round, uint64_t weight);
bool fixture_try_slot(
        struct mfl_runtime *rt, uint32_t slot, enum mfl_encoding encoding, uint64_t weight, uint64_t client);
void fixture_slot(
        struct mfl_runtime *rt, uint32_t slot, enum mfl_encoding encoding, uint64_t weight, uint64_t client);
void fixture_put(struct mfl_runtime *rt, uint32_t slot, const void *data, uint64_t offset, uint64_t bytes);

#endif
