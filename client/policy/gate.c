/* SPDX-License-Identifier: Apache-2.0 */
#include "client/policy/gate.h"

#include "common/base/log.h"

#define DENIED "this site's administrator has denied it"
#define ASKS_EACH "asks this site's administrator about each job"
#define ASKS "waits until this site's administrator says 'mfl-client approve %s' there"

struct gate_job {
        char id[MFL_JOB_ID_BYTES], owner[MFL_NAME_BYTES];
        uint8_t digest[MFL_SHA256_BYTES], text_digest[MFL_SHA256_BYTES];
        struct mfl_job *spec; /* NULL: the text can't be read */
        uint64_t met;         /* clock */
        enum mfl_site_word word;
        const char *rule;
        char reason[MFL_REASON_BYTES];
};

struct mfl_gate {
        const struct mfl_policy *policy;
        char daemon[MFL_NAME_BYTES], site[MFL_NAME_BYTES], server[MFL_REASON_BYTES];
        struct mfl_policy_record record;
        struct mfl_ledger *ledger;
        uint64_t clock;
        uint32_t n;
        struct gate_job jobs[MFL_GATE_JOBS_MAX];
        void (*decided)(void *user, const char *job, enum mfl_site_word word, const char *reason);
        void *user;
};

int mfl_gate_open(const struct mfl_policy *policy, const char *daemon, const char *site, const char *server,
        struct mfl_gate **ret_gate, struct mfl_error *err)
{
        struct mfl_gate *gate = mfl_calloc(1, sizeof(*gate));
        if (!gate)
                return mfl_fail_memory(err, sizeof(*gate), "a site's policy");
        gate->policy = policy;
        mfl_strcpy(gate->daemon, sizeof(gate->daemon), daemon);
        mfl_strcpy(gate->site, sizeof(gate->site), site ? site : "");
        mfl_strcpy(gate->server, sizeof(gate->server), server);
        const struct mfl_ledger_limit limit = {policy->epsilon_max, policy->delta};
        int r = mfl_policy_record_open(&gate->record, policy->dir, daemon, err);
        if (!r)
                r = mfl_ledger_open(policy->dir, &limit, &gate->ledger, err);
        if (r)
                mfl_gate_close(gate);
        else
                *ret_gate = gate;
        return r;
}

void mfl_gate_close(struct mfl_gate *gate)
{
        if (!gate)
                return;
        for (uint32_t i = 0; i < gate->n; i++)
                mfl_job_free(gate->jobs[i].spec);
        mfl_policy_record_close(&gate->record);
        mfl_ledger_close(gate->ledger);
        free(gate);
}

void mfl_gate_listen(struct mfl_gate *gate,
        void (*decided)(void *user, const char *job, enum mfl_site_word word, const char *reason), void *user)
{
        gate->decided = decided;
        gate->user = user;
}

/* ---- jobs ---- */

/* Each part is followed by a NUL, so that no two questions have one digest. */
static int digest_of(const struct mfl_gate *gate, const struct mfl_gate_question *q,
        uint8_t ret_digest[MFL_SHA256_BYTES], struct mfl_error *err)
{
        const char *const parts[] = {gate->server, q->job, q->owner, q->text};
        struct mfl_sha256 sha = {0};
        int r = mfl_sha256_init(&sha, err);
        for (size_t i = 0; i < MFL_ARRAY_SIZE(parts) && !r; i++)
                r = mfl_sha256_update(&sha, parts[i], strlen(parts[i]) + 1, err);
        if (!r)
                r = mfl_sha256_final(&sha, ret_digest, err);
        mfl_sha256_deinit(&sha);
        return r;
}

/* The place of a job that is new, or whose file or owner has changed. */
static struct gate_job *place_for(struct mfl_gate *gate, const char *id)
{
        struct gate_job *at = NULL;
        for (uint32_t i = 0; i < gate->n && !at; i++)
                if (!strcmp(gate->jobs[i].id, id))
                        at = &gate->jobs[i];
        if (!at && gate->n < MFL_GATE_JOBS_MAX)
                return &gate->jobs[gate->n++];
        for (uint32_t i = 0; i < gate->n && !at; i++) {
                const struct gate_job *oldest = &gate->jobs[0];
                for (uint32_t k = 1; k < gate->n; k++)
                        oldest = gate->jobs[k].met < oldest->met ? &gate->jobs[k] : oldest;
                at = (struct gate_job *)(uintptr_t)oldest;
        }
        mfl_job_free(at->spec);
        return at;
}

