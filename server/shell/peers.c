/* SPDX-License-Identifier: Apache-2.0 */
/* Files for other servers of the cluster, and from them. See peers.h.
 *   - PutFile: how much is there; a piece at the end of it; the last one: checked, on the disk, and under its name;
 *   - GetFile: a piece of a file.
 * A file that does not fit is refused before its first byte; one that proves wrong goes, and its server is shunned for a while, each time
 * longer, until a file of it proves right.
 * Fails when the disk is full or broken: the asker is told, and the log says so; it is not blamed. Fault points: "before-peer-write", "before-peer-check". */
#include "server/shell/peers.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/budget.h"
#include "common/base/fs.h"
#include "common/base/log.h"
#include "proto/version.h"
#include "server/cluster/blobs.h"
#include "server/cluster/copy_core.h"

#define PATH_BYTES MFL_BLOBS_PATH_BYTES
#define SHUN_FIRST_MS ((uint64_t)5000)
#define SHUN_MAX_MS ((uint64_t)600000)

/* What a session has. */
struct peer {
        char name[64];
};

struct op {
        struct mfl_work work;
        struct mfl_server *server;
        uint32_t conn;
        uint64_t request;
        bool puts;
        char from[64];
        uint8_t sha256[32];
        uint64_t bytes, offset; /* result, too */
        bool durable;
        bool lied, proved; /* the file's content is not, is, what its SHA-256 says */
        size_t n;
        uint8_t *data;
        int status;
        struct mfl_error err;
};

/* ---- on the disk worker ---- */

static void paths(
        const struct op *op, struct mfl_blobs *ret_blobs, char path[PATH_BYTES], char part[PATH_BYTES + 80])
{
        *ret_blobs = (struct mfl_blobs){.links = true};
        mfl_strcpy(ret_blobs->dir, sizeof ret_blobs->dir, op->server->config.cluster.blobs);
        mfl_blobs_path(ret_blobs, op->sha256, path);
        snprintf(part, PATH_BYTES + 80, "%s.%s.part", path, op->from);
}

struct taking {
        struct op *op;
        struct mfl_copy_take core;
        struct mfl_blobs blobs;
        int fd;
        char path[PATH_BYTES], part[PATH_BYTES + 80];
};

static int write_piece(const struct taking *t, struct mfl_error *err)
{
        int fault = mfl_fs_fault("before-peer-write", t->part);
        if (fault) {
                errno = -fault;
                return mfl_fail_errno(err, "write %s", t->part);
        }
        for (size_t at = 0; at < t->op->n;) {
                ssize_t k = pwrite(t->fd, t->op->data + at, t->op->n - at, (off_t)(t->op->offset + at));
                if (k < 0 && errno != EINTR)
                        return mfl_fail_errno(err, "write %s", t->part);
                at += k > 0 ? (size_t)k : 0;
        }
        return 0;
}

/* What can't be read again does not tell what came: it goes, and comes again to another place on the disk. */
static int check(struct taking *t, bool *ret_same)
{
        struct op *op = t->op;
        const int fault = mfl_fs_fault("before-peer-check", t->part);
        errno = -fault;
        int r = fault ? mfl_fail_errno(&op->err, "read %s", t->part)
                      : mfl_blobs_check(&t->blobs, t->part, op->sha256, op->bytes, &op->err);
        *ret_same = !r;
        if (r >= 0)
                return 0;
        unlink(t->part);
        return r;
}

static int drop(const struct taking *t)
{
        unlink(t->part);
        t->op->lied = true;
        return mfl_fail(&t->op->err, MFL_INVALID, "what has come of %s is not that SHA-256", t->path);
}

/* Carries out an action. */
static int take_step(struct taking *t, enum mfl_copy_take_action action, struct mfl_copy_take_event *event)
{
        struct mfl_error *err = &t->op->err;
        event->kind = MFL_COPY_TAKE_EV_DONE;
        switch (action) {
        case MFL_COPY_TAKE_CUT:
                return ftruncate(t->fd, 0) ? mfl_fail_errno(err, "truncate %s", t->part) : 0;
        case MFL_COPY_TAKE_WRITE:
                return write_piece(t, err);
        case MFL_COPY_TAKE_SYNC:
                return fsync(t->fd) ? mfl_fail_errno(err, "fsync %s", t->part) : 0;
        case MFL_COPY_TAKE_CHECK:
                event->kind = MFL_COPY_TAKE_EV_CHECKED;
                return check(t, &event->ok);
        case MFL_COPY_TAKE_NAME:
                if (rename(t->part, t->path))
                        return mfl_fail_errno(err, "rename %s to %s", t->part, t->path);
                t->op->proved = true;
                return 0;
        case MFL_COPY_TAKE_SYNC_NAME:
                return mfl_fs_sync_dir(t->blobs.dir, err);
        case MFL_COPY_TAKE_DROP:
                return drop(t);
        case MFL_COPY_TAKE_ANSWER:
                break;
        }
        return 0;
}

