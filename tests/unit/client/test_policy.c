/* SPDX-License-Identifier: Apache-2.0 */
/* The site's policy: what the file may say, what each key refuses, answers and the audit log on disk. */
#include "tests/lib/test.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/policy/gate.h"
#include "common/base/fs.h"
#include "common/base/log.h"

#define JOB                                                                                                  \
        "name: t\nseed: 1\nrounds: 5\nmodel: mlp\ndata: {name: scans, partition: iid, clients: 10}\n"        \
        "training: {lr: 0.1, epochs: 2, batch: 10}\n"
#define LOCAL_JOB                                                                                            \
        "name: t\nseed: 1\nrounds: 5\nmodel: mlp\ndata: {name: scans, partition: local}\n"                   \
        "training: {lr: 0.1, steps: 4, batch: 10}\n"

#define PROGRAM_JOB                                                                                          \
        "name: t\nseed: 1\nrounds: 5\nmodel: {tensors: [[w, 3]], initial: f}\ndata: {partition: local}\n"    \
        "training: {program: pets}\n"

#define CENTRAL "privacy: {kind: central, clip: 1, noise: 4, epsilon_max: 30, delta: 1e-5, clients: 5}\n"
#define LOCAL "privacy: {kind: local, clip: 1, noise: 9, epsilon_max: 30, delta: 1e-5, metrics: plain}\n"

/* 0, or MFL_INVALID with the text. */
static int read_policy(const char *text, struct mfl_policy *ret_policy, struct mfl_error *err)
{
        struct mfl_yaml_doc *doc;
        *ret_policy = (struct mfl_policy){.set = false};
        assert_int_equal(mfl_yaml_parse(text, strlen(text), "client.yaml", NULL, &doc, err), 0);
        int r = mfl_policy_read(doc, mfl_yaml_find(mfl_yaml_root(doc), "policy"), ret_policy, err);
        mfl_yaml_free(doc);
        return r;
}

static struct mfl_policy policy_of(const char *keys)
{
        struct mfl_policy policy;
        struct mfl_error err;
        char text[512];
        snprintf(text, sizeof(text), "policy: {dir: /tmp/x%s%s}\n", *keys ? ", " : "", keys);
        if (read_policy(text, &policy, &err))
                fail_msg("%s", err.text);
        return policy;
}

static struct mfl_job *job_of(const char *text, const char *more)
{
        struct mfl_job *job;
        struct mfl_error err;
        char all[1024];
        snprintf(all, sizeof(all), "%s%s", text, more);
        if (mfl_job_parse(all, strlen(all), "job.yaml", &job, &err))
                fail_msg("%s", err.text);
        return job;
}