static int find_job(struct mfl_gate *gate, const struct mfl_gate_question *q, struct gate_job **ret_job,
        struct mfl_error *err)
{
        struct gate_job job = {.rule = ""};
        int r = digest_of(gate, q, job.digest, err);
        if (!r)
                r = mfl_sha256(q->text, strlen(q->text), job.text_digest, err);
        if (r)
                return r;
        for (uint32_t i = 0; i < gate->n; i++)
                if (!memcmp(gate->jobs[i].digest, job.digest, sizeof(job.digest))) {
                        *ret_job = &gate->jobs[i];
                        return 0;
                }
        r = mfl_job_parse(q->text, strlen(q->text), q->job, &job.spec, err);
        if (r < 0)
                return r;
        if (r)
                job.spec = NULL;
        mfl_strcpy(job.id, sizeof(job.id), q->job);
        mfl_strcpy(job.owner, sizeof(job.owner), q->owner);
        *ret_job = place_for(gate, q->job);
        **ret_job = job;
        return 0;
}

/* ---- decisions ---- */

static int audit(
        struct mfl_gate *gate, const struct gate_job *job, const char *decision, struct mfl_error *err)
{
        const struct mfl_audit_line line = {.daemon = gate->daemon,
                .server = gate->server,
                .job = job->id,
                .owner = job->owner,
                .decision = decision,
                .rule = job->rule,
                .reason = job->reason,
                .text_digest = job->text_digest};
        return mfl_policy_audit(&gate->record, &line, err);
}

int mfl_gate_note(struct mfl_gate *gate, const char *job, const char *owner, const char *text,
        const char *rule, const char *reason, struct mfl_error *err)
{
        uint8_t digest[MFL_SHA256_BYTES];
        const struct mfl_audit_line line = {.daemon = gate->daemon,
                .server = gate->server,
                .job = job,
                .owner = owner,
                .decision = "refuses",
                .rule = rule,
                .reason = reason,
                .text_digest = digest};
        int r = mfl_sha256(text, strlen(text), digest, err);
        return r ? r : mfl_policy_audit(&gate->record, &line, err);
}

struct mfl_ledger *mfl_gate_ledger(struct mfl_gate *gate)
{
        return gate->ledger;
}

/* A model may need a program of this site, which policy.programs may refuse, and its job may have promised that figures stay here. A
 * file that can't be read needs nothing. */
static int check_model(struct mfl_gate *gate, const struct mfl_gate_inquiry *inquiry, const char **ret_rule,
        char ret_reason[MFL_REASON_BYTES], struct mfl_error *err)
{
        struct mfl_job *spec;
        bool evaluates = inquiry->kind == MFL_POLICY_VALIDATE || inquiry->kind == MFL_POLICY_FOREIGN;
        int r = *inquiry->text ? mfl_job_parse(inquiry->text, strlen(inquiry->text), "the model", &spec, err)
                               : MFL_INVALID;
        if (r)
                return r < 0 ? r : 0;
        *ret_rule = mfl_policy_program(gate->policy, spec, ret_reason);
        if (!*ret_rule && evaluates && mfl_privacy_withholds(&spec->privacy)) {
                mfl_strcpy(ret_reason, MFL_REASON_BYTES, MFL_GATE_WITHHELD);
                *ret_rule = "metrics";
        }
        mfl_job_free(spec);
        return 0;
}

