/* SPDX-License-Identifier: Apache-2.0 */
/* A training program in C (proto/program.proto, docs/programs.md): each client pulls all params to its own number. It shows what a program
 * in any language does: read frames, take the descriptors, map the memory, answer.
 *
 *   cc program.c program.pb-c.c -lprotobuf-c -o program
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/program.pb-c.h"

#define MESSAGE_MAX (64u << 20)

static int fds[3], n_fds; /* of the last Describe */
static float *params, *result;
static uint64_t n;
static double rate = 0.1;

static void fail(const char *what)
{
        perror(what); /* the daemon shows our last lines */
        exit(1);
}

/* Descriptors come beside the bytes. False at the end of the connection. */
static bool read_all(int s, void *to, size_t bytes)
{
        for (char *at = to; bytes;) {
                union {
                        char room[CMSG_SPACE(sizeof fds)];
                        struct cmsghdr align;
                } control;
                struct iovec v = {at, bytes};
                struct msghdr m = {.msg_iov = &v,
                        .msg_iovlen = 1,
                        .msg_control = control.room,
                        .msg_controllen = sizeof control.room};
                ssize_t got = recvmsg(s, &m, MSG_CMSG_CLOEXEC);
                if (got < 0)
                        fail("recvmsg");
                if (!got)
                        return false;
                struct cmsghdr *c = CMSG_FIRSTHDR(&m);
                if (c && c->cmsg_type == SCM_RIGHTS) {
                        n_fds = (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
                        memcpy(fds, CMSG_DATA(c), (size_t)n_fds * sizeof(int));
                }
                at += got;
                bytes -= (size_t)got;
        }
        return true;
}

static Mfl__Program__ToProgram *receive(int s)
{
        uint8_t head[4];
        if (!read_all(s, head, sizeof head))
                return NULL;
        size_t bytes = head[0] | (size_t)head[1] << 8 | (size_t)head[2] << 16 | (size_t)head[3] << 24;
        uint8_t *body = bytes <= MESSAGE_MAX ? malloc(bytes + 1) : NULL;
        if (!body || !read_all(s, body, bytes))
                return NULL;
        Mfl__Program__ToProgram *message = mfl__program__to_program__unpack(NULL, bytes, body);
        free(body);
        return message;
}

static void answer(int s, const Mfl__Program__FromProgram *message)
{
        size_t bytes = mfl__program__from_program__get_packed_size(message);
        uint8_t *frame = malloc(4 + bytes);
        if (!frame)
                fail("malloc");
        for (int i = 0; i < 4; i++)
                frame[i] = (uint8_t)(bytes >> 8 * i);
        mfl__program__from_program__pack(message, frame + 4);
        for (size_t at = 0; at < 4 + bytes;) {
                ssize_t done = send(s, frame + at, 4 + bytes - at, MSG_NOSIGNAL);
                if (done <= 0)
                        fail("send");
                at += (size_t)done;
        }
        free(frame);
}

static void describe(int s, const Mfl__Program__Describe *d)
{
        Mfl__Program__FromProgram message = MFL__PROGRAM__FROM_PROGRAM__INIT;
        Mfl__Program__Described described = MFL__PROGRAM__DESCRIBED__INIT;
        const char *at = strstr(d->config, "\"rate\":"); /* a real program has a JSON library */
        if (n_fds < 2)
                exit(2);
        rate = at ? strtod(at + 7, NULL) : rate;
        n = d->n;
        params = mmap(NULL, n * sizeof *params, PROT_READ, MAP_SHARED, fds[0], 0);
        result = mmap(NULL, n * sizeof *result, PROT_READ | PROT_WRITE, MAP_SHARED, fds[1], 0);
        if (params == MAP_FAILED || result == MAP_FAILED)
                fail("mmap");
        described.program = (char *)(uintptr_t) "example in C, 1.0";
        described.evaluates = 1;
        message.body_case = MFL__PROGRAM__FROM_PROGRAM__BODY_DESCRIBED;
        message.described = &described;
        answer(s, &message);
}

/* Half of the mean squared distance to a number. */
static double distance(double goal)
{
        double sum = 0;
        for (uint64_t i = 0; i < n; i++)
                sum += (params[i] - goal) * (params[i] - goal) / 2;
        return sum / (double)n;
}

static void train(int s, const Mfl__Program__Train *t)
{
        Mfl__Program__FromProgram message = MFL__PROGRAM__FROM_PROGRAM__INIT;
        Mfl__Program__Trained trained = MFL__PROGRAM__TRAINED__INIT;
        double goal = (double)(t->client % 3);
        for (uint64_t i = 0; i < n; i++)
                result[i] = (float)(rate * (goal - params[i])); /* the change */
        trained.delta = 1;
        trained.samples = 10 + t->client % 3;
        trained.loss = distance(goal);
        message.body_case = MFL__PROGRAM__FROM_PROGRAM__BODY_TRAINED;
        message.trained = &trained;
        answer(s, &message);
}

static void evaluate(int s)
{
        Mfl__Program__FromProgram message = MFL__PROGRAM__FROM_PROGRAM__INIT;
        Mfl__Program__Evaluated evaluated = MFL__PROGRAM__EVALUATED__INIT;
        evaluated.samples = 1;
        evaluated.loss = distance(1);
        message.body_case = MFL__PROGRAM__FROM_PROGRAM__BODY_EVALUATED;
        message.evaluated = &evaluated;
        answer(s, &message);
}

int main(void)
{
        const char *fd = getenv("MFL_PROGRAM_FD");
        if (!fd) {
                fputs("mfl-client starts this program\n", stderr);
                return 2;
        }
        int s = atoi(fd);
        for (Mfl__Program__ToProgram *message; (message = receive(s));) {
                if (message->body_case == MFL__PROGRAM__TO_PROGRAM__BODY_DESCRIBE)
                        describe(s, message->describe);
                else if (message->body_case == MFL__PROGRAM__TO_PROGRAM__BODY_TRAIN)
                        train(s, message->train);
                else if (message->body_case == MFL__PROGRAM__TO_PROGRAM__BODY_EVALUATE)
                        evaluate(s);
                mfl__program__to_program__free_unpacked(message, NULL);
        }
        return 0;
}