#define PRINT "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static void inquiries(void **state)
{
        struct mfl_policy policy =
                policy_of("inquiries: {kinds: [stats, predict], min_samples: 3}, owners: [alice], data: [d]");
        char reason[MFL_REASON_BYTES];
        struct mfl_error err;
        uint32_t least;
        bool keeps;
        assert_null(mfl_policy_inquiry(&policy, MFL_POLICY_STATS, "alice", "d", reason));
        assert_string_equal(
                mfl_policy_inquiry(&policy, MFL_POLICY_VALIDATE, "alice", "d", reason), "inquiries");
        assert_string_equal(reason, "this site's policy.inquiries does not allow validate");
        assert_string_equal(mfl_policy_inquiry(&policy, MFL_POLICY_PREDICT, "bob", "d", reason), "owners");
        assert_string_equal(mfl_policy_inquiry(&policy, MFL_POLICY_PREDICT, "", "d", reason), "owners");
        assert_string_equal(mfl_policy_inquiry(&policy, MFL_POLICY_PREDICT, "alice", "e", reason), "data");
        mfl_policy_inquiry_limits(&policy, &least, &keeps);
        assert_true(least == 3 && keeps);
        /* Who may ask for the server's models may not bring one. */
        policy = policy_of("inquiries: {kinds: [validate]}");
        assert_string_equal(mfl_policy_inquiry(&policy, MFL_POLICY_FOREIGN, "", "d", reason), "inquiries");
        assert_string_equal(reason, "this site's policy.inquiries does not allow foreign");
        policy = policy_of("inquiries: {kinds: [foreign]}");
        assert_null(mfl_policy_inquiry(&policy, MFL_POLICY_FOREIGN, "", "d", reason));
        /* What is kept here is not answered as "too few". */
        policy = policy_of("inquiries: {kinds: [stats, validate, foreign]}, clip: 1, noise: 2");
        assert_string_equal(mfl_policy_inquiry(&policy, MFL_POLICY_VALIDATE, "", "d", reason), "metrics");
        assert_non_null(strstr(reason, "with metrics: plain it would answer"));
        assert_string_equal(mfl_policy_inquiry(&policy, MFL_POLICY_FOREIGN, "", "d", reason), "metrics");
        assert_null(mfl_policy_inquiry(&policy, MFL_POLICY_STATS, "", "d", reason));
        policy = policy_of("inquiries: {kinds: [validate]}, clip: 1, noise: 2, metrics: plain");
        assert_null(mfl_policy_inquiry(&policy, MFL_POLICY_VALIDATE, "", "d", reason));
        policy = policy_of("inquiries: {kinds: [validate]}, owners: [alice], data: [d], metrics: withheld");
        assert_string_equal(mfl_policy_inquiry(&policy, MFL_POLICY_VALIDATE, "bob", "d", reason), "owners");
        assert_string_equal(mfl_policy_inquiry(&policy, MFL_POLICY_VALIDATE, "alice", "e", reason), "data");
        assert_string_equal(
                mfl_policy_inquiry(&policy, MFL_POLICY_VALIDATE, "alice", "d", reason), "metrics");
        policy = policy_of("inquiries: {kinds: [validate]}, metrics: withheld");
        assert_string_equal(mfl_policy_inquiry(&policy, MFL_POLICY_VALIDATE, "", "d", reason), "metrics");
        /* A policy that was written before there were inquiries allows none; a site without a policy answers, and keeps small counts. */
        policy = policy_of("");
        assert_string_equal(mfl_policy_inquiry(&policy, MFL_POLICY_STATS, "alice", "d", reason), "inquiries");
        mfl_policy_inquiry_limits(NULL, &least, &keeps);
        assert_true(least == MFL_POLICY_MIN_SAMPLES && !keeps);
        assert_int_equal(
                read_policy("policy: {dir: /x, inquiries: {kinds: [all]}}\n", &policy, &err), MFL_INVALID);
        assert_int_equal(
                read_policy("policy: {dir: /x, inquiries: {min_samples: 3}}\n", &policy, &err), MFL_INVALID);
        assert_int_equal(read_policy("policy: {dir: /x, inquiries: [stats]}\n", &policy, &err), MFL_INVALID);
}

static void peers(void **state)
{
        struct mfl_policy any = policy_of("secure_sum: required"),
                          pinned = policy_of("secure_sum: required, peers: [" PRINT "]");
        assert_true(any.secure_sum && mfl_policy_peer(&any, PRINT) && mfl_policy_peer(&any, "00"));
        assert_true(mfl_policy_peer(&pinned, PRINT) && !mfl_policy_peer(&pinned, "00"));
}

