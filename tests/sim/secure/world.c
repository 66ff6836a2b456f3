/* SPDX-License-Identifier: Apache-2.0 */
/* mfl-sim-secure: secure sums under seeded faults. True members and a true leader; every message, loss and lie is an event.
 *
 *   mfl-sim-secure --seeds A..B             runs seeds; --bugs A..B succeeds when each planted bug (bugs.txt) is found
 *
 * A seed draws 3 to 12 members (one in eight: 21 to 26, on a ring), how often members are lost, messages come twice or out of order, and
 * whether the server lies: with another key, other sets to some, shares of others, too few signatures, a message of the sum before, or
 * a smaller bucket than the job's, or another sum of the same updates. A lying server may have members on its side, as many as the graph stands: they sign any set, and give
 * it both shares of everything. The updates stay the same over all sums of a seed, as those of a retried round do. Some sums are of one bucket: a half of
 * the members, one or the other, or another half the next time.
 *
 * Checked after every event: of no honest member can both secrets be opened; no honest member signs two sums of its update with different
 * survivors; a lie that a member can see is refused, for good. At the end of each sum: it is that of the survivors, bit for bit, or it is none;
 * where a liar sums one whom all who open have signed to be gone, it is wrong; and without faults and lies it is there. */
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/secure/member.h"
#include "common/base/rng.h"
#include "server/secure/leader.h"
#include "tests/sim/bugs.h"

#define N_MAX 26
#define WORDS 9
#define SUMS 3

int mfl_sim_bug;

enum lie {
        NO_LIE,
        SWAP_KEY,
        WITHOUT_SELF,
        SWAP_SHARES,
        FEW_SIGNATURES,
        REPLAY,
        TWO_SETS,
        SMALL_BUCKET,
        AGAIN,
        LIES
};

struct party {
        uint8_t name[8];
        struct mfl_secure_trust trust;
        struct mfl_secure_book book;
        struct mfl_secure_member *member;
        uint64_t plain[WORDS], figures[MFL_SECURE_FIGURES]; /* the same in each sum */
        uint64_t masked[WORDS], told[MFL_SECURE_FIGURES];
        bool bad, lost, refused, split; /* split: is shown the smaller set */
        bool pairs;                     /* in this sum it brings the update of a daemon of its node, too */
        bool has_signed;
        struct mfl_secure_set with,
                pairs_with; /* parties whose updates its own was last signed for with; those that brought another */
        uint8_t signature[MFL_SHA256_BYTES];
};

struct world {
        struct mfl_rng rng;
        uint32_t n, n_bad, sum;
        uint32_t members;                /* of the bucket, as the job says; 0: the sum is of all */
        uint32_t left_out;               /* left_out: caller's number, of those who are shown a smaller set */
        uint32_t p_lose, p_twice, p_lie; /* of 1,000 */
        struct mfl_secure_spec spec;
        struct party v[N_MAX];
        struct mfl_leader *leader;
        struct mfl_secure_graph graph;
        enum lie lie;              /* of this sum's server */
        struct mfl_secure_msg old; /* a message of sum old_sum */
        uint32_t old_sum;
        uint32_t opened[2][N_MAX]; /* shares that the server has, by owner */
        uint64_t events;
        bool faults;
        char failure[256];
};

static void fail(struct world *w, const char *text, uint32_t who)
{
        if (!w->failure[0])
                snprintf(w->failure, sizeof w->failure, "sum %u, member %u: %.200s", w->sum, who, text);
}

static uint32_t draw(struct world *w, uint32_t n)
{
        return (uint32_t)((uint64_t)mfl_rng_u32(&w->rng) * n >> 32);
}

/* ---- stand-ins for certificates ---- */

static void stamp(const uint8_t name[8], const void *data, size_t n, uint8_t ret[MFL_SHA256_BYTES])
{
        uint8_t text[512] = "the key of ";
        mfl_assert(n + 24 <= sizeof text);
        memcpy(text + 11, name, 8);
        memcpy(text + 24, data, n);
        mfl_assert(!mfl_sha256(text, n + 24, ret, NULL));
}

static int sign(void *user, const void *data, size_t n, uint8_t *ret_signature, uint32_t *ret_n,
        struct mfl_error *err)
{
        stamp(user, data, n, ret_signature);
        *ret_n = MFL_SHA256_BYTES;
        return 0;
}