static bool is_older(const struct stat *one, const struct stat *other)
{
        return one->st_mtim.tv_sec != other->st_mtim.tv_sec ? one->st_mtim.tv_sec < other->st_mtim.tv_sec
                                                            : one->st_mtim.tv_nsec < other->st_mtim.tv_nsec;
}

/* A server sends one file at a time, which an urgent one may interrupt: of others, only the last one is left. What is left of more of them
 * will not be finished. */
static void drop_others(const struct op *op, const struct mfl_blobs *blobs, const char *part)
{
        char end[80], kept[NAME_MAX + 1] = "";
        const char *own = strrchr(part, '/') + 1;
        const size_t n = (size_t)snprintf(end, sizeof end, ".%s.part", op->from);
        struct stat st, newest = {.st_size = 0};
        DIR *dir = opendir(blobs->dir);
        struct dirent *entry;
        while (dir && (entry = readdir(dir))) {
                if (strlen(entry->d_name) != 64 + n || strcmp(entry->d_name + 64, end) != 0 ||
                        !strcmp(entry->d_name, own) ||
                        fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW))
                        continue;
                const bool older = *kept && is_older(&st, &newest);
                if (older || *kept)
                        unlinkat(dirfd(dir), older ? entry->d_name : kept, 0);
                if (older)
                        continue;
                mfl_strcpy(kept, sizeof kept, entry->d_name);
                newest = st;
        }
        if (dir)
                closedir(dir);
}

/* Before the first byte: what it is said to have must fit. */
static int check_room(struct op *op, const struct mfl_blobs *blobs, const char *part)
{
        struct stat st;
        uint64_t room, have = 0;
        char wants[16], has[16];
        int r = mfl_fs_room(blobs->dir, &room, &op->err);
        if (r)
                return r;
        if (!stat(part, &st))
                have = (uint64_t)st.st_size;
        return have > op->bytes || op->bytes - have <= room
                       ? 0
                       : mfl_fail(&op->err, -ENOSPC, "a file of %s, and %s are free: No space left on device",
                                 mfl_format_bytes(op->bytes, wants), mfl_format_bytes(room, has));
}

/* The part is open when this returns 0. */
static int open_part(struct taking *t, struct mfl_copy_take_event *event)
{
        struct stat st;
        drop_others(t->op, &t->blobs, t->part);
        int r = check_room(t->op, &t->blobs, t->part);
        if (r)
                return r;
        t->fd = open(t->part, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (t->fd < 0)
                return mfl_fail_errno(&t->op->err, "open %s", t->part);
        if (fstat(t->fd, &st))
                return mfl_fail_errno(&t->op->err, "stat %s", t->part);
        event->part = (uint64_t)st.st_size;
        return 0;
}

static int put(struct op *op)
{
        struct taking t = {
                .op = op, .core = {.bytes = op->bytes, .offset = op->offset, .n = op->n}, .fd = -1};
        struct mfl_copy_take_event event = {.kind = MFL_COPY_TAKE_EV_BEGIN};
        enum mfl_copy_take_action action = MFL_COPY_TAKE_CUT;
        struct stat st;
        paths(op, &t.blobs, t.path, t.part);
        event.whole = !stat(t.path, &st) && (uint64_t)st.st_size == op->bytes &&
                      !utimensat(AT_FDCWD, t.path, NULL, 0);
        int r = event.whole ? 0 : open_part(&t, &event);
        while (!r && (action = mfl_copy_take_step(&t.core, &event)) != MFL_COPY_TAKE_ANSWER)
                r = take_step(&t, action, &event);
        op->offset = t.core.have;
        op->durable = t.core.durable;
        if (t.fd >= 0)
                close(t.fd);
        return r;
}

static int get(struct op *op)
{
        struct mfl_blobs blobs;
        struct stat st;
        char path[PATH_BYTES], part[PATH_BYTES + 80];
        paths(op, &blobs, path, part);
        op->data = mfl_malloc(MFL_MOVE_DATA_MAX);
        if (!op->data)
                return mfl_fail_memory(&op->err, MFL_MOVE_DATA_MAX, "a piece of a file");
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0 || fstat(fd, &st)) {
                int r = errno == ENOENT ? mfl_fail(&op->err, MFL_NOT_FOUND, "this server has no %s", path)
                                        : mfl_fail_errno(&op->err, "open %s", path);
                if (fd >= 0)
                        close(fd);
                return r;
        }
        ssize_t n = pread(fd, op->data, MFL_MOVE_DATA_MAX, (off_t)op->offset);
        int r = n < 0 ? mfl_fail_errno(&op->err, "read %s", path) : 0;
        op->n = n > 0 ? (size_t)n : 0;
        op->bytes = (uint64_t)st.st_size;
        close(fd);
        return r;
}

