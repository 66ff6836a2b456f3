/* SPDX-License-Identifier: Apache-2.0 */
/* A job's data set, and the daemons that a job lacks. */
#include "server/work/core_data.h"

/* ---- what fits ---- */

/* What a daemon's data set has that makes it unfit, for one daemon and for several. */
static const char *const difference[] = {
        [FIT_SHAPE] = "samples of another shape",
        [FIT_CLASSES] = "another number of classes",
        [FIT_MEANING] = "other classes, categories or tokens",
        [FIT_CONTENT] = "other samples",
};

/* ---- who decides ---- */

static void act_data(struct mfl_core *core, struct core_job *job)
{
        struct mfl_core_action *action = mfl_core_act(core, MFL_ACT_JOB_DATA, job);
        action->prepare.data = job->data;
        mfl_strcpy(action->prepare.data_from, sizeof action->prepare.data_from, job->data_from);
}

static void tell_outdated(struct mfl_core *core, struct core_job *job, struct core_daemon *daemon)
{
        struct core_demand demand = mfl_core_fit_demand(job);
        const char *relay =
                daemon->info.relay; /* of a daemon below one that is older, it is the relay's version */
        mfl_snprintf(daemon->note, sizeof daemon->note,
                "%s: it has %s%s, which protocol %u does not know: upgrade this daemon%s%.80s%s", job->id,
                demand.what, demand.kind, daemon->info.protocol, *relay ? ", or relay " : "", relay,
                *relay ? " if that is older" : "");
        mfl_core_trace(core, job,
                "daemon %s gets no work from this job: it speaks protocol %u, but %s%s need %u; upgrade "
                "it%s%.80s%s",
                daemon->info.name, daemon->info.protocol, demand.what, demand.kind, demand.version,
                *relay ? ", or relay " : "", relay, *relay ? " if that is older" : "");
}

/* Tells people once: in the job's log, and beside the daemon. */
static void tell_unfit(struct mfl_core *core, struct core_job *job, struct core_daemon *daemon)
{
        const struct mfl_data_info *data = daemon->conn ? mfl_core_fit_find(daemon, job) : NULL;
        enum core_fit fit = data ? mfl_core_fit_compare(data, job) : FIT;
        bool fits = !data || (fit == FIT && !mfl_core_fit_is_outdated(daemon, job));
        struct core_relation *relation = fits ? NULL : mfl_core_relation(core, daemon, job);
        if (!relation || relation->unfit_told)
                return;
        relation->unfit_told = true;
        if (fit == FIT) {
                tell_outdated(core, job, daemon);
                return;
        }
        const char *other = job->data_from[0] ? job->data_from : "this job";
        mfl_snprintf(daemon->note, sizeof daemon->note, "%s: its data set %s has %s than that of %s", job->id,
                data->name, difference[fit], other);
        mfl_core_trace(core, job, "daemon %s can't take part: its data set %s has %s than that of %s",
                daemon->info.name, data->name, difference[fit], other);
}

static void take_meaning(struct mfl_core *core, struct core_job *job, const struct core_daemon *daemon)
{
        const struct mfl_data_info *data = daemon->conn ? mfl_core_daemon_data(daemon, job) : NULL;
        if (job->data.meaning || !data || !data->meaning || !mfl_core_daemon_takes_work(daemon))
                return;
        job->data.meaning = data->meaning;
        mfl_strcpy(job->data_from, sizeof job->data_from, daemon->info.name);
        act_data(core, job);
}

bool mfl_core_data_decide(struct mfl_core *core, struct core_job *job)
{
        for (uint32_t i = 0; i < core->n_daemons; i++) {
                const struct core_daemon *daemon = core->daemons[i];
                const struct mfl_data_info *data = daemon->conn ? mfl_core_daemon_data(daemon, job) : NULL;
                if (!data || !mfl_core_daemon_takes_work(daemon) || strcmp(data->name, job->spec->data.name))
                        continue; /* a root's own data set is not the job's */
                if (!job->data.name[0]) {
                        job->data = *data;
                        mfl_strcpy(job->data_from, sizeof job->data_from, daemon->info.name);
                }
                return true;
        }
        return false;
}

void mfl_core_data_arrived(struct mfl_core *core, struct core_job *job, struct core_daemon *daemon)
{
        if (job->phase <= PHASE_PREPARE || job->phase == PHASE_OVER)
                return; /* JOB_PREPARE is storing the data */
        take_meaning(core, job, daemon);
        tell_unfit(core, job, daemon);
}

void mfl_core_data_ready(struct mfl_core *core, struct core_job *job)
{
        for (uint32_t i = 0; i < core->n_daemons; i++)
                take_meaning(core, job, core->daemons[i]);
        for (uint32_t i = 0; i < core->n_daemons && !core->error; i++)
                tell_unfit(core, job, core->daemons[i]);
}

/* ---- daemons that the shell has turned away ---- */

/* ---- whom a job lacks ---- */

