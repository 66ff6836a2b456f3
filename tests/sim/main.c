/* SPDX-License-Identifier: Apache-2.0 */
/* mfl-sim: runs seeds, replays one, compares golden traces, proves that planted bugs are found.
 *   mfl-sim --seeds A..B            property checks over seeded faults
 *   mfl-sim --seed N [--trace]      one seed again
 *   mfl-sim --bug B --seeds A..B    succeeds when the planted bug B is found; --bugs A..B: all of them
 *   mfl-sim --golden NAME [FILE]    prints a scenario's trace, or compares it with FILE
 *   mfl-sim [--bug B] --sweep       harms each daemon of two nodes in each way at each event of a job
 *   --relays                        with relays between the server and the daemons; only bugs whose title begins with "relay:"
 *   mfl-sim --list
 */
#include "tests/sim/sim.h"
#include "tests/sim/bugs.h"

#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

int mfl_sim_bug;
static bool with_relays;

static jmp_buf failed;
static char failure[512];
static volatile uint64_t *current_seed;

void sim_fail(struct sim *sim, const char *fmt, ...)
{
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(failure, sizeof failure, fmt, ap);
        va_end(ap);
        (void)sim;
        longjmp(failed, 1);
}

static const char *const golden[] = {"", "happy-path", "daemon-dies", "server-restarts", "two-jobs",
        "crash-before-commit", "shm-group", "leader-dies"};

static void dump_results(struct sim *sim, const struct sim_daemon *d)
{
        for (int k = 0; d->agent && k < SIM_RESULTS; k++) {
                const struct sim_result *r = &d->result[k];
                if (r->used && r->n_updates)
                        sim_line(sim, d->info.name,
                                "holds the result of task %u:%u, round %u of %s; group %u",
                                (uint32_t)(r->task >> 32), (uint32_t)r->task, r->t.round, r->t.job,
                                (uint32_t)r->published);
        }
}

/* Where everybody stood when it failed. */
static void dump(struct sim *sim)
{
        struct mfl_core_job_view job;
        struct mfl_core_daemon_view d;
        for (uint32_t i = 0; sim->core && i < sim->n_jobs; i++)
                if (mfl_core_job_view(sim->core, sim->job[i].id, &job) == 0)
                        sim_line(sim, sim->job[i].id,
                                "round %u attempt %u, %s, %u of %u clients on %u daemons; %s", job.in_round,
                                job.attempt, job.phase, job.clients_done, job.clients_total, job.daemons,
                                job.reason);
        for (uint32_t i = 0; sim->core && i < mfl_core_daemon_count(sim->core); i++) {
                mfl_core_daemon_view(sim->core, i, &d);
                sim_line(sim, d.info->name, "%s %s %s", d.state, d.job, d.note);
        }
        for (uint32_t i = 0; i < sim->n_daemons; i++)
                dump_results(sim, &sim->daemon[i]);
        sim_line(sim, "FAILED", "%s", failure);
}

struct totals {
        uint64_t events, ahead, returned, groups, nccl, counted, ended, params_read, regrouped, lies, busy,
                inside;
        uint64_t relay_groups, relay_sums, relays_killed;
        uint64_t params_wrong, params_refused, evicted, teams, teams_broken, teams_wide, teams_walled;
};

static void add_groups(const struct sim *sim, struct totals *totals)
{
        for (uint32_t i = 0; i < sim->n_groups; i++) {
                totals->groups++;
                totals->nccl += sim->groups[i].group.collective == MFL_COLLECTIVE_NCCL;
                totals->counted += sim->groups[i].counted;
                totals->relay_groups +=
                        sim->groups[i].counted && sim->groups[i].group.collective == MFL_COLLECTIVE_RELAY;
                totals->ended += sim->groups[i].ended;
        }
        totals->relay_sums += sim->n_relay_sums;
        totals->relays_killed += sim->n_relays_killed;
        totals->params_read += sim->n_params_read;
        totals->params_wrong += sim->n_params_wrong;
        totals->params_refused += sim->n_params_refused;
        totals->evicted += sim->n_evicted;
        totals->regrouped += sim->n_regrouped;
        totals->lies += sim->n_lies;
        totals->busy += sim->n_busy;
        totals->inside += sim->n_inside;
        totals->teams += sim->n_teams;
        totals->teams_broken += sim->n_teams_broken;
        totals->teams_wide += sim->n_teams_wide;
        totals->teams_walled += sim->n_teams_walled;
}