static void run_op(struct mfl_work *work)
{
        struct op *op = MFL_CONTAINER_OF(work, struct op, work);
        op->status = op->puts ? put(op) : get(op);
}

/* ---- on the loop ---- */

static void answer(struct op *op, struct mfl_session *session)
{
        Mfl__FilePiece body = MFL__FILE_PIECE__INIT;
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        if (op->status) {
                if (op->puts)
                        mfl_log(MFL_LOG_WARN, "cluster: a file of server %s was not taken: %s", op->from,
                                op->err.text);
                mfl_session_fail(session, op->request,
                        op->status == MFL_NOT_FOUND ? MFL__FAILURE_CODE__FAILURE_NOT_FOUND
                                                    : MFL__FAILURE_CODE__FAILURE_LIMIT,
                        "%s", op->err.text);
                return;
        }
        body.bytes = op->bytes;
        body.offset = op->offset;
        body.durable = op->durable;
        if (!op->puts)
                body.data = (ProtobufCBinaryData){.len = op->n, .data = op->data};
        envelope.request = op->request;
        envelope.body_case = MFL__ENVELOPE__BODY_FILE_PIECE;
        envelope.file_piece = &body;
        mfl_session_send(session, &envelope);
}

static void free_op(struct op *op)
{
        free(op->data);
        free(op);
}

/* The place of that server in the list; the oldest one that lied least, if it has none. */
static struct mfl_server_shunned *find_shunned(struct mfl_server *server, const char *name)
{
        struct mfl_server_shunned *least = server->shunned;
        for (size_t i = 0; i < MFL_ARRAY_SIZE(server->shunned); i++) {
                if (!strcmp(server->shunned[i].name, name))
                        return &server->shunned[i];
                if (server->shunned[i].times < least->times)
                        least = &server->shunned[i];
        }
        return least;
}

/* A later lie is a first one again: what a disk or a line did is forgotten when it is mended. Not while it is shunned: then the file was
 * begun before the lie was found, and says nothing about what comes after it. */
static void forgive(struct op *op)
{
        struct mfl_server_shunned *one = find_shunned(op->server, op->from);
        if (!strcmp(one->name, op->from) && mfl_now_ms() >= one->until_ms)
                *one = (struct mfl_server_shunned){.times = 0};
}

static void shun(struct op *op)
{
        struct mfl_server_shunned *one = find_shunned(op->server, op->from);
        if (strcmp(one->name, op->from) != 0)
                *one = (struct mfl_server_shunned){.times = 0};
        mfl_strcpy(one->name, sizeof one->name, op->from);
        const uint64_t ms = MFL_MIN(SHUN_FIRST_MS << MFL_MIN(one->times, 16u), SHUN_MAX_MS);
        one->times++;
        one->until_ms = mfl_now_ms() + ms;
        mfl_log(MFL_LOG_WARN, "cluster: no file of server %s is taken for %llu s", op->from,
                (unsigned long long)(ms / 1000));
}

static bool is_shunned(struct mfl_session *session, uint64_t request)
{
        struct mfl_server *server = MFL_CONTAINER_OF(session->all, struct mfl_server, sessions);
        const char *name = ((struct peer *)session->peer)->name;
        const struct mfl_server_shunned *one = find_shunned(server, name);
        const uint64_t now = mfl_now_ms();
        if (strcmp(one->name, name) != 0 || now >= one->until_ms)
                return false;
        mfl_session_fail(session, request, MFL__FAILURE_CODE__FAILURE_LIMIT,
                "what came before was not what its SHA-256 says: nothing is taken for another %llu s",
                (unsigned long long)((one->until_ms - now + 999) / 1000));
        return true;
}

static void done_op(struct mfl_work *work)
{
        struct op *op = MFL_CONTAINER_OF(work, struct op, work);
        if (op->lied && !work->cancelled)
                shun(op);
        if (op->proved)
                forgive(op);
        struct mfl_session *session = mfl_session_find(&op->server->sessions, op->conn);
        mfl_session_worked(&op->server->sessions, op->conn);
        if (session && !work->cancelled)
                answer(op, session);
        free_op(op);
}

static struct mfl_server *server_of(const struct mfl_session *session)
{
        return MFL_CONTAINER_OF(session->all, struct mfl_server, sessions);
}