enum lack {
        LACK_RULE,
        LACK_VERSION,
        LACK_SITE,
        LACK_TRUTH,
        LACK_DRAINED,
        LACK_LEAVING,
        LACK_LOST,
        LACK_SHAPE,
        LACK_CLASSES,
        LACK_MEANING,
        LACK_CONTENT,
        LACK_OUTDATED,
        LACK_UNWANTED,
        LACK_BARRED,
        LACK_ASKS,
        LACK_CUT,
        LACK_RESTS,
        LACKS_,
        LACK_NOTHING = LACKS_,
};

/* For one daemon, and for several. A text about data goes on with difference[]. */
static const char *const lacking[LACKS_][2] = {
        [LACK_RULE] = {"is disabled by a rule", "are disabled by a rule"},
        [LACK_VERSION] = {"speaks another version of the protocol", "speak another version of the protocol"},
        [LACK_SITE] = {"has other data than its site", "have other data than their sites"},
        [LACK_TRUTH] = {"was sent away for an impossible report", "were sent away for impossible reports"},
        [LACK_DRAINED] = {"is drained", "are drained"},
        [LACK_LEAVING] = {"is about to end", "are about to end"},
        [LACK_LOST] = {"is lost, but may return", "are lost, but may return"},
        [LACK_SHAPE] = {"has", "have"},
        [LACK_CLASSES] = {"has", "have"},
        [LACK_MEANING] = {"has", "have"},
        [LACK_CONTENT] = {"has", "have"},
        [LACK_OUTDATED] = {"must be upgraded", "must be upgraded"},
        [LACK_UNWANTED] = {"is not what selection.where says", "are not what selection.where says"},
        [LACK_BARRED] = {"can't do this job", "can't do this job"},
        [LACK_ASKS] = {"asks its site's administrator", "ask their sites' administrators"},
        [LACK_CUT] = {"cuts the clients differently from others", "cut the clients differently from others"},
        [LACK_RESTS] = {"has failed too often and rests", "have failed too often and rest"},
};

#define OFFERED_SHOWN 4 /* names of other data sets */

struct count {
        uint32_t n, n_of[LACKS_];
        const char *first[LACKS_];
        const char *note; /* of the first daemon that can't do the job */
};

static enum lack lack_of(const struct core_daemon *daemon, const struct core_job *job)
{
        enum core_fit fit = mfl_core_fit_compare(mfl_core_fit_find(daemon, job), job);
        if (fit != FIT)
                return (enum lack)(LACK_SHAPE + (int)fit - FIT_SHAPE);
        if (!daemon->conn)
                return LACK_LOST;
        if (mfl_core_fit_is_outdated(daemon, job))
                return LACK_OUTDATED;
        if (!mfl_core_fit_is_wanted(daemon, job))
                return LACK_UNWANTED;
        if (mfl_core_daemon_barred(daemon, job))
                return LACK_BARRED;
        if (mfl_core_daemon_asks(daemon, job))
                return LACK_ASKS;
        if (!mfl_core_daemon_takes_work(daemon))
                return daemon->leaving ? LACK_LEAVING : LACK_DRAINED;
        if (mfl_core_daemon_usable(daemon, job))
                return LACK_NOTHING;
        return mfl_core_daemon_rests(daemon, job) ? LACK_RESTS : LACK_CUT;
}

static void add(struct count *count, enum lack lack, const char *name)
{
        count->n++;
        if (lack == LACK_NOTHING)
                return;
        /* Shows the first by name, so that the text does not change when daemons come and go. */
        if (!count->n_of[lack]++ || strcmp(name, count->first[lack]) < 0)
                count->first[lack] = name;
}

static void count_daemons(const struct mfl_core *core, const struct core_job *job, struct count *count)
{
        uint64_t data_set = mfl_core_name_key(job->spec->data.name);
        for (uint32_t i = 0; i < core->n_daemons; i++) {
                const struct core_daemon *daemon = core->daemons[i];
                const struct mfl_data_info *data = mfl_core_fit_find(daemon, job);
                bool decides = data && (job->data.name[0] || !strcmp(data->name, job->spec->data.name));
                if (!decides || (!daemon->conn && mfl_core_refused_find(core, daemon->info.name)))
                        continue; /* it is counted below */
                enum lack lack = lack_of(daemon, job);
                add(count, lack, daemon->info.name);
                size_t n = strlen(job->id);
                bool own = strncmp(daemon->note, job->id, n) == 0 && daemon->note[n] == ':';
                if (lack == LACK_BARRED && own && strcmp(count->first[lack], daemon->info.name) == 0)
                        count->note = daemon->note + n;
        }
        static const enum lack refusals[] = {[MFL_REFUSAL_RULE] = LACK_RULE,
                [MFL_REFUSAL_VERSION] = LACK_VERSION,
                [MFL_REFUSAL_SITE] = LACK_SITE,
                [MFL_REFUSAL_LIE] = LACK_TRUTH};
        for (uint32_t i = 0; i < core->n_refused; i++)
                if (mfl_core_refused_offers(core, &core->refused[i], data_set))
                        add(count, refusals[core->refused[i].why], core->refused[i].name);
}