static int check(void *user, const uint8_t *chain, uint32_t n_chain, const void *data, size_t n,
        const uint8_t *signature, uint32_t n_signature, struct mfl_secure_identity *ret_identity,
        struct mfl_error *err)
{
        uint8_t right[MFL_SHA256_BYTES];
        if (n_chain != 8 || n_signature != sizeof right)
                return mfl_fail(err, MFL_INVALID, "not a certificate");
        stamp(chain, data, n, right);
        if (memcmp(right, signature, sizeof right))
                return mfl_fail(err, MFL_INVALID, "wrong signature");
        *ret_identity = (struct mfl_secure_identity){.name = ""};
        memcpy(ret_identity->name, chain, 7);
        memcpy(ret_identity->fingerprint, chain, 7);
        return 0;
}

/* ---- a sum ---- */

static struct party *party_at(struct world *w, uint32_t i)
{
        return &w->v[mfl_leader_caller(w->leader, i)];
}

static void make_member(struct world *w, struct party *party)
{
        static const uint8_t params[MFL_SHA256_BYTES];
        const struct mfl_secure_member_options options = {.job = "j-000001",
                .text = "a job",
                .round = 1 + w->sum,
                .params = params,
                .spec = w->spec,
                .members = w->members,
                .who = {1 + party->pairs},
                .trust = &party->trust,
                .book = &party->book};
        mfl_secure_member_free(party->member);
        party->member = NULL;
        mfl_assert(!mfl_secure_member_new(&options, &party->member, NULL));
        memcpy(party->masked, party->plain, sizeof party->masked);
        memcpy(party->told, party->figures, sizeof party->told);
        party->refused = party->split = false;
}

/* Who takes part: after the first sum some are lost; of a bucket, its half alone. */
static void gather(struct world *w)
{
        bool apart = w->faults && !w->n_bad && w->n >= 6 && draw(w, 3) == 0;
        uint32_t first = draw(w, 2), step = 1 + draw(w, 2), n = 0; /* every other one, or neighbours */
        for (uint32_t i = 0; i < w->n; i++) {
                bool within = step == 2 ? i % 2 == first : (i >= w->n / 2) == first;
                w->v[i].lost = (w->sum && draw(w, 1000) < w->p_lose) || (apart && !within);
                n += !w->v[i].lost;
        }
        w->members = apart ? n : 0;
}

/* A sum after the first may lack members: that of a retried round, or of a server that asks again. False: too few. */
static bool begin(struct world *w)
{
        struct mfl_secure_msg all = {0}, keys;
        struct mfl_error err;
        memset(w->opened, 0, sizeof w->opened);
        gather(w);
        for (uint32_t i = 0; i < w->n; i++) {
                struct party *party = &w->v[i];
                party->pairs = w->faults && draw(w, 20) == 0;
                make_member(w, party);
                if (party->lost)
                        continue;
                mfl_assert(!mfl_secure_member_keys(party->member, &keys, NULL));
                mfl_assert(!mfl_secure_msg_add(&all, i, keys.bytes, keys.n_bytes));
                mfl_secure_msg_deinit(&keys);
        }
        mfl_leader_free(w->leader);
        w->leader = NULL;
        int r = mfl_leader_new(&w->spec, &all, &w->leader, &err);
        mfl_secure_msg_deinit(&all);
        if (r)
                return false;
        w->lie = draw(w, 1000) < w->p_lie ? draw(w, LIES) : NO_LIE;
        uint32_t out = draw(w, mfl_leader_count(w->leader));
        w->left_out = mfl_leader_caller(w->leader, out);
        mfl_assert(!mfl_secure_graph_make(
                &w->spec, mfl_leader_count(w->leader), mfl_leader_name(w->leader), &w->graph, NULL));
        for (uint32_t i = 0; i < mfl_leader_count(w->leader); i++)
                party_at(w, i)->split = i != out && draw(w, 2);
        return true;
}

/* ---- lies ---- */