static void files(void **state)
{
        static const struct {
                const char *keys, *words;
        } bad[] = {{"owners: [a]", "'dir' is missing"}, {"dir: here", "absolute path"},
                {"dir: /x, owners: []", "policy.owners: expected a list"},
                {"dir: /x, owners: a", "policy.owners: expected a list"},
                {"dir: /x, owners: [\"\"]", "policy.owners[0]: expected a name"},
                {"dir: /x, owner: [a]", "did you mean 'owners'"},
                {"dir: /x, strategies: [fedbest]", "policy.strategies[0]: 'fedbest' is not a strategy"},
                {"dir: /x, strategies: [{a: b}]", "policy.strategies[0]"},
                {"dir: /x, strategies: [fedavg], strategies_refused: [median]", "write one of the two"},
                {"dir: /x, min_participants: 0", "policy.min_participants"},
                {"dir: /x, rounds_max: none", "policy.rounds_max"},
                {"dir: /x, secure_sum: yes", "policy.secure_sum: expected required"},
                {"dir: /x, secure_sum: required, peers: [a]", "policy.peers[0]: expected the SHA-256"},
                {"dir: /x, secure_sum: required, peers: []", "policy.peers: expected a list"},
                {"dir: /x, peers: [" PRINT "]", "add secure_sum: required"},
                {"dir: /x, secure_bad: 0.2", "add secure_sum: required"},
                {"dir: /x, secure_sum: required, secure_bad: 0.6", "policy.secure_bad"},
                {"dir: /x, epsilon_max: 0", "policy.epsilon_max"}, {"dir: /x, clip: 0", "policy.clip"},
                {"dir: /x, noise: 1", "policy.noise: is a multiple of clip"},
                {"dir: /x, delta: 1e-5", "policy.delta: is only used with epsilon_max"},
                {"dir: /x, epsilon_max: 1, delta: 1", "policy.delta"}};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(bad); i++) {
                struct mfl_policy policy;
                struct mfl_error err;
                char text[256];
                snprintf(text, sizeof(text), "policy: {%s}\n", bad[i].keys);
                assert_int_equal(read_policy(text, &policy, &err), MFL_INVALID);
                assert_false(policy.set);
                if (!strstr(err.text, bad[i].words) || strncmp(err.text, "client.yaml:1: ", 15))
                        fail_msg("%s: %s", bad[i].keys, err.text);
        }
        struct mfl_policy policy = policy_of("owners: [ann, bob], ask: true, strategies_refused: [median]");
        assert_true(policy.set && policy.ask && policy.owners.n == 2);
        assert_string_equal(policy.owners.v[1], "bob");
}