static bool run_sim(struct sim *sim, char **ret_lines, struct totals *ret_totals)
{
        *current_seed = sim->seed;
        bool ok = setjmp(failed) == 0;
        if (ok)
                sim_run(sim);
        else if (sim->trace)
                dump(sim);
        if (ret_lines) {
                *ret_lines = sim->lines ? sim->lines : strdup("");
                sim->lines = NULL;
        }
        if (ret_totals) {
                ret_totals->events += sim->n_events;
                ret_totals->ahead += sim->n_ahead;
                ret_totals->returned += sim->n_returned;
                add_groups(sim, ret_totals);
        }
        if (ok) /* a failure may have come in the middle of anything */
                sim_deinit(sim);
        return ok;
}

static bool run_seed(uint64_t seed, bool trace, int scenario, char **ret_lines, struct totals *ret_totals)
{
        struct sim *sim = calloc(1, sizeof *sim);
        sim->seed = seed;
        sim->trace = trace;
        sim->scenario = scenario;
        sim->with_relays = with_relays;
        bool ok = run_sim(sim, ret_lines, ret_totals);
        free(sim);
        return ok;
}

static void print_tail(const char *lines, int n)
{
        const char *at = lines + strlen(lines);
        while (at > lines && n >= 0)
                n -= *--at == '\n';
        fputs(at > lines ? at + 1 : at, stdout);
}

static int run_seeds(uint64_t from, uint64_t to)
{
        struct totals totals = {0};
        for (uint64_t seed = from; seed < to; seed++) {
                char *lines;
                if (run_seed(seed, false, 0, NULL, &totals))
                        continue;
                printf("seed %llu failed: %s\n", (unsigned long long)seed, failure);
                run_seed(seed, true, 0, &lines, NULL);
                print_tail(lines, 25);
                printf("replay: mfl-sim %s--seed %llu --trace\n", with_relays ? "--relays " : "",
                        (unsigned long long)seed);
                free(lines);
                return 1;
        }
        printf("%llu seeds, %llu events: every property held (%llu crashes while the round after one that "
               "was not committed was trained; %llu groups, %llu of them by nccl: %llu counted, %llu ended "
               "early; params read from a neighbour %llu times, with a wrong digest %llu times, without room "
               "%llu times, %llu versions evicted; nodes grouped again after the faults in %llu rounds; %llu "
               "clients went to other daemons; %llu lies found out; %llu slots had to wait for memory; %llu "
               "updates came in their Announce; %llu teams met, %llu of them over the network, %llu were "
               "kept "
               "apart by firewalls, and %llu of their members lost another)\n",
                (unsigned long long)(to - from), (unsigned long long)totals.events,
                (unsigned long long)totals.ahead, (unsigned long long)totals.groups,
                (unsigned long long)totals.nccl, (unsigned long long)totals.counted,
                (unsigned long long)totals.ended, (unsigned long long)totals.params_read,
                (unsigned long long)totals.params_wrong, (unsigned long long)totals.params_refused,
                (unsigned long long)totals.evicted, (unsigned long long)totals.regrouped,
                (unsigned long long)totals.returned, (unsigned long long)totals.lies,
                (unsigned long long)totals.busy, (unsigned long long)totals.inside,
                (unsigned long long)totals.teams, (unsigned long long)totals.teams_wide,
                (unsigned long long)totals.teams_walled, (unsigned long long)totals.teams_broken);
        if (with_relays)
                printf("relays: %llu groups counted, %llu sums sent up, %llu relays killed\n",
                        (unsigned long long)totals.relay_groups, (unsigned long long)totals.relay_sums,
                        (unsigned long long)totals.relays_killed);
        return 0;
}