/* Changes a stage's message. True: a member must refuse it. */
static bool lie(struct world *w, uint32_t i, struct mfl_secure_msg *msg)
{
        enum mfl_leader_stage stage = mfl_leader_stage(w->leader);
        const struct party *party = party_at(w, i);
        if (w->lie == SWAP_KEY && stage == MFL_LEADER_SHARES) {
                struct mfl_secure_key private = {{1, 2, 3}}, public;
                mfl_assert(!mfl_secure_public(&private, &public, NULL));
                memcpy(msg->bytes + msg->parts[i ? 0 : 1].at, public.v, sizeof public.v);
                return true;
        }
        if (w->lie == WITHOUT_SELF && (stage == MFL_LEADER_UPLOAD || stage == MFL_LEADER_SIGN)) {
                msg->set.bits[i / 8] &= (uint8_t) ~(1u << i % 8);
                return true;
        }
        if (w->lie == SWAP_SHARES && stage == MFL_LEADER_UPLOAD && msg->n_parts > 1) {
                uint32_t member = msg->parts[0].member;
                msg->parts[0].member = msg->parts[1].member;
                msg->parts[1].member = member;
                return true;
        }
        if (w->lie == SMALL_BUCKET && stage == MFL_LEADER_SHARES && w->members > MFL_SECURE_LEAST) {
                msg->n_parts--; /* the last one can't find its own keys then */
                return true;
        }
        if (w->lie == FEW_SIGNATURES && stage == MFL_LEADER_OPEN) {
                msg->n_parts = w->graph.t - 1;
                return true;
        }
        if (w->lie == TWO_SETS && stage == MFL_LEADER_SIGN && party->split)
                for (uint32_t m = 0; m < mfl_leader_count(w->leader); m++)
                        if (mfl_leader_caller(w->leader, m) == w->left_out)
                                msg->set.bits[m / 8] &= (uint8_t) ~(1u << m % 8);
        return false;
}

/* With two sets: what a member gets to see is what those signed who saw the same, and bad members sign that for it. */
static void sort_signatures(struct world *w, uint32_t i, struct mfl_secure_msg *msg)
{
        struct mfl_secure_msg own = {.step = msg->step, .task = msg->task};
        struct mfl_secure_set set = {{0}};
        uint8_t statement[MFL_SECURE_SET_STATEMENT], signature[MFL_SECURE_SIGNATURE_MAX];
        uint32_t count = mfl_leader_count(w->leader), n_signature;
        bool split = party_at(w, i)->split;
        for (uint32_t m = 0; m < count; m++)
                if (mfl_leader_survives(w->leader, m) &&
                        !(split && mfl_leader_caller(w->leader, m) == w->left_out))
                        mfl_secure_put(&set, m);
        uint32_t n = mfl_secure_set_statement(mfl_leader_name(w->leader), &set, count, statement);
        for (uint32_t p = 0; p < msg->n_parts; p++) {
                uint32_t member = msg->parts[p].member;
                struct party *by = party_at(w, member);
                sign(by->name, statement, n, signature, &n_signature, NULL);
                /* A server would leave out what does not fit; one that hopes nobody looks does not. */
                bool same = by->split == split || by->bad;
                const uint8_t *bytes = by->bad ? signature : msg->bytes + msg->parts[p].at;
                if (same || w->sum % 2)
                        mfl_assert(!mfl_secure_msg_add(&own, member, bytes, MFL_SHA256_BYTES));
        }
        mfl_secure_msg_deinit(msg);
        *msg = own;
}

/* ---- what is checked ---- */

static void note_signed(struct world *w, uint32_t i, const struct mfl_secure_set *set)
{
        struct party *party = party_at(w, i);
        struct mfl_secure_set with = {{0}}, pairs_with = {{0}};
        for (uint32_t m = 0; m < mfl_leader_count(w->leader); m++) {
                if (!mfl_secure_has(set, m))
                        continue;
                mfl_secure_put(&with, mfl_leader_caller(w->leader, m));
                if (party_at(w, m)->pairs)
                        mfl_secure_put(&pairs_with, mfl_leader_caller(w->leader, m));
        }
        if (party->has_signed && !party->bad &&
                (memcmp(&party->with, &with, sizeof with) ||
                        memcmp(&party->pairs_with, &pairs_with, sizeof pairs_with)))
                fail(w, "it has signed two sums of its update with different survivors", i);
        party->has_signed = true;
        party->with = with;
        party->pairs_with = pairs_with;
}