int mfl_gate_inquire(struct mfl_gate *gate, const struct mfl_gate_inquiry *inquiry, bool *ret_ok,
        char ret_reason[MFL_REASON_BYTES], struct mfl_error *err)
{
        uint8_t digest[MFL_SHA256_BYTES];
        char reason[MFL_REASON_BYTES] = "", what[MFL_REASON_BYTES];
        const char *rule =
                mfl_policy_inquiry(gate->policy, inquiry->kind, inquiry->who, inquiry->data, reason);
        int r = rule ? 0 : check_model(gate, inquiry, &rule, reason, err);
        if (r)
                return r;
        mfl_snprintf(what, sizeof(what), "%s of data set %s%s%s",
                inquiry->kind == MFL_POLICY_STATS      ? "statistics"
                : inquiry->kind == MFL_POLICY_VALIDATE ? "an evaluation"
                : inquiry->kind == MFL_POLICY_FOREIGN  ? "an evaluation of a foreign model"
                                                       : "predictions",
                inquiry->data, rule ? ": " : "", reason);
        const struct mfl_audit_line line = {.daemon = gate->daemon,
                .server = gate->server,
                .job = "",
                .owner = inquiry->who,
                .decision = rule ? "refuses" : "takes",
                .rule = rule ? rule : "",
                .reason = what,
                .text_digest = digest};
        r = mfl_sha256(inquiry->text, strlen(inquiry->text), digest, err);
        if (r)
                return r;
        if (mfl_policy_audit(&gate->record, &line, err)) {
                mfl_log(MFL_LOG_ERROR, "%s; an inquiry is refused", err->text);
                mfl_strcpy(reason, sizeof(reason), "this site's audit log can't be written");
                rule = "dir";
        }
        *ret_ok = !rule;
        mfl_strcpy(ret_reason, MFL_REASON_BYTES, reason);
        return 0;
}

const struct mfl_policy *mfl_gate_policy(const struct mfl_gate *gate)
{
        return gate ? gate->policy : NULL;
}

static const char *word_name(enum mfl_site_word word)
{
        return word == MFL_SITE_TAKES ? "takes" : word == MFL_SITE_ASKS ? "asks" : "refuses";
}

static int charge_promise(struct mfl_gate *gate, const struct mfl_gate_question *q,
        const struct gate_job *job, struct mfl_ledger_row *row, struct mfl_error *err)
{
        struct mfl_sha256 sha = {0};
        row->sigma = job->spec->privacy.noise;
        row->rate = mfl_job_rate(job->spec);
        bool whole = job->spec->privacy.mechanism != MFL_MECHANISM_GAUSSIAN; /* all rounds are one release */
        row->round = whole ? 1 : MFL_MAX(q->round, 1u);
        memcpy(row->job, job->digest, sizeof row->job);
        int r = mfl_sha256_init(&sha, err);
        if (!r)
                r = mfl_sha256_update(&sha, row->job, sizeof row->job, err);
        if (!r)
                r = mfl_sha256_update(&sha, &row->round, sizeof row->round, err);
        if (!r && !whole)
                r = mfl_sha256_update(&sha, q->params_digest, sizeof q->params_digest, err);
        if (!r && !whole)
                r = mfl_sha256_update(&sha, q->frozen_digest, sizeof q->frozen_digest, err);
        if (!r)
                r = mfl_sha256_final(&sha, row->name, err);
        mfl_sha256_deinit(&sha);
        return r            ? r
               : q->preview ? mfl_ledger_check(gate->ledger, row, err)
                            : mfl_ledger_charge(gate->ledger, row, err);
}

/* The data set that this daemon would use. */
static const char *data_for(const struct mfl_gate *gate, const struct mfl_job *spec)
{
        return mfl_job_data_for(spec, gate->daemon, gate->site);
}

/* What the server promises to hide is counted here, before the task begins; what this daemon hides by itself is counted by its trainer,
 * and only asked for here. NULL: the budget has room. */
