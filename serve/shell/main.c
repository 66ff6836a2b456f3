/* SPDX-License-Identifier: Apache-2.0 */
/* mfl-serve: reads its configuration, listens, loads its models, and answers until it is told to stop.
 *
 *   - a wrong key, a wrong name, or an address that needs TLS and keys ends it at the start, with 78;
 *   - it listens before the models are loaded: until then requests are answered with 503, and /v2/health/ready says so;
 *   - a model that can't be loaded does not end it: the cache's version, or 503, until its file is there;
 *   - SIGTERM, SIGINT or (with --exit-with-stdin) the end of stdin stop it after the answers that it owes.
 */
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/base/fs.h"
#include "common/base/log.h"
#include "common/base/signals.h"
#include "serve/shell/serve.h"

#define EXIT_USAGE 2
#define EXIT_CONFIG 78

/* A connection is a descriptor: raises the limit as far as the system allows. */
static void raise_descriptor_limit(uint32_t wanted)
{
        struct rlimit limit;
        const rlim_t want = (rlim_t)wanted + 64;
        if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur >= want)
                return;
        limit.rlim_cur = MFL_MIN(want, limit.rlim_max);
        if (setrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur < want)
                mfl_log(MFL_LOG_WARN,
                        "the system allows %llu open files, which is not enough for connections_max %u",
                        (unsigned long long)limit.rlim_max, wanted);
}

static int report_ready(const struct mfl_serve *serve, struct mfl_error *err)
{
        char line[310];
        const int fd = serve->config->ready_fd;
        const int n = snprintf(line, sizeof line, "%s\n", serve->address);
        if (fd < 0)
                return 0;
        if (write(fd, line, (size_t)n) != n)
                return mfl_fail_errno(err, "write the address to descriptor %d (--ready-fd)", fd);
        close(fd);
        return 0;
}

int main(int argc, char **argv)
{
        static struct mfl_serve_config config;
        static struct mfl_serve serve;
        struct mfl_error err = {{0}};
        bool usage;
        if (!mfl_fs_open_standard())
                return 1;
        int r = mfl_serve_config_load(argc, argv, &config, &usage, &err);
        if (r == MFL_NOT_FOUND)
                return 0;
        if (r) {
                fprintf(stderr, "mfl-serve: %s\n", err.text);
                return usage ? EXIT_USAGE : EXIT_CONFIG;
        }
        mfl_signals_init();
        mfl_log_init("mfl-serve", (enum mfl_log_level)config.log_level);
        raise_descriptor_limit(config.connections_max);
        r = mfl_serve_open(&serve, &config, &err);
        if (!r)
                r = report_ready(&serve, &err);
        if (!r) {
                mfl_log(MFL_LOG_INFO, "listening on %s", serve.address);
                r = mfl_serve_run(&serve, &err);
        }
        if (r)
                mfl_log(MFL_LOG_ERROR, "%s", err.text);
        mfl_serve_close(&serve);
        return r == MFL_INVALID ? EXIT_CONFIG : r ? 1 : 0;
}
