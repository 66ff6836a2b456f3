/* SPDX-License-Identifier: Apache-2.0 */
/* mfl-server: reads its configuration, opens the state directory, listens, and runs the loop until it is told
 * to stop.
 *
 *   - a wrong key, or a second server on the same state directory, ends it at the start, with 78 or 1;
 *   - unfinished jobs are added to the core before the first connection is accepted;
 *   - when it listens, the address goes to --ready-fd, and the service manager is told (service.c);
 *   - --backup, --check-state and --repair do their work and exit (store_backup.h);
 *   - SIGTERM, SIGINT or (with --exit-with-stdin) the end of stdin stop it: peers get Bye, the workers finish
 *     the work at hand, and nothing committed is lost.
 */
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/base/budget.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/base/signals.h"
#include "server/shell/server.h"
#include "server/shell/service.h"
#include "server/shell/standby.h"
#include "server/store/store_backup.h"

#define EXIT_USAGE 2
#define EXIT_DAMAGE 3
#define EXIT_CONFIG 78

/* A connection is a descriptor: raises the limit as far as the system allows. */
static void raise_descriptor_limit(uint32_t wanted)
{
        struct rlimit limit;
        if (getrlimit(RLIMIT_NOFILE, &limit))
                return;
        rlim_t want = (rlim_t)wanted + 256;
        if (limit.rlim_cur >= want)
                return;
        struct rlimit raised = {.rlim_cur = want, .rlim_max = MFL_MAX(limit.rlim_max, want)};
        if (!setrlimit(RLIMIT_NOFILE, &raised))
                return;
        raised = (struct rlimit){.rlim_cur = limit.rlim_max, .rlim_max = limit.rlim_max};
        setrlimit(RLIMIT_NOFILE, &raised);
        if (limit.rlim_max < want)
                mfl_log(MFL_LOG_WARN,
                        "the system allows %llu open files, which is not enough for connections_max %u",
                        (unsigned long long)limit.rlim_max, wanted);
}

/* Once. */
static int report_ready(struct mfl_server_config *config, const char *address, struct mfl_error *err)
{
        char line[300];
        int n = snprintf(line, sizeof line, "%s\n", address);
        if (config->ready_fd < 0)
                return 0;
        if (write(config->ready_fd, line, (size_t)n) != n)
                return mfl_fail_errno(
                        err, "write the address to descriptor %d (--ready-fd)", config->ready_fd);
        close(config->ready_fd);
        config->ready_fd = -1;
        return 0;
}

/* Opens and runs the server in one role after the other. */
static int serve(struct mfl_server_config *config, struct mfl_cluster *cluster, struct mfl_error *err)
{
        struct mfl_server *server;
        bool turned = true;
        int r = 0;
        while (turned && !r) {
                r = mfl_server_open(config, cluster, &server, err);
                if (r)
                        return r;
                r = report_ready(config, mfl_server_address(server), err);
                mfl_service_ready(server);
                if (!r)
                        r = mfl_server_run(server, err);
                turned = server->turned;
                const bool led = cluster && !server->standby;
                mfl_strcpy(config->listen, sizeof config->listen,
                        mfl_server_address(server)); /* the port, if it was 0 */
                if (turned)
                        mfl_service_turning();
                mfl_server_close(server);
                if (led)
                        mfl_cluster_closed(cluster);
        }
        return r;
}

static int run(struct mfl_server_config *config, struct mfl_error *err)
{
        struct mfl_cluster *cluster = NULL;
        const struct mfl_cluster_options options = mfl_standby_options(config);
        int r = config->cluster.on ? mfl_cluster_open(&options, &cluster, err) : 0;
        if (r)
                return r;
        r = serve(config, cluster, err);
        mfl_cluster_close(cluster);
        return r;
}

