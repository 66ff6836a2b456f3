/* SPDX-License-Identifier: Apache-2.0 */
/* The block of a proof: what is out of bounds is refused; seeded numbers are those of mfl_export.py. */
#include <math.h>

#include "cli/proof/proof.h"
#include "cli/proof/seeded.h"
#include "tests/lib/test.h"

#define N_PARAMS 10

/* One output for each batch, one gradient with two samples, one module. */
static struct mfl_proof *small_proof(void)
{
        struct mfl_proof head = {
                .seed = 1, .n_inputs = 1, .n_gradients = 1, .n_samples = 2, .n_modules = 1, .rank = 2};
        head.shape[1] = 4;
        head.input[0] = (struct mfl_proof_input){.deviation = 1, .count = 8};
        for (int b = 0; b < MFL_PROOF_BATCHES; b++)
                head.batch[b] = (struct mfl_proof_batch){.rows = 2, .n_outputs = 1, .largest = 1};
        head.bytes = mfl_proof_size(&head);
        struct mfl_proof *proof = mfl_calloc(1, head.bytes);
        assert_non_null(proof);
        *proof = head;
        ((struct mfl_proof_gradient *)(uintptr_t)mfl_proof_gradients(proof))->n = 2;
        return proof;
}

static bool is_good(const struct mfl_proof *proof, uint64_t n_bytes)
{
        struct mfl_error err;
        int r = mfl_proof_check(proof, n_bytes, N_PARAMS, &err);
        assert_true(r == 0 || r == MFL_INVALID);
        return !r;
}

static void test_bounds(void **state)
{
        (void)state;
        struct mfl_proof *p = small_proof();
        uint64_t n = p->bytes;
        struct mfl_proof_gradient *g = (void *)(uintptr_t)mfl_proof_gradients(p);
        struct mfl_proof_sample *s = (void *)(uintptr_t)mfl_proof_samples(p);
        struct mfl_proof_module *m = (void *)(uintptr_t)mfl_proof_modules(p);
        assert_true(is_good(p, n));
        assert_false(is_good(p, n - 1));
        assert_false(is_good(p, sizeof *p - 1));
#define WRONG(member, value)                                                                                 \
        do {                                                                                                 \
                __typeof__(member) kept = member;                                                            \
                member = value;                                                                              \
                assert_false(is_good(p, n));                                                                 \
                member = kept;                                                                               \
                assert_true(is_good(p, n));                                                                  \
        } while (0)
        WRONG(p->bytes, n + 8);
        WRONG(p->n_samples, 3);
        WRONG(p->n_gradients, UINT32_MAX);
        WRONG(p->n_modules, UINT32_MAX);
        WRONG(p->batch[1].n_outputs, UINT32_MAX);
        WRONG(p->n_inputs, 0);
        WRONG(p->n_inputs, MFL_PROOF_INPUTS_MAX + 1);
        WRONG(p->rank, 1);
        WRONG(p->rank, MFL_PROOF_RANK_MAX + 1);
        WRONG(p->shape[1], 0);
        WRONG(p->batch[0].rows, 0);
        WRONG(p->batch[0].rows, MFL_PROOF_ROWS_MAX + 1);
        WRONG(p->batch[0].noise, (double)INFINITY);
        WRONG(p->input[0].mean, (double)NAN);
        WRONG(s[1].place, N_PARAMS);
        WRONG(s[0].value[1], NAN);
        WRONG(g->first, 1);
        WRONG(g->n, 3);
        WRONG(g->largest[0], -1);
        WRONG(m->norm[1], (double)NAN);
        memset(m->name, 'x', sizeof m->name);
        assert_false(is_good(p, n));
        free(p);
}

/* As python3 -c "import mfl_export as m; print(m._hash(7, 150, 5).tolist())" prints. */
static void test_seeded_numbers(void **state)
{
        (void)state;
        static const uint32_t expected[5] = {10517152, 9050508, 15829162, 10044360, 460636};
        for (uint64_t i = 0; i < 5; i++)
                assert_int_equal(mfl_proof_hash(7, MFL_PROOF_STREAM_WEIGHTS(1), i), expected[i]);
        assert_true(mfl_proof_uniform(7, 150, 0) >= -1 && mfl_proof_uniform(7, 150, 0) < 1);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_bounds),
                cmocka_unit_test(test_seeded_numbers),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
