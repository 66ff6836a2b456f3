/* SPDX-License-Identifier: Apache-2.0 */
/* `mfl-client approve JOB`: the administrator's side of the control socket. */
#include <dirent.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "client/policy/control.h"

#define ANSWER_BYTES (64 * 1024)

static int open_socket(const char *path)
{
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        const struct timeval limit = {.tv_sec = 10};
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0)
                return -1;
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
        if (!mfl_strcpy(address.sun_path, sizeof(address.sun_path), path)) {
                close(fd);
                errno = ENAMETOOLONG;
                return -1;
        }
        if (connect(fd, (const struct sockaddr *)&address, sizeof(address))) {
                int saved = errno;
                close(fd);
                errno = saved;
                return -1;
        }
        return fd;
}

/* True if that daemon did what was asked. */
static bool tell_one(const char *path, const char *line)
{
        static char answer[ANSWER_BYTES];
        size_t n = 0;
        int fd = open_socket(path);
        if (fd < 0) {
                fprintf(stderr, "mfl-client: %s: %s\n", path, strerror(errno));
                return false;
        }
        bool sent = dprintf(fd, "%s\n", line) > 0;
        for (ssize_t got; sent && n < sizeof(answer) - 1; n += (size_t)got) {
                got = read(fd, answer + n, sizeof(answer) - 1 - n);
                if (got <= 0) {
                        sent = got == 0;
                        break;
                }
        }
        close(fd);
        answer[n] = '\0';
        bool failed = !sent || !strncmp(answer, "error: ", 7);
        if (!sent)
                fprintf(stderr, "mfl-client: %s does not answer\n", path);
        else
                fputs(answer, failed ? stderr : stdout);
        return !failed;
}

int mfl_control_tell(const char *dir, const char *line)
{
        int n = 0, done = 0;
        DIR *folder = opendir(dir);
        if (!folder) {
                fprintf(stderr, "mfl-client: %s: %s\n", dir, strerror(errno));
                return 1;
        }
        for (const struct dirent *entry; (entry = readdir(folder));) {
                size_t length = strlen(entry->d_name);
                if (length < 6 || strcmp(entry->d_name + length - 5, ".sock"))
                        continue;
                char path[1400];
                snprintf(path, sizeof(path), "%s/%s", dir, entry->d_name);
                n++;
                done += tell_one(path, line);
        }
        closedir(folder);
        if (!n)
                fprintf(stderr, "mfl-client: no daemon listens in %s\n", dir);
        return done ? 0 : 1;
}