/* In a child, because a bug may well end in an assertion of the core. */
static int find_bug(int bug, uint64_t from, uint64_t to)
{
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
                mfl_sim_bug = bug;
                if (!freopen("/dev/null", "w", stderr))
                        _exit(9);
                for (uint64_t seed = from; seed < to; seed++)
                        if (!run_seed(seed, false, 0, NULL, NULL)) {
                                printf("bug %d (%s): %s\n", bug, mfl_sim_bugs[bug], failure);
                                fflush(stdout);
                                _exit(1);
                        }
                _exit(0);
        }
        int status;
        if (waitpid(child, &status, 0) != child)
                return 1;
        if (status == 0) {
                printf("bug %d (%s) was NOT found in seeds %llu..%llu\n", bug, mfl_sim_bugs[bug],
                        (unsigned long long)from, (unsigned long long)to);
                return 1;
        }
        printf("bug %d: found after %llu seeds%s\n", bug, (unsigned long long)(*current_seed - from + 1),
                WIFSIGNALED(status) ? " by an assertion of the core" : "");
        return 0;
}

static int compare(const char *lines, const char *path)
{
        FILE *f = fopen(path, "r");
        char want[1024];
        const char *at = lines;
        if (!f) {
                perror(path);
                return 1;
        }
        for (int n = 1; fgets(want, sizeof want, f); n++) {
                size_t len = strcspn(at, "\n") + (at[strcspn(at, "\n")] == '\n');
                if (strlen(want) != len || memcmp(want, at, len) != 0) {
                        printf("%s:%d:\nwant: %sgot:  %.*s", path, n, want, (int)len, at);
                        fclose(f);
                        return 1;
                }
                at += len;
        }
        fclose(f);
        if (*at)
                printf("%s ends, but the trace goes on: %s", path, at);
        return *at != 0;
}

static int run_golden(const char *name, const char *path)
{
        for (int i = 1; i < (int)MFL_ARRAY_SIZE(golden); i++) {
                if (strcmp(golden[i], name) != 0)
                        continue;
                char *lines;
                bool ok = run_seed(1, true, i, &lines, NULL);
                int r = !ok;
                if (path && ok)
                        r = compare(lines, path);
                else
                        fputs(lines, stdout);
                free(lines);
                return r;
        }
        printf("no scenario %s\n", name);
        return 2;
}

static void on_abort(int signal)
{
        char text[64];
        int n = snprintf(text, sizeof text, "in seed %llu\n", (unsigned long long)*current_seed);
        (void)signal;
        if (write(2, text, (size_t)n) < 0)
                _exit(1);
}

/* ---- everything at every event ---- */

static const char *const harms[] = {"killed", "stopped for 6 s", "cut off", "lost without a word"};

/* One daemon; the daemons of one node; all. */
static const uint32_t victims[] = {1, 2, 4, 8, 3, 15};

static struct sim *new_sweep(int scenario, uint64_t at, uint32_t daemons, enum sim_harm harm)
{
        struct sim *sim = calloc(1, sizeof *sim);
        sim->seed = 1;
        sim->scenario = scenario;
        sim->inject_at = at;
        sim->inject_daemons = daemons;
        sim->inject_what = harm;
        return sim;
}

static bool sweep_one(struct sim *sim, const float *want, struct totals *totals)
{
        uint64_t at = sim->inject_at;
        bool ok = run_sim(sim, NULL, totals),
             same = memcmp(want, sim->job[0].params, SIM_PARAMS * sizeof *want) == 0;
        if (ok && !same)
                snprintf(failure, sizeof failure, "the model is not that of the clean run");
        if (!ok || !same)
                printf("sweep %d: daemons %x %s after event %llu: %s\n", sim->scenario, sim->inject_daemons,
                        harms[sim->inject_what], (unsigned long long)at, failure);
        free(sim);
        return ok && same;
}

