/* SPDX-License-Identifier: Apache-2.0 */
/* Secure sums in one process: true members and a true leader, every message by hand. With losses at each step the sum is that of the
 * survivors, bit for bit, or the round fails with its reason; a server that lies is refused by every member. Certificates are
 * stand-ins: a signature is a hash with a secret that only the test's CA knows, too. */
#include <math.h>
#include <stdio.h>

#include "client/secure/member.h"
#include "common/base/rng.h"
#include "common/secure/shares.h"
#include "server/secure/leader.h"
#include "tests/lib/test.h"

#define N_MAX 40
#define WORDS 257

struct party {
        struct mfl_secure_trust trust;
        struct mfl_secure_book book;
        uint8_t name[8];
        const char *with; /* another daemon of its node, whose update it brings, too; NULL: none */
        struct mfl_secure_member *member;
        uint64_t plain[WORDS], v[WORDS], figures[MFL_SECURE_FIGURES], told[MFL_SECURE_FIGURES];
        uint8_t group[MFL_SHA256_BYTES];
        bool lost;
};

struct bed {
        uint32_t n;
        struct mfl_secure_spec spec;
        uint8_t params[MFL_SHA256_BYTES];
        const char *job;
        struct party *v;
        struct mfl_leader *leader;
};

/* ---- stand-ins for certificates ---- */

static void stamp(const uint8_t name[8], const void *data, size_t n, uint8_t ret[MFL_SHA256_BYTES])
{
        uint8_t text[512] = "the key of ";
        assert_true(n + 24 <= sizeof text);
        memcpy(text + 11, name, 8);
        memcpy(text + 24, data, n);
        assert_int_equal(mfl_sha256(text, n + 24, ret, NULL), 0);
}

static int sign(void *user, const void *data, size_t n, uint8_t *ret_signature, uint32_t *ret_n,
        struct mfl_error *err)
{
        (void)err;
        stamp(user, data, n, ret_signature);
        *ret_n = MFL_SHA256_BYTES;
        return 0;
}

static int check(void *user, const uint8_t *chain, uint32_t n_chain, const void *data, size_t n,
        const uint8_t *signature, uint32_t n_signature, struct mfl_secure_identity *ret_identity,
        struct mfl_error *err)
{
        uint8_t right[MFL_SHA256_BYTES];
        (void)user;
        if (n_chain != 8 || n_signature != sizeof right)
                return mfl_fail(err, MFL_INVALID, "not a certificate");
        stamp(chain, data, n, right);
        if (memcmp(right, signature, sizeof right))
                return mfl_fail(err, MFL_INVALID, "wrong signature");
        *ret_identity = (struct mfl_secure_identity){.name = ""};
        memcpy(ret_identity->name, chain, 7);
        snprintf(ret_identity->fingerprint, sizeof ret_identity->fingerprint, "%.7s", (const char *)chain);
        return 0;
}

/* ---- the bed ---- */

static void make_member(struct bed *bed, struct party *party)
{
        uint64_t other[MFL_SECURE_WHO_WORDS] = {0};
        struct mfl_secure_member_options options = {.job = bed->job,
                .text = "a job",
                .round = 1,
                .params = bed->params,
                .spec = bed->spec,
                .least = 3,
                .trust = &party->trust,
                .book = &party->book};
        assert_int_equal(mfl_secure_who((const char *)party->name, options.who, NULL), 0);
        if (party->with)
                assert_int_equal(mfl_secure_who(party->with, other, NULL), 0);
        for (uint32_t i = 0; i < MFL_SECURE_WHO_WORDS; i++)
                options.who[i] += other[i];
        mfl_secure_member_free(party->member);
        assert_int_equal(mfl_secure_member_new(&options, &party->member, NULL), 0);
        memcpy(party->v, party->plain, sizeof party->v);
        memcpy(party->told, party->figures, sizeof party->told);
        party->lost = false;
}

static void open_bed(struct bed *bed, uint32_t n, double lost, uint64_t seed)
{
        struct mfl_rng rng = mfl_rng_new(seed, MFL_RNG_SELECT, n, 0);
        *bed = (struct bed){.n = n, .spec = {64, 0.1, lost}, .job = "j-000001"};
        bed->v = mfl_calloc(n, sizeof *bed->v);
        assert_non_null(bed->v);
        for (uint32_t i = 0; i < n; i++) {
                struct party *party = &bed->v[i];
                snprintf((char *)party->name, sizeof party->name, "d%03u", i % 1000);
                party->trust = (struct mfl_secure_trust){party->name, party->name, 8, sign, check};
                for (int w = 0; w < WORDS; w++)
                        party->plain[w] = (uint64_t)mfl_rng_u32(&rng) << 32 | mfl_rng_u32(&rng);
                for (int f = 0; f < MFL_SECURE_FIGURES; f++)
                        party->figures[f] = mfl_rng_u32(&rng);
                make_member(bed, party);
        }
}

