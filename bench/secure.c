/* SPDX-License-Identifier: Apache-2.0 */
/* What a secure sum costs: processor time and bytes, of one daemon and of the server, in one process and without a network.
 *
 *     bench_secure DAEMONS PARAMS LOST CA CERT KEY
 *
 * PEM files of TLS, as a daemon has them; all members sign with that key. LOST of them drop out after their shares are sent, which is
 * the dearest for the server: it opens their pairs' masks. Beside it stands what training costs: mfl-bench-train.
 */
#include <stdio.h>
#include <time.h>

#include "client/secure/member.h"
#include "proto/tls/tls_sign.h"
#include "server/secure/leader.h"

#define STRETCH ((uint64_t)65536)

static void must(int r, const struct mfl_error *err)
{
        if (!r)
                return;
        fprintf(stderr, "bench_secure: %s\n", err->text);
        exit(1);
}

static double cpu_ms(void)
{
        struct timespec t;
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
        return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static int sign(void *user, const void *data, size_t n, uint8_t *ret_signature, uint32_t *ret_n,
        struct mfl_error *err)
{
        return mfl_tls_sign(user, data, n, ret_signature, MFL_SECURE_SIGNATURE_MAX, ret_n, err);
}

/* All have one certificate: what tells them apart is made of the signature, which differs. */
static int check(void *user, const uint8_t *chain, uint32_t n_chain, const void *data, size_t n,
        const uint8_t *signature, uint32_t n_signature, struct mfl_secure_identity *ret_identity,
        struct mfl_error *err)
{
        struct mfl_tls_identity identity;
        int r = mfl_tls_verify(user, chain, n_chain, data, n, signature, n_signature, &identity, err);
        mfl_hex(signature + n_signature - 32, 32, ret_identity->fingerprint);
        mfl_strcpy(ret_identity->name, sizeof ret_identity->name, ret_identity->fingerprint);
        return r;
}

struct bench {
        uint32_t n, n_lost;
        uint64_t params;
        struct mfl_secure_member **members;
        struct mfl_leader *leader;
        uint64_t *sum, *one;
        double daemon_ms, server_ms;
        uint64_t up, down;
};

static struct mfl_secure_book book;

static void begin(struct bench *b, const struct mfl_secure_trust *trust)
{
        static const uint8_t params[MFL_SHA256_BYTES];
        const struct mfl_secure_member_options options = {.job = "j-000001",
                .text = "job",
                .round = 1,
                .params = params,
                .spec = {64, .1, .1},
                .trust = trust,
                .book = &book};
        struct mfl_secure_msg all = {0}, keys;
        struct mfl_error err;
        double from = cpu_ms();
        for (uint32_t i = 0; i < b->n; i++) {
                must(mfl_secure_member_new(&options, &b->members[i], &err), &err);
                must(mfl_secure_member_keys(b->members[i], &keys, &err), &err);
                must(mfl_secure_msg_add(&all, i, keys.bytes, keys.n_bytes), &err);
                b->up += keys.n_bytes;
                mfl_secure_msg_deinit(&keys);
        }
        b->daemon_ms += cpu_ms() - from;
        from = cpu_ms();
        must(mfl_leader_new(&options.spec, &all, &b->leader, &err), &err);
        b->server_ms += cpu_ms() - from;
        mfl_secure_msg_deinit(&all);
}

/* The vector of zeros stands for any: masks cost the same. */
static void mask(struct bench *b, uint32_t i, struct mfl_secure_msg *answer)
{
        struct mfl_error err;
        double from = cpu_ms();
        memset(b->one, 0, b->params * sizeof *b->one);
        b->one[0] = i; /* the book takes no update twice with others */
        must(mfl_secure_member_mask(b->members[i], b->one, b->params, answer->figures, &err), &err);
        b->daemon_ms += cpu_ms() - from;
        answer->step = MFL_SECURE_MASKED;
        answer->has_figures = true;
        b->up += b->params * sizeof *b->one + sizeof answer->figures;
        for (uint64_t k = 0; k < b->params; k++)
                b->sum[k] += b->one[k];
}

static void run_stage(struct bench *b, bool loses)
{
        char why[256];
        struct mfl_error err;
        for (uint32_t i = 0; i < b->n; i++) {
                struct mfl_secure_msg msg, answer;
                if (loses && i < b->n_lost)
                        mfl_leader_lose(b->leader, i);
                if (!mfl_leader_takes(b->leader, i))
                        continue;
                struct mfl_secure_member *member = b->members[mfl_leader_caller(b->leader, i)];
                double from = cpu_ms();
                must(mfl_leader_message(b->leader, i, &msg), &err);
                b->server_ms += cpu_ms() - from;
                b->down += msg.n_bytes;
                from = cpu_ms();
                must(mfl_secure_member_take(member, &msg, &answer, &err), &err);
                b->daemon_ms += cpu_ms() - from;
                b->up += answer.n_bytes;
                if (mfl_secure_member_masks(member))
                        mask(b, mfl_leader_caller(b->leader, i), &answer);
                from = cpu_ms();
                must(mfl_leader_take(b->leader, i, &answer, &err), &err);
                if (mfl_leader_stage(b->leader) == MFL_LEADER_UPLOAD)
                        mfl_leader_added(b->leader, i);
                b->server_ms += cpu_ms() - from;
                mfl_secure_msg_deinit(&msg);
                mfl_secure_msg_deinit(&answer);
        }
        mfl_leader_advance(b->leader, why, sizeof why);
        if (mfl_leader_stage(b->leader) == MFL_LEADER_FAILED) {
                fprintf(stderr, "bench_secure: %s\n", why);
                exit(1);
        }
}

static uint32_t open_sum(struct bench *b)
{
        struct mfl_leader_opening opening;
        struct mfl_error err;
        double from = cpu_ms();
        uint64_t right = 0;
        must(mfl_leader_open(b->leader, &opening, &err), &err);
        for (uint64_t at = 0; at < b->params; at += STRETCH)
                must(mfl_leader_unmask(
                             &opening, at, b->sum + at, (size_t)MFL_MIN(STRETCH, b->params - at), &err),
                        &err);
        b->server_ms += cpu_ms() - from;
        for (uint32_t i = 0; i < b->n; i++)
                right += mfl_leader_survives(b->leader, i) ? mfl_leader_caller(b->leader, i) : 0;
        mfl_assert(b->sum[0] == right && !b->sum[b->params - 1]);
        uint32_t n = opening.n;
        mfl_leader_opening_deinit(&opening);
        return n;
}

int main(int argc, char **argv)
{
        struct mfl_error err;
        if (argc != 7) {
                fprintf(stderr, "usage: bench_secure DAEMONS PARAMS LOST CA CERT KEY\n");
                return 2;
        }
        struct bench b = {.n = (uint32_t)strtoul(argv[1], NULL, 10),
                .params = strtoull(argv[2], NULL, 10),
                .n_lost = (uint32_t)strtoul(argv[3], NULL, 10)};
        struct mfl_tls_signer *signer;
        must(mfl_tls_signer_new(&(struct mfl_tls_files){argv[4], argv[5], argv[6], NULL}, &signer, &err),
                &err);
        struct mfl_secure_trust trust = {.user = signer, .sign = sign, .check = check};
        trust.chain = mfl_tls_signer_chain(signer, &trust.n_chain);
        b.members = mfl_calloc(b.n, sizeof(struct mfl_secure_member *));
        b.sum = mfl_calloc(b.params, sizeof *b.sum);
        b.one = mfl_calloc(b.params, sizeof *b.one);
        mfl_assert(b.members && b.sum && b.one);
        begin(&b, &trust);
        while (mfl_leader_stage(b.leader) < MFL_LEADER_WHOLE)
                run_stage(&b, mfl_leader_stage(b.leader) == MFL_LEADER_UPLOAD);
        uint32_t masks = open_sum(&b);
        printf("%u daemons, %u lost, %llu params\n", b.n, b.n_lost, (unsigned long long)b.params);
        printf("a daemon  %8.1f ms of CPU  %10.1f kB up (update %.1f kB)  %8.1f kB down\n", b.daemon_ms / b.n,
                (double)b.up / b.n * 1e-3, (double)b.params * 8e-3, (double)b.down / b.n * 1e-3);
        printf("server    %8.1f ms of CPU, %u masks\n", b.server_ms, masks);
        for (uint32_t i = 0; i < b.n; i++)
                mfl_secure_member_free(b.members[i]);
        mfl_leader_free(b.leader);
        mfl_tls_signer_free(signer);
        free(b.members);
        free(b.sum);
        free(b.one);
        return 0;
}