static void keys(void **state)
{
        static const struct {
                const char *policy, *text, *more, *owner, *rule, *words;
        } cases[] = {{"", JOB, "", "", NULL, ""}, {"owners: [ann, bob]", JOB, "", "bob", NULL, ""},
                {"owners: [ann]", JOB, "", "bob", "owners", "no jobs of 'bob'"},
                {"owners: [ann]", JOB, "", "an", "owners", "'an'"},
                {"owners: [ann]", JOB, "", "", "owners", "does not say whose"},
                {"data: [scans]", JOB, "", "", NULL, ""},
                {"data: [scan]", JOB, "", "", "data", "data set scans"},
                {"strategies: [fedavg]", JOB, "", "", NULL, ""},
                {"strategies: [fedavg]", JOB, "aggregation: {strategy: median}\n", "", "strategies",
                        "median"},
                {"strategies_refused: [median]", JOB, "", "", NULL, ""},
                {"strategies_refused: [fedavg]", JOB, "", "", "strategies_refused", "fedavg"},
                {"rounds_max: 5", JOB, "", "", NULL, ""},
                {"rounds_max: 4", JOB, "", "", "rounds_max", "5 rounds"},
                {"epochs_max: 2", JOB, "", "", NULL, ""},
                {"epochs_max: 1", JOB, "", "", "epochs_max", "2 epochs"},
                {"epochs_max: 9", LOCAL_JOB, "", "", "epochs_max", "write training.epochs"},
                {"data: [scan]", PROGRAM_JOB, "", "", NULL, ""}, /* its data are not the daemon's */
                {"programs: [cars, pets]", PROGRAM_JOB, "", "", NULL, ""},
                {"programs: [cars]", PROGRAM_JOB, "", "", "programs", "refuses the program pets"},
                {"programs: false", PROGRAM_JOB, "", "", "programs", "trained by a program, as pets"},
                {"plugins: false", JOB "filters: [hide]\n", "", "", "plugins",
                        "refuses jobs with plug-ins, as the filter hide"},
                {"plugins: [hide]", JOB "filters: [hide]\n", "", "", NULL, ""},
                {"plugins: [hide]", JOB "filters: [hide]\nevaluation: {metrics: [f-beta]}\n", "", "",
                        "plugins", "refuses the plug-in f-beta, a metric"},
                {"plugins: [other]", JOB "aggregation: {strategy: plugin, plugin: {name: signs}}\n", "", "",
                        "plugins", "refuses the plug-in signs, a strategy"},
                {"plugins: false", JOB, "", "", NULL, ""}, {"programs: true", PROGRAM_JOB, "", "", NULL, ""},
                {"programs: false", JOB, "", "", NULL, ""},
                {"secure_sum: required", JOB, "", "", "secure_sum", "wants secure sums"},
                {"secure_sum: required", JOB, "secure_sum: {bits: 64}\n", "", NULL, ""},
                {"secure_sum: required", JOB, "secure_sum: {bits: 64, bad: 0.05}\n", "", "secure_bad",
                        "counts on 10% of daemons that work with the server: write secure_sum: {bits: 64, "
                        "bad: 0.1}"},
                {"secure_sum: required, secure_bad: 0.05", JOB, "secure_sum: {bits: 64, bad: 0.05}\n", "",
                        NULL, ""},
                {"min_participants: 10", JOB, "", "", NULL, ""},
                {"min_participants: 11", JOB, "", "", "min_participants", "only 10 of its 10"},
                {"min_participants: 3", JOB, "selection: {clients: 3}\n", "", NULL, ""},
                {"min_participants: 3", JOB, "selection: {kind: separated, separation: 3}\n", "", NULL, ""},
                {"min_participants: 4", JOB, "selection: {kind: separated, separation: 3}\n", "",
                        "min_participants", "only 3 of its 3"},
                {"min_participants: 1", JOB, "selection: {kind: poisson, rate: 0.9}\n", "",
                        "min_participants", "may draw nobody"},
                {"min_participants: 3", JOB, "selection: {clients: 2}\n", "", "min_participants", "only 2"},
                {"min_participants: 7", JOB, "limits: {quorum: 0.7}\n", "", NULL, ""},
                {"min_participants: 7", JOB, "limits: {quorum: 0.6}\n", "", "min_participants",
                        "only 6 of its 10"},
                {"clip: 1", JOB, "", "", NULL, ""},
                {"clip: 1", JOB, "aggregation: {strategy: scaffold}\n", "", "clip", "more than one change"},
                {"clip: 1, noise: 2", JOB, "aggregation: {strategy: qfedavg}\n", "", "noise",
                        "adds noise to"},
                {"clip: 1, noise: 2", JOB, "aggregation: {strategy: mime}\n", "", "noise", "more than one"},
                {"clip: 1", JOB, "aggregation: {strategy: ditto}\n", "", "clip", "more than one"},
                {"clip: 1", JOB, "parallel: {grain: 5, within: node}\n", "", "clip", "within: daemon"},
                {"clip: 1", JOB, "parallel: {grain: 5, within: daemon}\n", "", NULL, ""},
                {"epsilon_max: 8", LOCAL_JOB, "", "", "epsilon_max", "add privacy to the job"},
                {"epsilon_max: 8, clip: 1", LOCAL_JOB, "", "", "epsilon_max", "add privacy to the job"},
                {"epsilon_max: 8, clip: 1, noise: 9", LOCAL_JOB, "", "", NULL, ""},
                {"epsilon_max: 8, clip: 1, noise: 9", JOB, "", "", "epsilon_max", "partition: local"},
                {"epsilon_max: 8", LOCAL_JOB, CENTRAL, "", NULL, ""},
                {"epsilon_max: 8", LOCAL_JOB, LOCAL, "", NULL, ""},
                {"min_participants: 3", LOCAL_JOB, "", "", NULL, ""}, /* the round decides */
                {"min_participants: 3", LOCAL_JOB, "selection: {clients: 2}\n", "", "min_participants",
                        "only 2"}};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(cases); i++) {
                struct mfl_policy policy = policy_of(cases[i].policy);
                struct mfl_job *job = job_of(cases[i].text, cases[i].more);
                char reason[MFL_REASON_BYTES] = "";
                const char *rule = mfl_policy_job(&policy, job, job->data.name, cases[i].owner, reason);
                mfl_job_free(job);
                if (!rule != !cases[i].rule || (rule && strcmp(rule, cases[i].rule)) ||
                        !strstr(reason, cases[i].words))
                        fail_msg("case %zu: %s: %s", i, rule ? rule : "taken", reason);
        }
}

