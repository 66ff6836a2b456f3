/* SPDX-License-Identifier: Apache-2.0 */
/* mfl-server: reads its configuration, opens the state directory, listens, and runs the loop until told to
 * stop.
 *
 *   - configuration and state directory: a wrong key or a second server on the same state ends it here, with
 * 78 or 1;
 *   - unfinished jobs are added to the core before the first connection is taken;
 *   - once listening, the address goes to --ready-fd, and the service manager is told (service.c);
 *   - SIGTERM, SIGINT or (with --exit-with-stdin) the end of stdin stop it: connections are told Bye, the
 * workers finish what they run, nothing committed is lost.
 */
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/log.h"
#include "server/config.h"
#include "server/server.h"

#define EXIT_USAGE 2
#define EXIT_CONFIG 78

/* A connection is a descriptor: take as many as the system gives. */
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
                mfl_log(MFL_LOG_WARN, "at most %llu open files: not enough for connections_max %u",
                        (unsigned long long)limit.rlim_max, wanted);
}

static int report_ready(const struct mfl_server_config *config, const char *address, struct mfl_error *err)
{
        char line[300];
        int n = snprintf(line, sizeof line, "%s\n", address);
        if (config->ready_fd < 0)
                return 0;
        if (write(config->ready_fd, line, (size_t)n) != n)
                return mfl_fail_errno(
                        err, "write the address to descriptor %d (--ready-fd)", config->ready_fd);
        close(config->ready_fd);
        return 0;
}

int main(int argc, char **argv)
{
        struct mfl_server_config config;
        struct mfl_error err = {{0}};
        bool usage;
        int r = mfl_server_config_load(argc, argv, &config, &usage, &err);
        if (r == MFL_NOT_FOUND)
                return 0;
        if (r) {
                fprintf(stderr, "mfl-server: %s\n", err.text);
                return usage ? EXIT_USAGE : EXIT_CONFIG;
        }
        mfl_log_init("mfl-server", (enum mfl_log_level)config.log_level);
        signal(SIGPIPE, SIG_IGN);
        raise_descriptor_limit(config.connections_max);

        struct mfl_server *server;
        r = mfl_server_open(&config, &server, &err);
        if (r) {
                mfl_log(MFL_LOG_ERROR, "%s", err.text);
                return r == MFL_INVALID ? EXIT_CONFIG : 1;
        }
        r = report_ready(&config, mfl_server_address(server), &err);
        mfl_service_ready(server);
        if (!r)
                r = mfl_server_run(server, &err);
        if (r)
                mfl_log(MFL_LOG_ERROR, "%s", err.text);
        mfl_server_close(server);
        return r ? 1 : 0;
}