static void close_bed(struct bed *bed)
{
        for (uint32_t i = 0; i < bed->n; i++) {
                mfl_secure_member_free(bed->v[i].member);
                mfl_secure_book_deinit(&bed->v[i].book);
        }
        mfl_leader_free(bed->leader);
        free(bed->v);
}

/* Members that are not lost tell their keys. */
static int begin(struct bed *bed, struct mfl_error *err)
{
        struct mfl_secure_msg all = {0};
        for (uint32_t i = 0; i < bed->n; i++) {
                struct mfl_secure_msg keys;
                if (bed->v[i].lost)
                        continue;
                assert_int_equal(mfl_secure_member_keys(bed->v[i].member, &keys, NULL), 0);
                assert_int_equal(mfl_secure_msg_add(&all, i, keys.bytes, keys.n_bytes), 0);
                mfl_secure_msg_deinit(&keys);
        }
        mfl_leader_free(bed->leader);
        bed->leader = NULL;
        int r = mfl_leader_new(&bed->spec, &all, &bed->leader, err);
        mfl_secure_msg_deinit(&all);
        return r;
}

/* One member takes the stage's message, which `lie` may change, and answers. */
typedef void (*lie_fn)(struct bed *bed, uint32_t member, struct mfl_secure_msg *msg);

static int serve(struct bed *bed, uint32_t i, lie_fn lie, struct mfl_error *err)
{
        struct party *party = &bed->v[mfl_leader_caller(bed->leader, i)];
        struct mfl_secure_msg msg, answer;
        assert_int_equal(mfl_leader_message(bed->leader, i, &msg), 0);
        if (lie)
                lie(bed, i, &msg);
        int r = mfl_secure_member_take(party->member, &msg, &answer, err);
        mfl_secure_msg_deinit(&msg);
        if (r)
                return r;
        if (mfl_secure_member_masks(party->member)) {
                assert_int_equal(mfl_secure_member_group(party->member, party->group, NULL), 0);
                assert_int_equal(
                        mfl_secure_member_mask(party->member, party->v, WORDS, party->told, NULL), 0);
                answer.step = MFL_SECURE_MASKED;
                answer.has_figures = true;
                memcpy(answer.figures, party->told, sizeof answer.figures);
        }
        assert_int_equal(mfl_leader_take(bed->leader, i, &answer, err), 0);
        if (mfl_leader_stage(bed->leader) == MFL_LEADER_UPLOAD)
                mfl_leader_added(bed->leader, i);
        mfl_secure_msg_deinit(&answer);
        return 0;
}

/* The stage with all that are left, then the next. */
static void run_stage(struct bed *bed, char *why, size_t n_why)
{
        for (uint32_t i = 0; i < mfl_leader_count(bed->leader); i++) {
                struct mfl_error err = {{0}};
                if (bed->v[mfl_leader_caller(bed->leader, i)].lost)
                        mfl_leader_lose(bed->leader, i);
                else if (mfl_leader_takes(bed->leader, i) && serve(bed, i, NULL, &err))
                        fail_msg("member %u: %s", i, err.text);
        }
        assert_true(mfl_leader_ready(bed->leader));
        mfl_leader_advance(bed->leader, why, n_why);
}

/* The next `n` members, from a place that the seed gives, are lost. */
static void lose(struct bed *bed, uint32_t n, uint64_t seed)
{
        for (uint32_t i = 0; i < n; i++)
                bed->v[(seed * 7 + i * 3) % bed->n].lost = true;
}