/* Shares are of the secret that the member believes due: its view is the set it has signed. */
static void note_opened(struct world *w, uint32_t i, const struct mfl_secure_msg *answer)
{
        const struct party *by = party_at(w, i);
        for (uint32_t p = 0; p < answer->n_parts && !by->bad; p++) {
                uint32_t owner = answer->parts[p].member;
                bool alive = mfl_secure_has(&by->with, mfl_leader_caller(w->leader, owner));
                bool twice = p && answer->parts[p - 1].member == owner;
                w->opened[twice ? alive : !alive][owner]++;
        }
        for (uint32_t owner = 0; owner < mfl_leader_count(w->leader); owner++) {
                uint32_t bad = 0;
                for (uint32_t m = 0; m < mfl_leader_count(w->leader); m++)
                        bad += party_at(w, m)->bad && mfl_secure_share_number(&w->graph, owner, m);
                if (!party_at(w, owner)->bad && w->opened[0][owner] + bad >= w->graph.t &&
                        w->opened[1][owner] + bad >= w->graph.t)
                        fail(w, "both of its secrets are open", owner);
        }
}

/* ---- events ---- */

static void take_answer(
        struct world *w, uint32_t i, const struct mfl_secure_msg *msg, struct mfl_secure_msg *answer)
{
        struct party *party = party_at(w, i);
        struct mfl_error err;
        if (mfl_secure_member_masks(party->member)) {
                mfl_assert(!mfl_secure_member_mask(party->member, party->masked, WORDS, party->told, NULL));
                answer->step = MFL_SECURE_MASKED;
                answer->has_figures = true;
                memcpy(answer->figures, party->told, sizeof answer->figures);
        }
        if (answer->step == MFL_SECURE_SIGNED)
                note_signed(w, i, &msg->set);
        if (answer->step == MFL_SECURE_OPENED)
                note_opened(w, i, answer);
        int r = mfl_leader_take(w->leader, i, answer, &err);
        if (!r && draw(w, 1000) < w->p_twice) /* it comes again */
                r = mfl_leader_take(w->leader, i, answer, &err);
        if (r && !w->lie)
                fail(w, err.text, i);
        /* The figures may come, and the vector not. */
        if (mfl_leader_stage(w->leader) == MFL_LEADER_UPLOAD && !r && draw(w, 1000) >= w->p_lose)
                mfl_leader_added(w->leader, i);
        else if (mfl_leader_stage(w->leader) == MFL_LEADER_UPLOAD)
                party->lost = true;
}

/* A message of the server reaches member i, and its answer the server; or one of them is lost. */
static void deliver(struct world *w, uint32_t i)
{
        struct party *party = party_at(w, i);
        struct mfl_secure_msg msg, answer = {0};
        struct mfl_error err = {{0}};
        w->events++;
        if (party->lost || draw(w, 1000) < w->p_lose) {
                party->lost = true;
                mfl_leader_lose(w->leader, i);
                return;
        }
        mfl_assert(!mfl_leader_message(w->leader, i, &msg));
        bool wrong = lie(w, i, &msg);
        if (w->lie == TWO_SETS && mfl_leader_stage(w->leader) == MFL_LEADER_OPEN)
                sort_signatures(w, i, &msg);
        /* A set has no signature: an old one is only another set. */
        bool replays = w->lie == REPLAY && w->old.step == msg.step && w->old_sum != w->sum &&
                       msg.step != MFL_SECURE_SURVIVORS;
        int r = mfl_secure_member_take(party->member, replays ? &w->old : &msg, &answer, &err);
        if (!r && party->refused)
                fail(w, "it has refused, and goes on", i);
        if (!r && (wrong || replays))
                fail(w, "it takes what is a lie", i);
        if (r && !w->lie && !strstr(err.text, "other participants before"))
                fail(w, err.text, i);
        party->refused |= r != 0;
        if (r)
                mfl_leader_lose(w->leader, i);
        else
                take_answer(w, i, &msg, &answer);
        if (r && draw(w, 4) == 0) { /* the server tries once more, without the lie */
                struct mfl_secure_msg again = {0};
                mfl_secure_msg_deinit(&msg);
                msg = (struct mfl_secure_msg){.step = w->old.step ? w->old.step : MFL_SECURE_OPEN};
                if (!mfl_secure_member_take(party->member, &msg, &again, &err))
                        fail(w, "it has refused, and goes on", i);
                if (!strstr(err.text, "when it is REFUSED"))
                        fail(w, "its refusal is not for good", i);
        }
        mfl_secure_msg_deinit(&answer);
        if (w->old.step != msg.step && draw(w, 3) == 0) {
                mfl_secure_msg_deinit(&w->old);
                w->old = msg;
                w->old_sum = w->sum;
        } else {
                mfl_secure_msg_deinit(&msg);
        }
}