static const char *check_budget(struct mfl_gate *gate, const struct mfl_gate_question *q,
        const struct gate_job *job, char reason[MFL_REASON_BYTES])
{
        const struct mfl_job *spec = job->spec;
        enum mfl_noise_by by = mfl_policy_noise(gate->policy, spec);
        struct mfl_local_rule rule = mfl_local_stricter(gate->policy->rule, mfl_local_of_job(spec));
        double noise = by == MFL_NOISE_BY_MEMBERS ? spec->privacy.noise : rule.noise;
        struct mfl_ledger_row row = {.sigma = noise / MFL_PRIVACY_LOCAL_DISTANCE, .rate = 1};
        struct mfl_error err;
        if (by == MFL_NOISE_BY_NOBODY || (by == MFL_NOISE_BY_SERVER && gate->policy->epsilon_max == 0))
                return NULL;
        if (strcmp(data_for(gate, spec), spec->data.name)) {
                mfl_strcpy(reason, MFL_REASON_BYTES,
                        "this site counts epsilon for the job's data set, and root.data names another");
                return "epsilon_max";
        }
        int r = mfl_ledger_name(&row, spec->data.name)
                        ? 0
                        : mfl_fail(&err, MFL_INVALID,
                                  "the data set's name has other characters than A-Za-z0-9._-:");

        if (!r && by == MFL_NOISE_BY_SERVER)
                r = charge_promise(gate, q, job, &row, &err);
        else if (!r)
                r = mfl_ledger_check(gate->ledger, &row, &err);
        if (r)
                mfl_snprintf(reason, MFL_REASON_BYTES, "%s", err.text);
        return r ? "epsilon_max" : NULL;
}

static enum mfl_site_word decide(struct mfl_gate *gate, const struct mfl_gate_question *q,
        const struct gate_job *job, const char **ret_rule, char reason[MFL_REASON_BYTES])
{
        const char *rule = "job";
        const struct mfl_answer *answer = mfl_policy_answer_find(&gate->record, job->digest);
        if (job->spec)
                rule = mfl_policy_job(gate->policy, job->spec, data_for(gate, job->spec), q->owner, reason);
        else
                mfl_strcpy(reason, MFL_REASON_BYTES, "this daemon can't read the job file");
        if (!rule && q->trains && !q->preview)
                rule = mfl_policy_round(gate->policy, job->spec, q->participants, reason);
        bool asks = !rule && gate->policy->ask && !answer,
             denied = gate->policy->ask && answer && !answer->approved;
        if (!rule && (!asks || q->preview) && !denied && q->trains)
                rule = check_budget(gate, q, job, reason);
        asks = asks && !rule;
        *ret_rule = rule ? rule : gate->policy->ask ? "ask" : "";
        if (asks && q->preview)
                mfl_strcpy(reason, MFL_REASON_BYTES, ASKS_EACH);
        else if (asks)
                mfl_snprintf(reason, MFL_REASON_BYTES, ASKS, job->id);
        else if (!rule && denied)
                mfl_strcpy(reason, MFL_REASON_BYTES, DENIED);
        return asks ? MFL_SITE_ASKS : rule || denied ? MFL_SITE_REFUSES : MFL_SITE_TAKES;
}

int mfl_gate_preview(struct mfl_gate *gate, const char *owner, const char *text, enum mfl_site_word *ret_word,
        char ret_reason[MFL_REASON_BYTES], struct mfl_error *err)
{
        const struct mfl_gate_question q = {
                .job = "", .owner = owner, .text = text, .trains = true, .preview = true};
        struct gate_job job = {.rule = ""};
        const char *rule;
        int r = digest_of(gate, &q, job.digest, err);
        if (!r)
                r = mfl_job_parse(text, strlen(text), "the job", &job.spec, err);
        if (r < 0)
                return r;
        if (r)
                job.spec = NULL;
        *ret_reason = '\0';
        *ret_word = decide(gate, &q, &job, &rule, ret_reason);
        mfl_job_free(job.spec);
        return 0;
}

int mfl_gate_ask(struct mfl_gate *gate, const struct mfl_gate_question *question,
        enum mfl_site_word *ret_word, char ret_reason[MFL_REASON_BYTES], struct mfl_error *err)
{
        struct gate_job *job;
        char reason[MFL_REASON_BYTES] = "";
        const char *rule;
        int r = find_job(gate, question, &job, err);
        if (r)
                return r;
        job->met = ++gate->clock;
        enum mfl_site_word word = decide(gate, question, job, &rule, reason);
        bool news = job->word != word || strcmp(job->rule, rule) || strcmp(job->reason, reason);
        job->word = word;
        job->rule = rule;
        mfl_strcpy(job->reason, sizeof(job->reason), reason);
        if (news && audit(gate, job, word_name(word), err)) {
                mfl_log(MFL_LOG_ERROR, "%s; job %s is refused", err->text, job->id);
                job->word = MFL_SITE_NOTHING; /* tried again with the next task */
                word = MFL_SITE_REFUSES;
                mfl_strcpy(reason, sizeof(reason), "this site's audit log can't be written");
        } else if (news && word != MFL_SITE_TAKES)
                mfl_log(MFL_LOG_WARN, "policy: job %s of %s: %s", job->id,
                        *job->owner ? job->owner : "an unknown owner", reason);
        *ret_word = word;
        mfl_strcpy(ret_reason, MFL_REASON_BYTES, reason);
        return 0;
}