static void expect_sum(struct bed *bed, bool plain_of_all)
{
        struct mfl_leader_opening opening;
        struct mfl_error err = {{0}};
        uint64_t sum[WORDS] = {0}, right[WORDS] = {0}, figures[MFL_SECURE_FIGURES] = {0};
        uint32_t n = 0;
        for (uint32_t i = 0; i < mfl_leader_count(bed->leader); i++) {
                struct party *party = &bed->v[mfl_leader_caller(bed->leader, i)];
                if (!mfl_leader_survives(bed->leader, i))
                        continue;
                n++;
                for (int w = 0; w < WORDS; w++) {
                        sum[w] += party->v[w];
                        right[w] += party->plain[w];
                }
                for (int f = 0; f < MFL_SECURE_FIGURES; f++)
                        figures[f] += party->figures[f];
        }
        assert_true(!plain_of_all || n == bed->n);
        assert_memory_not_equal(sum, right, sizeof sum);
        int r = mfl_leader_open(bed->leader, &opening, &err);
        if (r)
                fail_msg("%s", err.text);
        assert_int_equal(
                mfl_leader_unmask(&opening, 0, sum, 100, NULL), 0); /* in pieces, as the server does */
        assert_int_equal(mfl_leader_unmask(&opening, 100, sum + 100, 101, NULL), 0);
        assert_int_equal(mfl_leader_unmask(&opening, 201, sum + 201, WORDS - 201, NULL), 0);
        assert_int_equal(mfl_leader_unmask(&opening, WORDS, opening.figures, MFL_SECURE_FIGURES, NULL), 0);
        assert_memory_equal(sum, right, sizeof sum);
        assert_memory_equal(opening.figures, figures, sizeof figures);
        mfl_leader_opening_deinit(&opening);
}

/* ---- losses ---- */

static void test_losses(void **state)
{
        static const uint32_t sizes[] = {3, 5, 16, 40};
        static const double shares[] = {0, 0.1, 0.3};
        int n_whole = 0, n_failed = 0;
        (void)state;
        for (size_t s = 0; s < MFL_ARRAY_SIZE(sizes); s++)
                for (size_t f = 0; f < MFL_ARRAY_SIZE(shares); f++)
                        for (int step = 0; step < 5; step++) {
                                struct bed bed;
                                struct mfl_error err = {{0}};
                                char why[256] = "";
                                uint32_t gone = (uint32_t)ceil(sizes[s] * shares[f]), k, t;
                                open_bed(&bed, sizes[s], 0.3, s * 100 + f * 10 + (uint64_t)step);
                                assert_int_equal(mfl_secure_degree(&bed.spec, sizes[s], &k, &t, NULL), 0);
                                if (step == 0)
                                        lose(&bed, gone, f);
                                int r = begin(&bed, &err);
                                if (r) { /* fewer than three are left */
                                        assert_int_equal(sizes[s] - gone, 2);
                                        assert_non_null(strstr(err.text, "at least 3 participants"));
                                        n_failed++;
                                        close_bed(&bed);
                                        continue;
                                }
                                for (int stage = 1; mfl_leader_stage(bed.leader) < MFL_LEADER_WHOLE;
                                        stage++) {
                                        if (stage == step)
                                                lose(&bed, gone, f);
                                        run_stage(&bed, why, sizeof why);
                                }
                                bool whole = mfl_leader_stage(bed.leader) == MFL_LEADER_WHOLE;
                                /* The complete graph stands the loss of all but t; the ring of 40, by its degree, 30%. */
                                assert_true(whole == (step == 0 || sizes[s] - gone >= t || sizes[s] == 40));
                                if (whole)
                                        expect_sum(&bed, !gone);
                                else
                                        assert_non_null(strstr(why, "are needed"));
                                /* From the third step on the same updates are never summed again. */
                                assert_int_equal(mfl_leader_opens(bed.leader), whole || step > 2);
                                n_whole += whole;
                                n_failed += !whole;
                                close_bed(&bed);
                        }
        print_message("# %d whole, %d failed with their reason\n", n_whole, n_failed);
        assert_int_equal(n_whole + n_failed, 60);
}

/* A member is lost while its vector is being added: it is in the sum, whether it is heard of again or not. */
static void test_lost_while_it_is_added(void **state)
{
        struct bed bed;
        char why[256] = "";
        (void)state;
        open_bed(&bed, 5, 0.3, 1);
        assert_int_equal(begin(&bed, NULL), 0);
        run_stage(&bed, why, sizeof why);
        for (uint32_t i = 0; i < bed.n; i++) {
                struct mfl_secure_msg figures = {.step = MFL_SECURE_MASKED, .has_figures = true};
                assert_false(mfl_leader_masked(bed.leader, i));
                assert_int_equal(mfl_leader_take(bed.leader, i, &figures, NULL), 0);
                if (i == 2)
                        mfl_leader_lose(bed.leader, i);
                assert_true(mfl_leader_masked(bed.leader, i));
                mfl_leader_added(bed.leader, i);
        }
        mfl_leader_advance(bed.leader, why, sizeof why);
        assert_int_equal(mfl_leader_stage(bed.leader), MFL_LEADER_SIGN);
        for (uint32_t i = 0; i < bed.n; i++)
                assert_true(
                        mfl_leader_survives(bed.leader, i) && mfl_leader_takes(bed.leader, i) == (i != 2));
        close_bed(&bed);
}