static int add_text(char *text, int at, const char *fmt, ...) MFL_PRINTF(3, 4);

static int add_text(char *text, int at, const char *fmt, ...)
{
        va_list ap;
        va_start(ap, fmt);
        int n = mfl_vsnprintf(text + at, (size_t)(MFL_REASON_BYTES - at), fmt, ap);
        va_end(ap);
        return MFL_MIN(at + n, MFL_REASON_BYTES - 1);
}

static int describe(const struct count *count, const struct core_job *job, char *text, int at)
{
        const char *sep = "";
        struct core_demand demand = mfl_core_fit_demand(job);
        for (int l = 0; l < LACKS_; l++) {
                uint32_t n = count->n_of[l];
                if (!n)
                        continue;
                at = add_text(text, at, "%s%s", sep, count->first[l]);
                if (n > 1)
                        at = add_text(text, at, " and %u more", n - 1);
                at = add_text(text, at, " %s", lacking[l][n > 1]);
                if (l >= LACK_SHAPE && l <= LACK_CONTENT)
                        at = add_text(text, at, " %s than %s", difference[FIT_SHAPE + l - LACK_SHAPE],
                                job->data_from[0] ? job->data_from : "the job began with");
                if (l == LACK_OUTDATED)
                        at = add_text(text, at, ": %s%s need protocol %u", demand.what, demand.kind,
                                demand.version);
                if (l == LACK_BARRED && n == 1 && count->note)
                        at = add_text(text, at, "%.100s", count->note);
                sep = ", ";
        }
        return at;
}

/* The first name of a data set, in alphabetical order, that connected daemons offer after `last`; NULL:
 * there is none. */
static const char *next_offered(const struct mfl_core *core, const char *last)
{
        const char *next = NULL;
        for (uint32_t i = 0; i < core->n_daemons; i++) {
                const struct core_daemon *daemon = core->daemons[i];
                for (uint32_t k = 0; daemon->conn && k < daemon->info.n_data_sets; k++) {
                        const char *name = daemon->info.data_sets[k].name;
                        if (!strncmp(name, MFL_FILTER_DATA, sizeof MFL_FILTER_DATA - 1))
                                continue;
                        if (strcmp(name, last) > 0 && (!next || strcmp(name, next) < 0))
                                next = name;
                }
        }
        return next;
}

/* For users who have mistyped the name. */
static void describe_offered(const struct mfl_core *core, char *text, int at)
{
        const char *name = next_offered(core, "");
        for (int i = 0; name && i <= OFFERED_SHOWN; i++) {
                const char *lead = i ? ", " : "; offered: ";
                at = add_text(text, at, "%s%s", lead, i < OFFERED_SHOWN ? name : "...");
                name = next_offered(core, name);
        }
}

/* "no daemon that has the program pets (programs in client.yaml) and data set x is connected" */
static int describe_wanted(const struct mfl_job *spec, char *text)
{
        bool own = mfl_job_owns_data(spec);
        const char *sep = " that has the ";
        int at = mfl_snprintf(text, MFL_REASON_BYTES, "no daemon");
        if (mfl_job_has_program(spec)) {
                at = add_text(
                        text, at, "%sprogram %s (programs in client.yaml)", sep, spec->training.program);
                sep = " and the ";
        }
        for (uint32_t i = 0; i < spec->n_filters; i++) {
                at = add_text(text, at, "%sfilter %s (filters in client.yaml)", sep, spec->filters[i]);
                sep = " and the ";
        }
        if (!own)
                at = add_text(text, at, "%sdata set %s", *sep && sep[1] == 't' ? " with " : " and ",
                        spec->data.name);
        return add_text(text, at, " is connected");
}

void mfl_core_data_lack(
        const struct mfl_core *core, const struct core_job *job, char ret_text[MFL_REASON_BYTES])
{
        struct count count = {0};
        count_daemons(core, job, &count);
        if (!count.n) {
                int at = describe_wanted(job->spec, ret_text);
                if (core->n_daemons <= CORE_COUNT_MAX)
                        describe_offered(core, ret_text, at);
                return;
        }
        int at = mfl_snprintf(ret_text, MFL_REASON_BYTES, "%u daemon%s offer%s %s: ", count.n,
                count.n > 1 ? "s" : "", count.n > 1 ? "" : "s", job->spec->data.name);
        describe(&count, job, ret_text, at);
}

void mfl_core_data_missing(const struct mfl_core *core, const struct core_job *job, uint32_t usable,
        uint32_t need, char ret_text[MFL_REASON_BYTES])
{
        struct count count = {0};
        char rest[MFL_REASON_BYTES] = "";
        if (core->n_daemons <= CORE_COUNT_MAX)
                count_daemons(core, job, &count);
        describe(&count, job, rest, 0);
        mfl_snprintf(ret_text, MFL_REASON_BYTES, "waits for %s: %u of %u are connected%s%.200s",
                mfl_core_job_is_local(job) ? "sites" : "daemons", usable, need, *rest ? "; " : "", rest);
}