/* In an order of its own. Late ones are not waited for. */
static void run_stage(struct world *w)
{
        uint32_t order[N_MAX], n = mfl_leader_count(w->leader);
        char why[256];
        for (uint32_t i = 0; i < n; i++) {
                uint32_t j = draw(w, i + 1);
                order[i] = order[j];
                order[j] = i;
        }
        for (uint32_t i = 0; i < n; i++)
                if (mfl_leader_takes(w->leader, order[i]))
                        deliver(w, order[i]);
        bool opens = mfl_leader_opens(w->leader);
        mfl_leader_advance(w->leader, why, sizeof why);
        enum mfl_leader_stage stage = mfl_leader_stage(w->leader);
        if ((opens || stage > MFL_LEADER_UPLOAD) && stage != MFL_LEADER_FAILED &&
                !mfl_leader_opens(w->leader))
                fail(w, "the opening has begun, and could be undone", 0);
}

/* The liar's sum has a survivor whom all who opened shares have signed to be gone: what they opened of it is not what hides its update. */
static bool agree_on_less(const struct world *w)
{
        bool survives = false, less = false;
        for (uint32_t i = 0; w->lie == TWO_SETS && i < mfl_leader_count(w->leader); i++) {
                uint32_t caller = mfl_leader_caller(w->leader, i);
                survives |= caller == w->left_out && mfl_leader_survives(w->leader, i);
                if (!mfl_leader_takes(w->leader, i)) /* it has opened nothing */
                        continue;
                if (!w->v[caller].split)
                        return false;
                less = true;
        }
        return survives && less;
}

static void check_sum(struct world *w)
{
        struct mfl_leader_opening opening;
        struct mfl_error err;
        uint64_t sum[WORDS] = {0}, right[WORDS] = {0}, figures[MFL_SECURE_FIGURES] = {0};
        for (uint32_t i = 0; i < mfl_leader_count(w->leader); i++) {
                const struct party *party = party_at(w, i);
                if (!mfl_leader_survives(w->leader, i))
                        continue;
                for (int k = 0; k < WORDS; k++) {
                        sum[k] += party->masked[k];
                        right[k] += party->plain[k];
                }
                for (int f = 0; f < MFL_SECURE_FIGURES; f++)
                        figures[f] += party->figures[f];
        }
        int r = mfl_leader_open(w->leader, &opening, &err);
        if (r) {
                if (!w->lie)
                        fail(w, err.text, 0);
                return;
        }
        mfl_assert(!mfl_leader_unmask(&opening, 0, sum, WORDS, NULL));
        mfl_assert(!mfl_leader_unmask(&opening, WORDS, opening.figures, MFL_SECURE_FIGURES, NULL));
        bool same = !memcmp(sum, right, sizeof sum) && !memcmp(opening.figures, figures, sizeof figures);
        if (!same && !agree_on_less(w))
                fail(w, "the sum is not that of the survivors", 0);
        if (same && agree_on_less(w))
                fail(w, "its update is in the sum, and those who opened it had signed that it is gone", 0);
        mfl_leader_opening_deinit(&opening);
}

/* False: the round is over, whatever became of it. */
static bool run_sum(struct world *w)
{
        if (!begin(w))
                return true;
        while (mfl_leader_stage(w->leader) < MFL_LEADER_WHOLE && !w->failure[0]) {
                run_stage(w);
                bool settled = mfl_leader_stage(w->leader) == MFL_LEADER_SIGN;
                for (uint32_t i = 0; settled && i < mfl_leader_count(w->leader); i++)
                        if (mfl_leader_survives(w->leader, i) && party_at(w, i)->lost)
                                fail(w, "it survives, and its vector never came", i);
        }
        bool whole = mfl_leader_stage(w->leader) == MFL_LEADER_WHOLE;
        if (whole)
                check_sum(w);
        else if (!w->faults && !w->sum)
                fail(w, "there is no sum, and nothing went wrong", 0);
        return w->lie == AGAIN || !mfl_leader_opens(w->leader);
}