/* ---- lies ---- */

static uint32_t lied_to; /* the set that even members are shown lacks this one */

static void two_sets(struct bed *bed, uint32_t member, struct mfl_secure_msg *msg)
{
        (void)bed;
        if (msg->step == MFL_SECURE_SURVIVORS && member % 2)
                msg->set.bits[lied_to / 8] &= (uint8_t) ~(1u << lied_to % 8);
}

static void swap_shares(struct bed *bed, uint32_t member, struct mfl_secure_msg *msg)
{
        (void)bed;
        (void)member;
        uint32_t member_0 = msg->parts[0].member;
        msg->parts[0].member = msg->parts[1].member;
        msg->parts[1].member = member_0;
}

static void swap_key(struct bed *bed, uint32_t member, struct mfl_secure_msg *msg)
{
        (void)bed;
        struct mfl_secure_key private = {{1, 2, 3}}, public;
        const struct mfl_secure_part *part = &msg->parts[member ? 0 : 1];
        assert_int_equal(mfl_secure_public(&private, &public, NULL), 0);
        memcpy(msg->bytes + part->at, public.v, sizeof public.v); /* its channel */
}

static void without_self(struct bed *bed, uint32_t member, struct mfl_secure_msg *msg)
{
        (void)bed;
        msg->set.bits[member / 8] &= (uint8_t) ~(1u << member % 8);
}

static void twice_the_same(struct bed *bed, uint32_t member, struct mfl_secure_msg *msg)
{
        (void)bed;
        (void)member;
        uint8_t keys[MFL_SECURE_KEYS_MAX];
        const struct mfl_secure_part last = msg->parts[msg->n_parts - 1];
        memcpy(keys, msg->bytes + last.at, last.n);
        assert_int_equal(mfl_secure_msg_add(msg, msg->n_parts, keys, last.n), 0);
}

static void few_signatures(struct bed *bed, uint32_t member, struct mfl_secure_msg *msg)
{
        (void)bed;
        (void)member;
        msg->n_parts = 2;
}

/* Runs to the stage and lies there: everybody refuses with that text, and takes nothing more. */
static void expect_refusals(enum mfl_leader_stage stage, lie_fn lie, const char *text)
{
        struct bed bed;
        struct mfl_error err;
        char why[256];
        open_bed(&bed, 6, 0.1, stage);
        assert_int_equal(begin(&bed, &err), 0);
        while (mfl_leader_stage(bed.leader) < stage)
                run_stage(&bed, why, sizeof why);
        for (uint32_t i = 0; i < bed.n; i++) {
                assert_int_equal(serve(&bed, i, lie, &err), MFL_INVALID);
                if (!strstr(err.text, text))
                        fail_msg("expected '%s' in: %s", text, err.text);
                assert_int_equal(serve(&bed, i, NULL, &err), MFL_INVALID);
                assert_non_null(strstr(err.text, "REFUSED"));
        }
        close_bed(&bed);
}

static void test_lies(void **state)
{
        (void)state;
        expect_refusals(MFL_LEADER_SHARES, swap_key, "wrong signature");
        expect_refusals(MFL_LEADER_SHARES, twice_the_same, "are not in order");
        expect_refusals(MFL_LEADER_UPLOAD, swap_shares, "are not what it has sealed");
        expect_refusals(MFL_LEADER_UPLOAD, without_self, "a set without this daemon");
        expect_refusals(MFL_LEADER_SIGN, without_self, "a set without this daemon");
        expect_refusals(MFL_LEADER_OPEN, few_signatures, "2 signatures on the survivors");
}

/* ---- noise in shares ---- */

/* The leader shows everybody a set of members that is large enough to be opened, and too small for the noise. */
static uint32_t shown;
static void fewer_survivors(struct bed *bed, uint32_t member, struct mfl_secure_msg *msg)
{
        (void)member;
        for (uint32_t i = 0, n = 0; i < bed->n; i++)
                if (mfl_secure_has(&msg->set, i) && ++n > shown)
                        msg->set.bits[i / 8] &= (uint8_t) ~(1u << i % 8);
}