static int start_op(struct mfl_session *session, const Mfl__Envelope *e, struct mfl_error *err)
{
        if (e->body_case == MFL__ENVELOPE__BODY_PUT_FILE && is_shunned(session, e->request))
                return 0;
        struct op *op = mfl_calloc(1, sizeof *op);
        if (!op)
                return mfl_fail_memory(err, sizeof *op, "a piece of a file");
        op->work.run = run_op;
        op->work.done = done_op;
        op->server = server_of(session);
        op->conn = session->conn;
        op->request = e->request;
        op->puts = e->body_case == MFL__ENVELOPE__BODY_PUT_FILE;
        mfl_strcpy(op->from, sizeof op->from, ((struct peer *)session->peer)->name);
        if (op->puts) {
                op->bytes = e->put_file->bytes;
                op->offset = e->put_file->offset;
                op->n = e->put_file->data.len;
                memcpy(op->sha256, e->put_file->sha256.data, sizeof op->sha256);
                op->data = op->n ? mfl_malloc(op->n) : NULL;
                if (op->n && !op->data) {
                        free_op(op);
                        return mfl_fail_memory(err, e->put_file->data.len, "a piece of a file");
                }
                if (op->n)
                        memcpy(op->data, e->put_file->data.data, op->n);
        } else {
                op->offset = e->get_file->offset;
                memcpy(op->sha256, e->get_file->sha256.data, sizeof op->sha256);
        }
        if (mfl_session_submit(session, &op->work))
                return 0;
        free_op(op);
        mfl_session_fail(session, e->request, MFL__FAILURE_CODE__FAILURE_LIMIT, "the server is too busy");
        return 0;
}

/* ---- the session ---- */

/* The list has other servers only under their own names. */
static bool on_admit(struct mfl_session *session, const Mfl__Envelope *envelope)
{
        const struct mfl_server_cluster *cluster = &server_of(session)->config.cluster;
        const char *name = envelope->hello->name;
        const size_t n = strlen(name);
        bool known = false;
        for (const char *one = cluster->servers; one && n;
                one = strchr(one, ',') ? strchr(one, ',') + 1 : NULL) {
                one += strspn(one, " ");
                known = known || (!strncmp(one, name, n) && one[n] == '=');
        }
        if (known && strcmp(name, cluster->name) != 0)
                return true;
        mfl_session_refuse(session, "that server is not among the others of this one's cluster.servers");
        return false;
}

static int on_greeted(struct mfl_session *session, const Mfl__Envelope *hello, struct mfl_error *err)
{
        const struct mfl_server_config *config = session->all->config;
        Mfl__Welcome body = MFL__WELCOME__INIT;
        Mfl__Envelope envelope = MFL__ENVELOPE__INIT;
        struct peer *peer = mfl_calloc(1, sizeof *peer);
        if (!peer)
                return mfl_fail_memory(err, sizeof *peer, "a server's connection");
        mfl_strcpy(peer->name, sizeof peer->name, hello->hello->name);
        session->peer = peer;
        body.protocol = session->protocol;
        body.software = "mfl-server " MFL_VERSION;
        body.heartbeat_ms = (uint32_t)config->heartbeat_ms;
        body.dead_ms = (uint32_t)config->dead_ms;
        envelope.body_case = MFL__ENVELOPE__BODY_WELCOME;
        envelope.welcome = &body;
        mfl_session_welcomed(session);
        mfl_session_send(session, &envelope);
        return 0;
}

static int on_payload(struct mfl_session *session, const Mfl__Envelope *envelope, size_t payload_bytes,
        void **ret_dst, struct mfl_error *err)
{
        return mfl_fail(err, MFL_INVALID, "a payload that nobody asked for");
}

static int on_frame(
        struct mfl_session *session, const Mfl__Envelope *e, size_t payload_bytes, struct mfl_error *err)
{
        switch (e->body_case) {
        case MFL__ENVELOPE__BODY_PUT_FILE:
        case MFL__ENVELOPE__BODY_GET_FILE:
                return start_op(session, e, err);
        case MFL__ENVELOPE__BODY_PING:
        case MFL__ENVELOPE__BODY_PONG:
                return 0;
        default:
                return mfl_fail(err, MFL_INVALID, "a server may not send this message");
        }
}

static void on_closed(struct mfl_session *session, const char *reason)
{
        free(session->peer);
        session->peer = NULL;
}

static const struct mfl_session_ops ops = {.admit = on_admit,
        .greeted = on_greeted,
        .payload = on_payload,
        .frame = on_frame,
        .closed = on_closed};

void mfl_peers_open(struct mfl_server *server)
{
        if (*server->config.cluster.servers)
                mfl_sessions_register(&server->sessions, MFL__ROLE__ROLE_SERVER, &ops, server);
}