/* ---- the administrator ---- */

static int answer(
        struct mfl_gate *gate, struct gate_job *job, bool approved, char **ret_text, struct mfl_error *err)
{
        struct mfl_answer put = {.approved = approved};
        memcpy(put.digest, job->digest, sizeof(put.digest));
        enum mfl_site_word before = job->word;
        char reason[MFL_REASON_BYTES];
        mfl_strcpy(reason, sizeof(reason), job->reason);
        job->rule = "ask";
        mfl_strcpy(job->reason, sizeof(job->reason), approved ? "" : DENIED);
        int r = audit(gate, job, approved ? "approved" : "denied", err);
        if (!r)
                r = mfl_policy_answer_put(&gate->record, &put, err);
        if (r) {
                mfl_strcpy(job->reason, sizeof(job->reason), reason);
                *ret_text = mfl_asprintf("error: %s\n", err->text);
                return *ret_text ? 0 : -ENOMEM;
        }
        job->word = approved ? MFL_SITE_TAKES : MFL_SITE_REFUSES;
        mfl_log(MFL_LOG_INFO, "policy: job %s is %s", job->id, approved ? "approved" : "denied");
        if (gate->decided && before != job->word)
                gate->decided(gate->user, job->id, job->word, job->reason);
        *ret_text =
                mfl_asprintf("ok: %s: %s is %s\n", gate->daemon, job->id, approved ? "approved" : "denied");
        return *ret_text ? 0 : -ENOMEM;
}

static int list(const struct mfl_gate *gate, char **ret_text)
{
        char *text = mfl_strdup("");
        for (uint32_t i = 0; i < gate->n && text; i++) {
                const struct gate_job *job = &gate->jobs[i];
                char *more = mfl_asprintf("%s%s  %s  %s  %s  %s%s%s\n", text, gate->daemon, job->id,
                        *job->owner ? job->owner : "-", word_name(job->word),
                        job->spec ? job->spec->name : "-", *job->reason ? ": " : "", job->reason);
                free(text);
                text = more;
        }
        *ret_text = text;
        return text ? 0 : -ENOMEM;
}

static int budget(struct mfl_gate *gate, char **ret_text)
{
        struct mfl_error err;
        if (mfl_ledger_text(gate->ledger, ret_text, &err))
                *ret_text = mfl_asprintf("error: %s\n", err.text);
        return *ret_text ? 0 : -ENOMEM;
}

int mfl_gate_command(struct mfl_gate *gate, const char *command, char **ret_text, struct mfl_error *err)
{
        bool approve = !strncmp(command, "approve ", 8), deny = !strncmp(command, "deny ", 5);
        const char *id = command + (approve ? 8 : 5);
        struct gate_job *job = NULL;
        if (!strcmp(command, "jobs"))
                return list(gate, ret_text);
        if (!strcmp(command, "budget"))
                return budget(gate, ret_text);
        for (uint32_t i = 0; i < gate->n && (approve || deny); i++)
                if (!strcmp(gate->jobs[i].id, id))
                        job = &gate->jobs[i];
        const char *why = NULL;
        if (!approve && !deny)
                why = "expected 'approve JOB', 'deny JOB', 'jobs' or 'budget'";
        else if (!gate->policy->ask)
                why = "this daemon's policy does not have 'ask: true'";
        else if (!job)
                why = "this daemon has not met that job since its start; 'mfl-client jobs' lists those that "
                      "it has";
        else if (job->word == MFL_SITE_REFUSES && strcmp(job->rule, "ask"))
                why = job->reason; /* the policy has to change first */
        if (!why)
                return answer(gate, job, approve, ret_text, err);
        *ret_text = mfl_asprintf("error: %s: %s\n", gate->daemon, why);
        return *ret_text ? 0 : -ENOMEM;
}