static void test_noise_needs_survivors(void **state)
{
        static const struct {
                uint32_t n, survivors, honest; /* of least 0.8, bad 0.1 */
        } of[] = {{3, 3, 2}, {4, 4, 3}, {5, 4, 3}, {6, 5, 4}, {10, 8, 7}, {20, 16, 14}};
        struct mfl_secure_spec spec = {64, 0.1, 0.1, 0.8};
        struct mfl_error err;
        uint32_t honest;
        char why[256];
        (void)state;
        for (size_t i = 0; i < MFL_ARRAY_SIZE(of); i++) {
                assert_int_equal(mfl_secure_survivors(&spec, of[i].n), of[i].survivors);
                assert_int_equal(mfl_secure_honest(&spec, of[i].n, &honest, &err), 0);
                assert_int_equal(honest, of[i].honest);
                /* the honest shares of the least set have all of the noise */
                double share = (double)mfl_secure_share(1000003, honest);
                assert_true(share * share * honest >= 1000003.0 * 1000003.0);
        }
        assert_int_equal(mfl_secure_honest(&spec, 21, &honest, &err), MFL_INVALID);
        assert_non_null(strstr(err.text, "selection: {clients: 20}"));
        spec = (struct mfl_secure_spec){64, 0.5, 0.1, 0.5};
        assert_int_equal(mfl_secure_honest(&spec, 6, &honest, &err), MFL_INVALID);
        assert_non_null(strstr(err.text, "larger limits.quorum"));
        /* 9 members, 7 of whom the graph would open; the noise needs 8 */
        for (int lies = 0; lies < 2; lies++) {
                struct bed bed;
                open_bed(&bed, 9, 0.1, 3);
                bed.spec.least = 0.8;
                for (uint32_t i = 0; i < bed.n; i++)
                        make_member(&bed, &bed.v[i]);
                assert_int_equal(begin(&bed, &err), 0);
                run_stage(&bed, why, sizeof why);
                if (lies) {
                        while (mfl_leader_stage(bed.leader) < MFL_LEADER_SIGN)
                                run_stage(&bed, why, sizeof why);
                        shown = 7;
                        assert_int_equal(serve(&bed, 0, fewer_survivors, &err), MFL_INVALID);
                        assert_non_null(
                                strstr(err.text, "a set of 7 participants, and at least 8 are wanted"));
                } else {
                        bed.v[3].lost = bed.v[4].lost = true;
                        run_stage(&bed, why, sizeof why);
                        assert_int_equal(mfl_leader_stage(bed.leader), MFL_LEADER_FAILED);
                        assert_non_null(strstr(why, "7 of 9 participants sent updates, and 8 are needed"));
                }
                close_bed(&bed);
        }
}

/* What the shares of noise follow from: the same for the same members with the same updates, in whatever job, and another for everybody if
 * one member brings another update. That is no other sum for the book, which knows with whom an update was summed. */
static void test_noise_follows_from_all_updates(void **state)
{
        struct bed bed;
        struct mfl_error err;
        uint8_t before[5][MFL_SHA256_BYTES];
        char why[256];
        (void)state;
        open_bed(&bed, 5, 0.1, 3);
        bed.spec.least = 0.8;
        for (int sum = 0; sum < 3; sum++) {
                bed.job = sum ? "j-000002" : "j-000001";
                bed.v[2].with = sum == 2 ? "d9" : NULL; /* another mark */
                for (uint32_t i = 0; i < bed.n; i++)
                        make_member(&bed, &bed.v[i]);
                assert_int_equal(begin(&bed, &err), 0);
                while (mfl_leader_stage(bed.leader) < MFL_LEADER_WHOLE)
                        run_stage(&bed, why, sizeof why);
                for (uint32_t i = 0; i < bed.n; i++) {
                        assert_memory_equal(bed.v[i].group, bed.v[0].group, sizeof before[0]);
                        assert_int_equal(
                                !sum || !memcmp(bed.v[i].group, before[i], sizeof before[0]), sum < 2);
                        memcpy(before[i], bed.v[i].group, sizeof before[0]);
                }
        }
        close_bed(&bed);
}

static void test_two_sets(void **state)
{
        struct bed bed;
        struct mfl_error err;
        char why[256];
        (void)state;
        open_bed(&bed, 6, 0.1, 5);
        assert_int_equal(begin(&bed, &err), 0);
        while (mfl_leader_stage(bed.leader) < MFL_LEADER_SIGN)
                run_stage(&bed, why, sizeof why);
        lied_to = 0; /* an even member, which is shown the whole set */
        for (uint32_t i = 0; i < bed.n; i++)
                assert_int_equal(serve(&bed, i, two_sets, &err), 0);
        mfl_leader_advance(bed.leader, why, sizeof why);
        for (uint32_t i = 0; i < bed.n; i++) {
                assert_int_equal(serve(&bed, i, NULL, &err), MFL_INVALID);
                assert_non_null(strstr(err.text, "has not signed the survivors that this daemon was told"));
        }
        close_bed(&bed);
}