/* ---- seeds ---- */

static void open_world(struct world *w, uint64_t seed)
{
        *w = (struct world){.rng = mfl_rng_new(seed, MFL_RNG_SELECT, 26, 0), .spec = {64, 0.1, 0.2}};
        w->n = draw(w, 8) ? 3 + draw(w, 10) : 21 + draw(w, 6);
        w->faults = draw(w, 4) > 0;
        w->p_lose = w->faults ? draw(w, 40) : 0;
        w->p_twice = draw(w, 100);
        w->p_lie = w->faults && draw(w, 2) ? 900 : 0;
        uint32_t k, t, bad = 0;
        mfl_assert(!mfl_secure_degree(&w->spec, w->n, &k, &t, NULL));
        if (w->p_lie && w->n > 5)
                bad = draw(w, MFL_MIN(2 * t - k - 1, w->n / 10 + 1));
        for (uint32_t i = 0; i < w->n; i++) {
                struct party *party = &w->v[i];
                snprintf((char *)party->name, sizeof party->name, "d%03u", i % 1000);
                party->trust = (struct mfl_secure_trust){party->name, party->name, 8, sign, check};
                party->bad = i < bad;
                w->n_bad += party->bad;
                for (int k2 = 0; k2 < WORDS; k2++)
                        party->plain[k2] = (uint64_t)mfl_rng_u32(&w->rng) << 32 | mfl_rng_u32(&w->rng);
                for (int f = 0; f < MFL_SECURE_FIGURES; f++)
                        party->figures[f] = mfl_rng_u32(&w->rng);
        }
}

static bool run_seed(struct world *w, uint64_t seed)
{
        open_world(w, seed);
        for (bool more = true; w->sum < SUMS && more && !w->failure[0]; w->sum++)
                more = run_sum(w);
        for (uint32_t i = 0; i < w->n; i++) {
                mfl_secure_member_free(w->v[i].member);
                mfl_secure_book_deinit(&w->v[i].book);
        }
        mfl_leader_free(w->leader);
        mfl_secure_msg_deinit(&w->old);
        return !w->failure[0];
}

static int run_seeds(uint64_t from, uint64_t to, bool quiet)
{
        static struct world w;
        uint64_t events = 0;
        for (uint64_t seed = from; seed < to; seed++) {
                bool good = run_seed(&w, seed);
                events += w.events;
                if (good)
                        continue;
                if (!quiet)
                        printf("seed %llu: %s\n", (unsigned long long)seed, w.failure);
                return 1;
        }
        if (!quiet)
                printf("%llu seeds, %llu events: every property held\n", (unsigned long long)(to - from),
                        (unsigned long long)events);
        return 0;
}

/* In a child, because a bug may well end in an assertion. */
static int find_bug(int bug, uint64_t from, uint64_t to)
{
        int status;
        fflush(stdout);
        pid_t child = fork();
        mfl_assert(child >= 0);
        if (!child) {
                mfl_sim_bug = bug;
                _exit(run_seeds(from, to, true));
        }
        mfl_assert(waitpid(child, &status, 0) == child);
        bool found = !WIFEXITED(status) || WEXITSTATUS(status);
        printf("bug %d (%s) %s\n", bug, mfl_sim_bugs[bug], found ? "is found" : "was NOT found");
        return !found;
}

int main(int argc, char **argv)
{
        unsigned long long from, to;
        if (argc != 3 || sscanf(argv[2], "%llu..%llu", &from, &to) != 2 ||
                (strcmp(argv[1], "--seeds") && strcmp(argv[1], "--bugs"))) {
                fprintf(stderr, "usage: mfl-sim-secure --seeds A..B | --bugs A..B\n");
                return 2;
        }
        if (!strcmp(argv[1], "--seeds"))
                return run_seeds(from, to, false);
        int r = 0;
        for (int bug = 1; bug <= mfl_sim_n_bugs; bug++)
                r |= find_bug(bug, from, to);
        return r;
}