static void rounds(void **state)
{
        struct mfl_policy open = policy_of(""), three = policy_of("min_participants: 3");
        struct mfl_job *job = job_of(LOCAL_JOB, "limits: {quorum: 0.5}\n");
        char reason[MFL_REASON_BYTES] = "";
        assert_null(mfl_policy_round(&open, job, 0, reason));
        assert_string_equal(mfl_policy_round(&three, job, 0, reason), "min_participants");
        assert_non_null(strstr(reason, "does not say how many"));
        assert_string_equal(mfl_policy_round(&three, job, 4, reason), "min_participants");
        assert_non_null(strstr(reason, "only 2 of its 4"));
        assert_null(mfl_policy_round(&three, job, 5, reason));
        mfl_job_free(job);
}

/* ---- the gate ---- */

struct place {
        char dir[64];
        struct mfl_policy policy;
        struct mfl_gate *gate;
        char decided[MFL_REASON_BYTES];
};

static void on_decided(void *user, const char *job, enum mfl_site_word word, const char *reason)
{
        struct place *place = user;
        snprintf(place->decided, sizeof(place->decided), "%s %d %s", job, (int)word, reason);
}

static void open_gate(struct place *place)
{
        struct mfl_error err;
        if (mfl_gate_open(&place->policy, "site", "", "server:1", &place->gate, &err))
                fail_msg("%s", err.text);
        mfl_gate_listen(place->gate, on_decided, place);
}

static void open_place(struct place *place, const char *keys)
{
        *place = (struct place){.dir = "/tmp/test-of-policy-XXXXXX", .policy = policy_of(keys)};
        assert_non_null(mkdtemp(place->dir));
        mfl_strcpy(place->policy.dir, sizeof(place->policy.dir), place->dir);
        open_gate(place);
}

static void close_place(struct place *place)
{
        static const char *const names[] = {"site.answers", "site.audit.jsonl", "ledger"};
        mfl_gate_close(place->gate);
        for (size_t i = 0; i < MFL_ARRAY_SIZE(names); i++) {
                char path[128];
                snprintf(path, sizeof(path), "%s/%s", place->dir, names[i]);
                unlink(path);
        }
        assert_int_equal(rmdir(place->dir), 0);
}

static enum mfl_site_word ask(struct place *place, const char *job, const char *owner, const char *text)
{
        const struct mfl_gate_question question = {
                .job = job, .owner = owner, .text = text, .trains = true, .participants = 10};
        enum mfl_site_word word = MFL_SITE_NOTHING;
        struct mfl_error err;
        char reason[MFL_REASON_BYTES];
        assert_int_equal(mfl_gate_ask(place->gate, &question, &word, reason, &err), 0);
        assert_int_equal(word == MFL_SITE_TAKES, !*reason);
        return word;
}

static void tell(struct place *place, const char *line, const char *answer)
{
        struct mfl_error err;
        char *text = NULL;
        assert_int_equal(mfl_gate_command(place->gate, line, &text, &err), 0);
        if (!text || !strstr(text, answer))
                fail_msg("%s: %s", line, text ? text : "");
        free(text);
}

static char *audit_of(const struct place *place)
{
        char path[128], *text;
        size_t bytes;
        struct mfl_error err;
        struct stat st;
        snprintf(path, sizeof(path), "%s/site.audit.jsonl", place->dir);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_mode & 0777, 0600);
        assert_int_equal(mfl_fs_read(path, 1 << 20, &text, &bytes, &err), 0);
        return text;
}

static uint32_t count(const char *text, const char *word)
{
        uint32_t n = 0;
        for (const char *at = text; (at = strstr(at, word)); at++)
                n++;
        return n;
}