/* ---- a server with bad members that shows two sets ---- */

struct split {
        struct bed bed;
        struct mfl_secure_graph graph;
        const uint8_t *transcript;
        uint32_t victim;
        bool bad[N_MAX], ahead[N_MAX]; /* ahead: is told that the victim is gone */
        uint8_t signature[N_MAX][MFL_SHA256_BYTES];
        struct mfl_secure_set sets[2];
};

/* The n_bad members around the victim are bad; those before it on the ring are told that it survives, those behind that it is gone. */
static void split_ring(struct split *s, uint32_t n_bad)
{
        uint32_t n = s->bed.n;
        for (uint32_t d = 1; d < n; d++) {
                uint32_t i = s->graph.order[(s->graph.place[s->victim] + d) % n];
                s->bad[i] = d <= (n_bad + 1) / 2 || n - d <= n_bad / 2;
                s->ahead[i] = d <= n / 2;
        }
        for (uint32_t i = 0; i < n; i++)
                for (int set = 0; set < 2; set++)
                        if (set == 0 || i != s->victim)
                                mfl_secure_put(&s->sets[set], i);
}

static struct party *party_at(struct split *s, uint32_t i)
{
        return &s->bed.v[mfl_leader_caller(s->bed.leader, i)];
}

/* Each signs the set that it is shown. */
static void sign_split(struct split *s)
{
        for (uint32_t i = 0; i < s->bed.n; i++) {
                struct mfl_secure_msg msg = {.step = MFL_SECURE_SURVIVORS, .set = s->sets[s->ahead[i]]},
                                      answer;
                struct mfl_error err;
                if (mfl_secure_member_take(party_at(s, i)->member, &msg, &answer, &err))
                        fail_msg("%s", err.text);
                memcpy(s->signature[i], answer.bytes, MFL_SHA256_BYTES);
                mfl_secure_msg_deinit(&answer);
        }
}

/* What member i opens of the victim: a share of its self mask (0), of its mask key (1), or nothing (-1). Bad members sign any set. */
static int open_split(struct split *s, uint32_t i)
{
        struct mfl_secure_msg msg = {.step = MFL_SECURE_OPEN}, answer;
        uint8_t statement[MFL_SECURE_SET_STATEMENT], signature[MFL_SECURE_SIGNATURE_MAX];
        uint32_t n = mfl_secure_set_statement(s->transcript, &s->sets[s->ahead[i]], s->bed.n, statement);
        for (uint32_t from = 0; from < s->bed.n; from++) {
                uint32_t n_signature = MFL_SHA256_BYTES;
                memcpy(signature, s->signature[from], sizeof s->signature[from]);
                if (s->bad[from])
                        sign(party_at(s, from)->name, statement, n, signature, &n_signature, NULL);
                if (s->bad[from] || s->ahead[from] == s->ahead[i])
                        assert_int_equal(mfl_secure_msg_add(&msg, from, signature, n_signature), 0);
        }
        int r = mfl_secure_member_take(party_at(s, i)->member, &msg, &answer, NULL), which = -1;
        if (!r && mfl_secure_msg_find(&answer, s->victim))
                which = s->ahead[i];
        if (!r)
                mfl_secure_msg_deinit(&answer);
        mfl_secure_msg_deinit(&msg);
        return which;
}

/* Whether the server and its bad members have both secrets of the victim. */
static bool unmasks(uint32_t n_bad, uint32_t *ret_bound)
{
        struct split s = {.victim = 5};
        struct mfl_error err;
        char why[256];
        open_bed(&s.bed, N_MAX, 0.1, 9);
        assert_int_equal(begin(&s.bed, &err), 0);
        while (mfl_leader_stage(s.bed.leader) < MFL_LEADER_SIGN)
                run_stage(&s.bed, why, sizeof why);
        s.transcript = mfl_leader_name(s.bed.leader);
        assert_int_equal(mfl_secure_graph_make(&s.bed.spec, N_MAX, s.transcript, &s.graph, NULL), 0);
        split_ring(&s, n_bad);
        sign_split(&s);
        uint32_t opened[2] = {n_bad, n_bad}; /* bad neighbours give shares of both */
        for (uint32_t i = 0; i < N_MAX; i++) {
                int which = s.bad[i] ? -1 : open_split(&s, i);
                if (which >= 0)
                        opened[which]++;
        }
        *ret_bound = 2 * s.graph.t - s.graph.k - 1;
        close_bed(&s.bed);
        return opened[0] >= s.graph.t && opened[1] >= s.graph.t;
}

