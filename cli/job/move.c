/* SPDX-License-Identifier: Apache-2.0 */
/* `mfl move`: carries a job from one server to another.
 *
 * Happy path: both servers answer -> HOLD until the job has stopped -> its files, piece by piece -> TAKE -> GONE. The two servers keep
 * what decides (server/move/move.h), so the command may be killed at any moment and run again: it goes on with the same token.
 * Failures: before HOLD nothing has changed. If the other server refuses the job, it is given back, and goes on where it was. If a
 * connection breaks, or the command is interrupted, the job waits: in one place, running nowhere.
 *
 * Fault points: "move-held", "move-sent", "move-taken", "move-voided". */
#include <inttypes.h>

#include "cli/job/move.h"

#include "cli/base/client.h"
#include "cli/base/json.h"
#include "common/base/fs.h"

#define ASK_AGAIN_MS 100
#define NO_TOKEN "00000000000000000000000000000000"

struct carrying {
        struct mfl_cli *cli;
        struct mfl_client from, to;
        char job[24];
        char there[24];
        uint64_t bytes;
};

static int ask(struct mfl_client *client, Mfl__Move *move, Mfl__Envelope **ret_answer, struct mfl_error *err)
{
        Mfl__Envelope request = MFL__ENVELOPE__INIT;
        request.body_case = MFL__ENVELOPE__BODY_MOVE;
        request.move = move;
        return mfl_client_call(client, &request, MFL__ENVELOPE__BODY_MOVED, ret_answer, err);
}

static Mfl__Move step_of(Mfl__MoveStep step)
{
        Mfl__Move move = MFL__MOVE__INIT;
        move.step = step;
        return move;
}

/* *ret_answer: with the token; with the files, unless back. */
static int hold(struct carrying *c, bool back, Mfl__Envelope **ret_answer, struct mfl_error *err)
{
        Mfl__Move move = step_of(MFL__MOVE_STEP__MOVE_HOLD);
        const char *to = c->cli->options.to;
        Mfl__Envelope *answer = NULL;
        move.job = c->job;
        move.to = (char *)(uintptr_t)to;
        move.back = back;
        int r;
        while (!(r = ask(&c->from, &move, &answer, err)) && !answer->moved->n_files && !*answer->moved->job) {
                mfl_wire_free(answer);
                if ((r = mfl_client_sleep(c->cli, ASK_AGAIN_MS, err)))
                        return r;
        }
        if (r)
                return r;
        if (strcmp(answer->moved->to, to) != 0) {
                r = mfl_fail(err, MFL_CLI_CONFLICT,
                        "%s is on its way to %s already: finish that (mfl move %s --to %s), or give it up "
                        "(the same "
                        "with --back)",
                        c->job, answer->moved->to, c->job, answer->moved->to);
                mfl_wire_free(answer);
                return r;
        }
        *ret_answer = answer;
        return !back && mfl_fs_fault("move-held", c->job) ? -EIO : 0;
}

static int carry_file(struct carrying *c, const char *token, const Mfl__MoveFile *file, struct mfl_error *err)
{
        Mfl__Move read = step_of(MFL__MOVE_STEP__MOVE_READ), write = step_of(MFL__MOVE_STEP__MOVE_WRITE);
        uint64_t offset = 0;
        int r = 0;
        read.job = c->job;
        read.file = write.file = file->name;
        write.token = (char *)(uintptr_t)token;
        do {
                MFL_CLEANUP_ENVELOPE Mfl__Envelope *piece = NULL;
                MFL_CLEANUP_ENVELOPE Mfl__Envelope *answer = NULL;
                read.offset = write.offset = offset;
                r = ask(&c->from, &read, &piece, err);
                if (r)
                        return r;
                write.data = piece->moved->data;
                r = ask(&c->to, &write, &answer, err);
                offset += write.data.len;
                if (!r && !write.data.len && offset < file->bytes)
                        return mfl_fail(err, MFL_CLI_LOST, "%s: %s became shorter while it was read", c->job,
                                file->name);
        } while (!r && offset < file->bytes);
        c->bytes += offset;
        return r;
}

static int take(struct carrying *c, const Mfl__Moved *held, struct mfl_error *err)
{
        Mfl__Move move = step_of(MFL__MOVE_STEP__MOVE_TAKE);
        MFL_CLEANUP_ENVELOPE Mfl__Envelope *answer = NULL;
        int r = 0;
        for (size_t i = 0; i < held->n_files && !r; i++)
                r = carry_file(c, held->token, held->files[i], err);
        if (!r && mfl_fs_fault("move-sent", c->job))
                r = -EIO;
        if (r)
                return r;
        move.token = held->token;
        move.n_files = held->n_files;
        move.files = held->files;
        move.there = c->job;
        move.to = (char *)(uintptr_t)c->cli->server;
        r = ask(&c->to, &move, &answer, err);
        if (!r)
                mfl_strcpy(c->there, sizeof c->there, answer->moved->job);
        return r ? r : mfl_fs_fault("move-taken", c->job) ? -EIO : 0;
}