/* What counts is the data set that this daemon would use, whatever the job calls its own. */
static void data_of_a_root(void **state)
{
        static const char root[] =
                LOCAL_JOB "aggregation: {strategy: fltrust, root: {daemon: site, data: trusted}}\n",
                          other[] = LOCAL_JOB
                          "aggregation: {strategy: fltrust, root: {daemon: x, data: trusted}}\n";
        for (int trusted = 0; trusted < 2; trusted++) {
                struct place place;
                open_place(&place, trusted ? "data: [trusted]" : "data: [scans]");
                assert_int_equal(
                        ask(&place, "j-000001", "ann", root), trusted ? MFL_SITE_TAKES : MFL_SITE_REFUSES);
                assert_int_equal(
                        ask(&place, "j-000002", "ann", other), trusted ? MFL_SITE_REFUSES : MFL_SITE_TAKES);
                close_place(&place);
        }
}

static void answers(void **state)
{
        struct place place;
        open_place(&place, "ask: true");
        assert_int_equal(ask(&place, "j-000001", "ann", JOB), MFL_SITE_ASKS);
        assert_int_equal(ask(&place, "j-000001", "ann", JOB), MFL_SITE_ASKS);
        tell(&place, "approve j-000002", "error: site: this daemon has not met that job");
        tell(&place, "prove j-000001", "error: site: expected 'approve JOB'");
        tell(&place, "approve j-000001", "ok: site: j-000001 is approved");
        assert_string_equal(place.decided, "j-000001 3 ");
        assert_int_equal(ask(&place, "j-000001", "ann", JOB), MFL_SITE_TAKES);
        /* Another owner, another file, another number: another question. */
        assert_int_equal(ask(&place, "j-000001", "bob", JOB), MFL_SITE_ASKS);
        assert_int_equal(ask(&place, "j-000001", "ann", LOCAL_JOB), MFL_SITE_ASKS);
        assert_int_equal(ask(&place, "j-000002", "ann", JOB), MFL_SITE_ASKS);
        tell(&place, "deny j-000002", "is denied");
        assert_non_null(strstr(place.decided, "j-000002 1 this site's administrator"));
        assert_int_equal(ask(&place, "j-000002", "ann", JOB), MFL_SITE_REFUSES);
        mfl_gate_close(place.gate);
        open_gate(&place);
        tell(&place, "jobs", "");
        assert_int_equal(ask(&place, "j-000001", "ann", JOB), MFL_SITE_TAKES);
        assert_int_equal(ask(&place, "j-000002", "ann", JOB), MFL_SITE_REFUSES);
        tell(&place, "approve j-000002", "is approved"); /* a no may become a yes */
        assert_int_equal(ask(&place, "j-000002", "ann", JOB), MFL_SITE_TAKES);
        char *audit = audit_of(&place);
        assert_int_equal(count(audit, "\n"), 9); /* one line for each decision, not for each task */
        assert_int_equal(count(audit, "\"decision\": \"asks\""), 4);
        assert_int_equal(count(audit, "\"decision\": \"approved\""), 2);
        free(audit);
        close_place(&place);
}

static void lines(void **state)
{
        struct place place;
        open_place(&place, "owners: [ann]");
        assert_int_equal(ask(&place, "j-000001", "b\"\\ob\n\x1b[2J", JOB), MFL_SITE_REFUSES);
        assert_int_equal(ask(&place, "j-000001", "ann", "name: ["), MFL_SITE_REFUSES);
        tell(&place, "approve j-000001", "error: site: this daemon's policy does not have 'ask: true'");
        char *audit = audit_of(&place);
        assert_int_equal(count(audit, "\n"), 2);
        assert_non_null(strstr(audit, "\"owner\": \"b\\\"\\\\ob??[2J\""));
        assert_non_null(strstr(audit, "\"rule\": \"job\""));
        free(audit);
        close_place(&place);
}