static void test_split_ring(void **state)
{
        uint32_t bound = N_MAX;
        (void)state;
        for (uint32_t n_bad = 0; n_bad < bound; n_bad++)
                assert_false(unmasks(n_bad, &bound));
        assert_int_equal(bound, 7);
        assert_true(unmasks(bound + 1, &bound)); /* the halves are uneven by one */
}

/* The shares of another sum of the same round are worth nothing here. */
static void test_replay(void **state)
{
        struct bed bed;
        struct mfl_error err;
        struct mfl_secure_msg old, answer;
        char why[256];
        (void)state;
        open_bed(&bed, 5, 0.1, 6);
        assert_int_equal(begin(&bed, &err), 0);
        run_stage(&bed, why, sizeof why);
        assert_int_equal(mfl_leader_message(bed.leader, 0, &old), 0);
        for (uint32_t i = 0; i < bed.n; i++)
                make_member(&bed, &bed.v[i]);
        assert_int_equal(begin(&bed, &err), 0);
        run_stage(&bed, why, sizeof why);
        struct party *party = &bed.v[mfl_leader_caller(bed.leader, 0)];
        assert_int_equal(mfl_secure_member_take(party->member, &old, &answer, &err), MFL_INVALID);
        assert_non_null(strstr(err.text, "are not what it has sealed"));
        mfl_secure_msg_deinit(&old);
        close_bed(&bed);
}

static void test_other_subset(void **state)
{
        struct bed bed;
        struct mfl_error err;
        char why[256];
        (void)state;
        open_bed(&bed, 6, 0.1, 7);
        assert_int_equal(begin(&bed, &err), 0);
        while (mfl_leader_stage(bed.leader) < MFL_LEADER_WHOLE)
                run_stage(&bed, why, sizeof why);
        expect_sum(&bed, true);
        bed.job = "j-000002"; /* the same job file under another number: the same updates */
        for (int again = 0; again < 3;
                again++) { /* the same; without one; one brings its neighbour's update, too */
                bed.v[3].with = again == 2 ? "d9" : NULL;
                for (uint32_t i = 0; i < bed.n; i++)
                        make_member(&bed, &bed.v[i]);
                bed.v[2].lost = again == 1;
                assert_int_equal(begin(&bed, &err), 0);
                while (mfl_leader_stage(bed.leader) < MFL_LEADER_SIGN)
                        run_stage(&bed, why, sizeof why);
                for (uint32_t i = 0; i < mfl_leader_count(bed.leader); i++) {
                        assert_int_equal(serve(&bed, i, NULL, &err), again ? MFL_INVALID : 0);
                        assert_true(!again || strstr(err.text, "was summed with other participants before"));
                }
        }
        close_bed(&bed);
}

/* ---- the book ---- */

static void number_update(uint32_t i, uint8_t ret_update[MFL_SHA256_BYTES])
{
        assert_int_equal(mfl_sha256(&i, sizeof i, ret_update, NULL), 0);
}

/* Nothing is forgotten, however many sums there are, and the oldest row of an update counts. */
static void test_book(void **state)
{
        enum { ROWS = 20000 };
        struct mfl_secure_book book = {0};
        uint8_t update[MFL_SHA256_BYTES], with[MFL_SHA256_BYTES] = {0}, other[MFL_SHA256_BYTES] = {9};
        (void)state;
        number_update(0, update);
        assert_null(mfl_secure_book_find(&book, update));
        for (uint32_t i = 0; i < ROWS; i++) {
                number_update(i, update);
                memcpy(with, &i, sizeof i);
                assert_int_equal(mfl_secure_book_room(&book, NULL), 0);
                mfl_secure_book_put(&book, update, with);
                if (i % 100)
                        continue;
                assert_int_equal(mfl_secure_book_room(&book, NULL), 0);
                mfl_secure_book_put(&book, update, other);
        }
        for (uint32_t i = 0; i < ROWS; i++) {
                number_update(i, update);
                memcpy(with, &i, sizeof i);
                const uint8_t *found = mfl_secure_book_find(&book, update);
                assert_non_null(found);
                assert_memory_equal(found, with, sizeof with);
        }
        number_update(ROWS, update);
        assert_null(mfl_secure_book_find(&book, update));
        struct mfl_error err;
        struct mfl_secure_book full = {.n = MFL_SECURE_BOOK_ROWS_MAX, .capacity = MFL_SECURE_BOOK_ROWS_MAX};
        assert_int_equal(mfl_secure_book_room(&full, &err), MFL_INVALID);
        assert_non_null(strstr(err.text, "remove its NAME.sums"));
        mfl_secure_book_deinit(&book);
}