static int sweep(int scenario)
{
        struct totals totals = {0};
        uint64_t n_runs = 0, n_failed = 0;
        struct sim *clean = new_sweep(scenario, 0, 0, SIM_KILL);
        if (!run_sim(clean, NULL, &totals)) {
                printf("sweep %d: the clean run failed: %s\n", scenario, failure);
                return 1;
        }
        static const char *const names[] = {"shm", "nccl", "teams", "teams over nodes"};
        uint32_t rounds = clean->job[0].spec.rounds;
        bool fine = scenario == SIM_SWEEP_TEAM   ? totals.teams == 2 * rounds && !totals.teams_broken
                    : scenario == SIM_SWEEP_WIDE ? totals.teams_wide == rounds && !totals.teams_broken
                                                 : totals.counted == 2 * rounds && !totals.ended;
        if (!fine)
                printf("sweep %d: the clean run counted %llu groups and %llu teams\n", scenario,
                        (unsigned long long)totals.counted, (unsigned long long)totals.teams);
        for (uint64_t at = clean->first_round_at; at <= clean->n_events && n_failed < 10; at++)
                for (size_t d = 0; d < MFL_ARRAY_SIZE(victims); d++)
                        for (int harm = 0; harm < SIM_HARMS; harm++, n_runs++)
                                n_failed +=
                                        !sweep_one(new_sweep(scenario, at, victims[d], (enum sim_harm)harm),
                                                clean->job[0].params, &totals);
        printf("sweep by %s: %llu runs from event %llu to %llu, %llu failed; %llu groups, %llu counted, %llu "
               "ended early; %llu teams met, and %llu of their members lost another\n",
                names[scenario - SIM_SWEEP], (unsigned long long)n_runs,
                (unsigned long long)clean->first_round_at, (unsigned long long)clean->n_events,
                (unsigned long long)n_failed, (unsigned long long)totals.groups,
                (unsigned long long)totals.counted, (unsigned long long)totals.ended,
                (unsigned long long)totals.teams, (unsigned long long)totals.teams_broken);
        free(clean);
        return n_failed > 0 || !fine;
}

static bool range(const char *text, uint64_t *ret_from, uint64_t *ret_to)
{
        unsigned long long from, to;
        bool ok = sscanf(text, "%llu..%llu", &from, &to) == 2;
        *ret_from = from;
        *ret_to = to;
        return ok;
}

static int list(void)
{
        for (int i = 1; i <= mfl_sim_n_bugs; i++)
                printf("bug %d: %s\n", i, mfl_sim_bugs[i]);
        for (size_t i = 1; i < MFL_ARRAY_SIZE(golden); i++)
                printf("golden %s\n", golden[i]);
        return 0;
}

int main(int argc, char **argv)
{
        uint64_t from = 1, to = 2;
        int bug = 0, r = 0;
        bool trace = false, all = false;
        current_seed =
                mmap(NULL, sizeof *current_seed, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        signal(SIGABRT, on_abort);
        for (int i = 1; i < argc; i++) {
                bool more = i + 1 < argc;
                if (strcmp(argv[i], "--list") == 0)
                        return list();
                else if (strcmp(argv[i], "--sweep") == 0) {
                        mfl_sim_bug = bug;
                        return sweep(SIM_SWEEP) | sweep(SIM_SWEEP_NCCL) | sweep(SIM_SWEEP_TEAM) |
                               sweep(SIM_SWEEP_WIDE);
                } else if (strcmp(argv[i], "--golden") == 0 && more)
                        return run_golden(argv[i + 1], i + 2 < argc ? argv[i + 2] : NULL);
                else if (strcmp(argv[i], "--trace") == 0)
                        trace = true;
                else if (strcmp(argv[i], "--relays") == 0)
                        with_relays = true;
                else if (strcmp(argv[i], "--bug") == 0 && more)
                        bug = atoi(argv[++i]);
                else if ((strcmp(argv[i], "--seeds") == 0 || strcmp(argv[i], "--bugs") == 0) && more &&
                         range(argv[i + 1], &from, &to))
                        all = strcmp(argv[i++], "--bugs") == 0;
                else if (strcmp(argv[i], "--seed") == 0 && more) {
                        from = strtoull(argv[++i], NULL, 10);
                        to = from + 1;
                } else {
                        fprintf(stderr,
                                "mfl-sim: what is %s? --relays, --seeds A..B, --seed N, --trace, --bug N, "
                                "--bugs A..B, "
                                "--golden NAME [FILE], --sweep, --list\n",
                                argv[i]);
                        return 2;
                }
        }
        if (all) {
                for (int i = 1; i <= mfl_sim_n_bugs; i++)
                        if (with_relays == !strncmp(mfl_sim_bugs[i], "relay:", 6))
                                r |= find_bug(i, from, to);
                return r;
        }
        if (trace) {
                char *lines;
                mfl_sim_bug = bug;
                bool ok = run_seed(from, true, 0, &lines, NULL);
                fputs(lines, stdout);
                free(lines);
                return !ok;
        }
        return bug ? find_bug(bug, from, to) : run_seeds(from, to);
}