/* More jobs than are remembered: none is let in by another one's answer. */
static void many(void **state)
{
        struct place place;
        open_place(&place, "ask: true");
        for (int i = 0; i < 3 * MFL_GATE_JOBS_MAX; i++) {
                char id[MFL_JOB_ID_BYTES], line[64];
                snprintf(id, sizeof(id), "j-%06d", i);
                assert_int_equal(ask(&place, id, "ann", JOB), MFL_SITE_ASKS);
                snprintf(line, sizeof(line), "%s %s", i % 2 ? "approve" : "deny", id);
                tell(&place, line, "ok: ");
        }
        for (int i = 0; i < 3 * MFL_GATE_JOBS_MAX; i++) {
                char id[MFL_JOB_ID_BYTES];
                snprintf(id, sizeof(id), "j-%06d", i);
                assert_int_equal(ask(&place, id, "ann", JOB), i % 2 ? MFL_SITE_TAKES : MFL_SITE_REFUSES);
        }
        close_place(&place);
}

/* A task of a round with those params. */
static enum mfl_site_word train(
        struct place *place, const char *job, const char *text, uint32_t round, uint8_t params)
{
        struct mfl_gate_question question = {
                .job = job, .owner = "ann", .text = text, .trains = true, .participants = 10, .round = round};
        enum mfl_site_word word = MFL_SITE_NOTHING;
        struct mfl_error err;
        char reason[MFL_REASON_BYTES];
        memset(question.params_digest, params, sizeof question.params_digest);
        assert_int_equal(mfl_gate_ask(place->gate, &question, &word, reason, &err), 0);
        if (word == MFL_SITE_REFUSES)
                assert_non_null(strstr(reason, "this site's policy allows 8"));
        return word;
}

/* The server's noise of 4: 39 rounds cost epsilon 7.3, 46 more than 8. */
static void promised_noise_is_counted(void **state)
{
        struct place place;
        open_place(&place, "epsilon_max: 8");
        uint32_t round = 1;
        while (train(&place, "j-000001", LOCAL_JOB CENTRAL, round, (uint8_t)round) == MFL_SITE_TAKES)
                round++;
        assert_in_range(round, 40, 46);
        /* Again with what was counted; not with anything else, of another number, server's restart or not. */
        assert_int_equal(train(&place, "j-000001", LOCAL_JOB CENTRAL, 5, 5), MFL_SITE_TAKES);
        assert_int_equal(train(&place, "j-000001", LOCAL_JOB CENTRAL, 5, 6), MFL_SITE_REFUSES);
        assert_int_equal(train(&place, "j-000002", LOCAL_JOB CENTRAL, 1, 1), MFL_SITE_REFUSES);
        mfl_gate_close(place.gate);
        open_gate(&place);
        assert_int_equal(
                train(&place, "j-000001", LOCAL_JOB CENTRAL, round, (uint8_t)round), MFL_SITE_REFUSES);
        tell(&place, "budget", "scans: ");
        close_place(&place);
}

/* Rounds that this daemon was not drawn for count, too: they are what sampling hides it in. */
static void skipped_rounds_are_counted(void **state)
{
        struct place place;
        open_place(&place, "epsilon_max: 8");
        assert_int_equal(train(&place, "j-000001", LOCAL_JOB CENTRAL, 30, 1), MFL_SITE_TAKES);
        tell(&place, "budget", "scans: 30 releases");
        assert_int_equal(train(&place, "j-000001", LOCAL_JOB CENTRAL, 30, 2), MFL_SITE_TAKES);
        assert_int_equal(train(&place, "j-000001", LOCAL_JOB CENTRAL, 2, 2), MFL_SITE_TAKES);
        tell(&place, "budget", "scans: 31 releases");
        assert_int_equal(train(&place, "j-000001", LOCAL_JOB CENTRAL, UINT32_MAX, 3), MFL_SITE_REFUSES);
        close_place(&place);
}

/* A server chooses the name of the data set; no line may say anything else than what it does. */
static void no_name_breaks_the_ledger(void **state)
{
        static const char *const names[] = {"a b", "a\nscans 1 1 0 0 0", "\x7f", "a\tb"};
        struct mfl_ledger_row row = {.sigma = 1, .rate = 1};
        for (size_t i = 0; i < MFL_ARRAY_SIZE(names); i++)
                assert_false(mfl_ledger_name(&row, names[i]));
        assert_true(mfl_ledger_name(&row, "") && !strcmp(row.data, "-"));
        assert_true(mfl_ledger_name(&row, "scans-2.b") && !strcmp(row.data, "scans-2.b"));
        assert_true(mfl_ledger_name(&row, "program:pets") && !strcmp(row.data, "program:pets"));
}