/* An update whose sum was 5,000 sums ago is still refused in other company. */
static void test_an_old_sum(void **state)
{
        struct bed bed;
        struct mfl_error err;
        uint8_t update[MFL_SHA256_BYTES], with[MFL_SHA256_BYTES] = {1};
        char why[256];
        (void)state;
        open_bed(&bed, 6, 0.1, 7);
        for (int again = 0; again < 2; again++) {
                for (uint32_t i = 0; i < bed.n; i++)
                        make_member(&bed, &bed.v[i]);
                bed.v[2].lost = again;
                assert_int_equal(begin(&bed, &err), 0);
                while (mfl_leader_stage(bed.leader) < MFL_LEADER_SIGN)
                        run_stage(&bed, why, sizeof why);
                for (uint32_t i = 0; i < mfl_leader_count(bed.leader); i++)
                        assert_int_equal(serve(&bed, i, NULL, &err), again ? MFL_INVALID : 0);
                for (uint32_t k = 0; !again && k < 5000; k++)
                        for (uint32_t i = 0; i < bed.n; i++) {
                                number_update(k, update);
                                assert_int_equal(mfl_secure_book_room(&bed.v[i].book, NULL), 0);
                                mfl_secure_book_put(&bed.v[i].book, update, with);
                        }
        }
        assert_non_null(strstr(err.text, "was summed with other participants before"));
        close_bed(&bed);
}

/* ---- what travels ---- */

static void count_bytes(const uint64_t *words, uint32_t count[256])
{
        for (size_t b = 0; b < WORDS * sizeof *words; b++)
                count[((const uint8_t *)words)[b]]++;
}

/* Beyond 5 deviations of 22.6 on either side: once in a million runs. */
static void expect_uniform(const char *what, const uint32_t count[256])
{
        double chi = 0, n = 0;
        for (int b = 0; b < 256; b++)
                n += count[b];
        for (int b = 0; b < 256; b++)
                chi += (count[b] - n / 256) * (count[b] - n / 256) / (n / 256);
        print_message("# chi-square of %g bytes of %s: %.1f (255 degrees of freedom)\n", n, what, chi);
        assert_true(chi > 130 && chi < 420);
}

/* Masked zeros: uniform bytes, and what two daemons, two sums of a job or two jobs make of equal updates has nothing in common: no words, and
 * differences are uniform, too. */
static void test_uniform(void **state)
{
        static const char *const jobs[] = {"j-000001", "j-000001", "j-000002"};
        enum { SUMS = 3, N = 8 };
        static uint64_t seen[SUMS * N][WORDS];
        uint32_t count[256] = {0}, apart[256] = {0};
        char why[256];
        (void)state;
        for (int sum = 0; sum < SUMS; sum++) {
                struct bed bed;
                open_bed(&bed, N, 0.1, 8);
                bed.job = jobs[sum];
                for (uint32_t i = 0; i < N; i++) {
                        memset(bed.v[i].plain, 0, sizeof bed.v[i].plain);
                        make_member(&bed, &bed.v[i]);
                }
                assert_int_equal(begin(&bed, NULL), 0);
                while (mfl_leader_stage(bed.leader) < MFL_LEADER_SIGN)
                        run_stage(&bed, why, sizeof why);
                for (uint32_t i = 0; i < N; i++) {
                        memcpy(seen[sum * N + i], bed.v[i].v, sizeof seen[0]);
                        count_bytes(bed.v[i].v, count);
                }
                close_bed(&bed);
        }
        for (int a = 0; a < SUMS * N; a++)
                for (int b = 0; b < a; b++) {
                        uint64_t less[WORDS];
                        for (int w = 0; w < WORDS; w++) {
                                less[w] = seen[a][w] - seen[b][w];
                                assert_true(less[w]); /* 70,932 pairs, each with a probability of 2^-64 */
                        }
                        if (a % N == b % N || a / N == b / N)
                                count_bytes(less, apart);
                }
        expect_uniform("uploads", count);
        expect_uniform("differences", apart);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_losses),
                cmocka_unit_test(test_lost_while_it_is_added),
                cmocka_unit_test(test_lies),
                cmocka_unit_test(test_two_sets),
                cmocka_unit_test(test_noise_needs_survivors),
                cmocka_unit_test(test_noise_follows_from_all_updates),
                cmocka_unit_test(test_split_ring),
                cmocka_unit_test(test_replay),
                cmocka_unit_test(test_other_subset),
                cmocka_unit_test(test_book),
                cmocka_unit_test(test_an_old_sum),
                cmocka_unit_test(test_uniform),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
