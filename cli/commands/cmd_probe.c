/* SPDX-License-Identifier: Apache-2.0 */
/* mfl probe: asks the server's HTTP port for its health, for probes of containers without curl.
 *
 *   - connect, send one HTTP/1.0 request, read the answer to its end, check the status;
 *   - a port that closes without a word speaks TLS (http_tls): the same over TLS. Health is told to everybody, so no certificate is shown or
 *     checked.
 *
 * Failures: no server listens, no answer within a few seconds, an answer that is not HTTP, any status but
 * 200.
 */
#include <netdb.h>
#include <stdio.h>
#include <sys/time.h>
#include <unistd.h>

#include "cli/commands/commands.h"
#include "cli/base/json.h"
#include "proto/stream.h"
#include "proto/tls/tls_ask.h"

#define DEFAULT_ADDRESS "127.0.0.1:7434"
#define ANSWER_WITHIN_S 4
#define ANSWER_BYTES_MAX (64 * 1024)

struct answer {
        char bytes[ANSWER_BYTES_MAX + 1];
        size_t n;
};

static int connect_one(const struct addrinfo *to)
{
        /* Linux uses the send timeout for the connect, too. */
        const struct timeval limit = {.tv_sec = ANSWER_WITHIN_S};
        int fd = socket(to->ai_family, to->ai_socktype | SOCK_CLOEXEC, to->ai_protocol);
        if (fd < 0)
                return -1;
        if (!setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) &&
                !setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) &&
                !connect(fd, to->ai_addr, to->ai_addrlen))
                return fd;
        int saved = errno;
        close(fd);
        errno = saved;
        return -1;
}

static int open_connection(const char *address, int *ret_fd, struct mfl_error *err)
{
        char host[256], port[32];
        struct addrinfo *info, hints = {.ai_socktype = SOCK_STREAM};
        int r = mfl_address_parse(address, host, sizeof host, port, sizeof port, err);
        if (r)
                return r < 0 ? r : MFL_CLI_USAGE;
        r = getaddrinfo(host[0] ? host : NULL, port, &hints, &info);
        if (r)
                return mfl_fail(err, MFL_CLI_LOST, "%s: %s", address, gai_strerror(r));
        int fd = -1;
        for (const struct addrinfo *to = info; to && fd < 0; to = to->ai_next)
                fd = connect_one(to);
        freeaddrinfo(info);
        if (fd < 0)
                return mfl_fail(err, MFL_CLI_LOST, "%s: %s (was mfl-server started with --http %s?)", address,
                        strerror(errno), address);
        *ret_fd = fd;
        return 0;
}

/* The socket's limit bounds each read, and the number of bytes bounds the whole; the container's own probe
 * has a time limit, too. */
static int ask(
        int fd, const char *request, const char *address, struct answer *ret_answer, struct mfl_error *err)
{
        ssize_t length = (ssize_t)strlen(request);
        if (send(fd, request, (size_t)length, MSG_NOSIGNAL) != length)
                return mfl_fail(err, MFL_CLI_LOST, "%s: %s", address, strerror(errno));
        ssize_t n = 0;
        ret_answer->n = 0;
        do {
                ret_answer->n += (size_t)n;
                n = recv(fd, ret_answer->bytes + ret_answer->n, ANSWER_BYTES_MAX - ret_answer->n, 0);
        } while (n > 0);
        if (n < 0)
                return mfl_fail(err, MFL_CLI_LOST, "%s: no answer within %d s", address, ANSWER_WITHIN_S);
        ret_answer->bytes[ret_answer->n] = '\0';
        return 0;
}

static int ask_twice(const char *path, const char *address, struct answer *answer, struct mfl_error *err)
{
        char request[128];
        int fd = -1, r = open_connection(address, &fd, err);
        snprintf(request, sizeof request, "GET /%s HTTP/1.0\r\n\r\n", path);
        if (!r)
                r = ask(fd, request, address, answer, err);
        if (fd >= 0)
                close(fd);
        if (r || answer->n)
                return r;
        r = open_connection(address, &fd, err);
        if (r)
                return r;
        /* No TLS either: the empty answer is judged. */
        if (!mfl_tls_ask(fd, request, answer->bytes, ANSWER_BYTES_MAX, &answer->n, err))
                answer->bytes[answer->n] = '\0';
        close(fd);
        return 0;
}

/* "HTTP/1.0 200 OK" ... an empty line, then the body. Only the body's first line matters. */
static int judge(
        struct mfl_cli *cli, const char *address, const char *path, char *text, struct mfl_error *err)
{
        int status = 0;
        char *body = strstr(text, "\r\n\r\n");
        if (sscanf(text, "HTTP/%*1[1].%*1[01] %3d", &status) != 1 || !body)
                return mfl_fail(err, MFL_CLI_FAILED, "%s: the answer is not from the HTTP port of mfl-server",
                        address);
        body += 4;
        body[strcspn(body, "\r\n")] = '\0';
        for (char *c = body; *c; c++)
                if ((unsigned char)*c < ' ' || (unsigned char)*c > '~')
                        *c = '?';
        if (status != 200)
                return mfl_fail(err, MFL_CLI_FAILED, "%s: %d: %.300s", path, status, body);
        if (cli->json)
                return mfl_json_print(stdout, json_pack("{si ss}", "status", status, "text", body), err);
        printf("%s\n", body);
        return mfl_cli_flush(err);
}

int mfl_cmd_probe(struct mfl_cli *cli)
{
        const char *path = cli->argument[0];
        const char *address = cli->argument[1] ? cli->argument[1] : DEFAULT_ADDRESS;
        struct mfl_error err;
        int r = 0;
        if (strcmp(path, "healthz") && strcmp(path, "readyz"))
                return mfl_cli_report_text(
                        cli, MFL_CLI_USAGE, "probe %.60s: expected healthz or readyz", path);
        struct answer *answer = mfl_malloc(sizeof *answer);
        if (!answer)
                return mfl_cli_report(cli, mfl_fail_memory(&err, sizeof *answer, "an answer"), &err);
        r = ask_twice(path, address, answer, &err);
        if (!r)
                r = judge(cli, address, path, answer->bytes, &err);
        free(answer);
        return mfl_cli_report(cli, r, &err);
}