/* The job goes on where it was, unless it is there already. */
static int give_back(struct carrying *c, const char *token, struct mfl_error *err)
{
        Mfl__Move move = step_of(MFL__MOVE_STEP__MOVE_VOID);
        MFL_CLEANUP_ENVELOPE Mfl__Envelope *answer = NULL;
        MFL_CLEANUP_ENVELOPE Mfl__Envelope *back = NULL;
        move.token = (char *)(uintptr_t)token;
        int r = ask(&c->to, &move, &answer, err);
        if (!r && *answer->moved->job)
                return mfl_fail(err, MFL_CLI_CONFLICT,
                        "%s has moved already: it is %s there. Finish with: mfl move %s --to %s", c->job,
                        answer->moved->job, c->job, c->cli->options.to);
        if (!r && mfl_fs_fault("move-voided", c->job))
                r = -EIO;
        move = step_of(MFL__MOVE_STEP__MOVE_BACK);
        move.job = c->job;
        return r ? r : ask(&c->from, &move, &back, err);
}

/* A refusal, not a broken connection: the job can't go there. */
static bool is_refusal(int r)
{
        return r == MFL_INVALID || r == MFL_CLI_CONFLICT || r == MFL_CLI_LIMIT;
}

/* Its files can't leave that server. If the job is on its way, it stays. */
static void stay(struct carrying *c)
{
        MFL_CLEANUP_ENVELOPE Mfl__Envelope *held = NULL;
        struct mfl_error ignored;
        if (!hold(c, true, &held, &ignored))
                give_back(c, held->moved->token, &ignored);
}

static int move_job(struct carrying *c, struct mfl_error *err)
{
        MFL_CLEANUP_ENVELOPE Mfl__Envelope *held = NULL;
        MFL_CLEANUP_ENVELOPE Mfl__Envelope *known = NULL;
        MFL_CLEANUP_ENVELOPE Mfl__Envelope *answer = NULL;
        Mfl__Move offer = step_of(MFL__MOVE_STEP__MOVE_OFFER), gone = step_of(MFL__MOVE_STEP__MOVE_GONE);
        struct mfl_error why;
        int r = hold(c, c->cli->options.back, &held, err);
        if (!r && c->cli->options.back)
                return give_back(c, held->moved->token, err);
        if (is_refusal(r))
                stay(c);
        if (r)
                return r;
        offer.token = held->moved->token;
        offer.n_files = held->moved->n_files;
        offer.files = held->moved->files;
        r = ask(&c->to, &offer, &known, err);
        if (!r && *known->moved->job)
                mfl_strcpy(c->there, sizeof c->there, known->moved->job);
        else if (!r)
                r = take(c, held->moved, err);
        if (is_refusal(r) && !give_back(c, held->moved->token, &why)) {
                why = *err;
                return mfl_fail(err, r, "%s stays where it was: %s", c->job, why.text);
        }
        if (r)
                return r;
        gone.job = c->job;
        gone.there = c->there;
        return ask(&c->from, &gone, &answer, err);
}

/* Whether the other server takes jobs from this person, before anything is changed. */
static int open_both(struct carrying *c, struct mfl_error *err)
{
        Mfl__Move offer = step_of(MFL__MOVE_STEP__MOVE_OFFER);
        MFL_CLEANUP_ENVELOPE Mfl__Envelope *answer = NULL;
        offer.token = (char *)(uintptr_t)NO_TOKEN;
        int r = mfl_client_open(&c->from, c->cli, c->cli->server, MFL_CLIENT_TIMEOUT_MS, err);
        if (!r)
                r = mfl_client_resolve(&c->from, c->cli->argument[0], c->job, err);
        if (!r)
                r = mfl_client_open(&c->to, c->cli, c->cli->options.to, MFL_CLIENT_TIMEOUT_MS, err);
        if (!r)
                r = ask(&c->to, &offer, &answer, err);
        return r;
}

static int print_result(struct carrying *c, struct mfl_error *err)
{
        const char *to = c->cli->options.to;
        if (c->cli->json)
                return mfl_json_print(stdout,
                        json_pack("{ss ss ss sI}", "job", c->job, "to", c->cli->options.back ? "" : to,
                                "there", c->there, "bytes", (json_int_t)c->bytes),
                        err);
        if (c->cli->options.back)
                printf("%s goes on here\n", c->job);
        else
                printf("%s: moved to %s, as %s (%.1f MB)\n", c->job, to, c->there, (double)c->bytes / 1e6);
        return 0;
}

int mfl_move(struct mfl_cli *cli)
{
        struct carrying c = {.cli = cli, .from = {.cli = cli}, .to = {.cli = cli}};
        struct mfl_error err = {""};
        if (!cli->options.to)
                return mfl_cli_report_text(
                        cli, MFL_CLI_USAGE, "--to HOST:PORT is missing: the server that gets the job");
        if (!strcmp(cli->options.to, cli->server))
                return mfl_cli_report_text(
                        cli, MFL_CLI_USAGE, "--to %s is the server that has the job", cli->server);
        int r = open_both(&c, &err);
        if (!r)
                r = move_job(&c, &err);
        if (!r)
                r = print_result(&c, &err);
        mfl_client_close(&c.to);
        mfl_client_close(&c.from);
        return mfl_cli_report(cli, r, &err);
}