/* --join-cluster and --leave: returns the exit status. */
static int change_cluster(const struct mfl_server_config *config)
{
        const struct mfl_cluster_options options = mfl_standby_options(config);
        struct mfl_error err = {{0}};
        int r = config->leave ? mfl_cluster_leave(&options, &err) : mfl_cluster_join(&options, &err);
        if (r)
                fprintf(stderr, "mfl-server: %s\n", err.text);
        return r ? 1 : 0;
}

static void on_finding(void *user, const char *text)
{
        printf("%s\n", text);
}

static int end_in_failure(int r, const struct mfl_error *err)
{
        fprintf(stderr, "mfl-server: %s\n", err->text);
        return r == MFL_STORE_NEWER || r == MFL_INVALID ? EXIT_CONFIG
               : r == MFL_STORE_DAMAGED                 ? EXIT_DAMAGE
                                                        : 1;
}

static int repair(const struct mfl_server_config *config)
{
        struct mfl_error err = {{0}};
        int r = mfl_store_repair(config->state_dir, on_finding, NULL, &err);
        if (r)
                return end_in_failure(r, &err);
        printf("%s: a server can start on it\n", config->state_dir);
        return 0;
}

/* --backup and --check-state: returns the exit status. */
static int look_after_state(const struct mfl_server_config *config)
{
        struct mfl_store_summary summary = {0};
        struct mfl_error err = {{0}};
        const bool saves = *config->backup;
        char size[16];
        int r = saves ? mfl_store_backup(config->state_dir, config->backup, on_finding, NULL, &summary, &err)
                      : mfl_store_check(config->state_dir, on_finding, NULL, &summary, &err);
        if (r)
                return end_in_failure(r, &err);
        if (summary.orphans)
                printf("%s/orphans holds %u folder%s of checkpoints that the database does not know\n",
                        config->state_dir, summary.orphans, summary.orphans == 1 ? "" : "s");
        printf("%s: schema %u by %s; %llu job%s, %llu of them unfinished; %llu round%s; %llu file%s of "
               "%s%s%s\n",
                config->state_dir, summary.schema, summary.software, (unsigned long long)summary.jobs,
                summary.jobs == 1 ? "" : "s", (unsigned long long)summary.jobs_unfinished,
                (unsigned long long)summary.rounds, summary.rounds == 1 ? "" : "s",
                (unsigned long long)summary.files, summary.files == 1 ? "" : "s",
                mfl_format_bytes(summary.bytes, size), saves ? ", saved to " : "", config->backup);
        if (summary.findings)
                printf("%u finding%s\n", summary.findings, summary.findings == 1 ? "" : "s");
        else
                printf("%s\n", saves ? "every file has its checksum and is on the disk" : "sound");
        if (fflush(stdout)) {
                perror("mfl-server: write to standard output");
                return 1;
        }
        return summary.findings ? EXIT_DAMAGE : 0;
}

int main(int argc, char **argv)
{
        struct mfl_server_config config;
        struct mfl_error err = {{0}};
        bool usage;
        if (!mfl_fs_open_standard())
                return 1;
        int r = mfl_server_config_load(argc, argv, &config, &usage, &err);
        if (r == MFL_NOT_FOUND)
                return 0;
        if (r) {
                fprintf(stderr, "mfl-server: %s\n", err.text);
                return usage ? EXIT_USAGE : EXIT_CONFIG;
        }
        if (*config.backup || config.check_state)
                return look_after_state(&config);
        if (config.repair)
                return repair(&config);
        if (config.join_cluster || config.leave)
                return change_cluster(&config);
        mfl_signals_init();
        mfl_log_init("mfl-server", (enum mfl_log_level)config.log_level);
        raise_descriptor_limit(config.connections_max);

        r = run(&config, &err);
        if (r)
                mfl_log(MFL_LOG_ERROR, "%s", err.text);
        /* A restart helps against none of these. */
        const bool is_final = r == MFL_INVALID || r == MFL_STORE_NEWER || r == MFL_STORE_DAMAGED ||
                              r == MFL_STORE_ORPHANS_FULL || r == MFL_EXISTS;
        return is_final ? EXIT_CONFIG : r ? 1 : 0;
}