static void charge(struct place *place, double sigma, uint8_t name, const char *why)
{
        struct mfl_ledger_row row = {.data = "scans", .sigma = sigma, .rate = 1};
        struct mfl_error err;
        memset(row.name, name, sizeof row.name);
        int r = mfl_ledger_charge(mfl_gate_ledger(place->gate), &row, &err);
        if (r != (why ? MFL_INVALID : 0) || (why && !strstr(err.text, why)))
                fail_msg("%d: %s", r, r ? err.text : "charged");
}

/* Two daemons of one directory, a kill in the middle of a line, a file that is no ledger, one that got shorter. */
static void a_ledger_is_a_file(void **state)
{
        struct place place;
        struct mfl_error err;
        char path[128];
        open_place(&place, "clip: 1, noise: 8, epsilon_max: 8");
        struct place other = place;
        open_gate(&other);
        charge(&place, 1, 1, NULL);
        charge(&other, 1, 1, NULL); /* the same one */
        charge(&other, 1, 2, NULL);
        charge(&place, 1, 3, "would bring it to epsilon 8.");
        charge(&other, 1, 3, "would bring it to epsilon 8.");
        charge(&place, 40, 4, NULL);
        tell(&place, "budget", "scans: 3 releases, epsilon 6.");
        snprintf(path, sizeof path, "%s/ledger", place.dir);
        FILE *f = fopen(path, "a");
        assert_non_null(f);
        fputs("scans 1 1 0 00", f);
        assert_int_equal(fclose(f), 0);
        mfl_gate_close(place.gate);
        open_gate(&place);
        charge(&place, 40, 5, NULL); /* in place of the part */
        tell(&other, "budget", "scans: 4 releases");
        f = fopen(path, "a");
        assert_non_null(f);
        fputs("scans 1 1 0 00 00\n", f);
        assert_int_equal(fclose(f), 0);
        charge(&other, 40, 6, "/ledger:5: not a release");
        mfl_gate_close(place.gate);
        assert_int_equal(
                mfl_gate_open(&place.policy, "site", "", "server:1", &place.gate, &err), MFL_INVALID);
        assert_int_equal(truncate(path, 3), 0);
        charge(&other, 40, 6, "has become shorter");
        close_place(&other);
}

/* An answer that can't be kept does not count. */
static int refuse_write(void *user, const char *point, const char *path)
{
        return strcmp(point, "before-fsync") ? 0 : -ENOSPC;
}

static void full_disk(void **state)
{
        struct place place;
        open_place(&place, "ask: true");
        assert_int_equal(ask(&place, "j-000001", "ann", JOB), MFL_SITE_ASKS);
        mfl_fs_set_fault_hook(refuse_write, NULL);
        tell(&place, "approve j-000001", "error: ");
        mfl_fs_set_fault_hook(NULL, NULL);
        assert_string_equal(place.decided, "");
        assert_int_equal(ask(&place, "j-000001", "ann", JOB), MFL_SITE_ASKS);
        tell(&place, "approve j-000001", "ok: ");
        assert_int_equal(ask(&place, "j-000001", "ann", JOB), MFL_SITE_TAKES);
        close_place(&place);
}

int main(void)
{
        mfl_log_set_level(MFL_LOG_ERROR);
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(files),
                cmocka_unit_test(peers),
                cmocka_unit_test(inquiries),
                cmocka_unit_test(keys),
                cmocka_unit_test(rounds),
                cmocka_unit_test(data_of_a_root),
                cmocka_unit_test(answers),
                cmocka_unit_test(lines),
                cmocka_unit_test(many),
                cmocka_unit_test(promised_noise_is_counted),
                cmocka_unit_test(skipped_rounds_are_counted),
                cmocka_unit_test(a_ledger_is_a_file),
                cmocka_unit_test(no_name_breaks_the_ledger),
                cmocka_unit_test(full_disk),
        };
        return cmocka_run_group_tests(tests, NULL, NULL);
}
