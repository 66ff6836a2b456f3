/* SPDX-License-Identifier: Apache-2.0 */
/* What makes the messages between people's programs and the server valid. */
#include "proto/wire_rules.h"

static int check_pull_begin(const void *message, struct mfl_error *err)
{
        const Mfl__PullBegin *m = message;
        return mfl_wire_check_shape("PullBegin.input", m->n_input, m->input, err);
}

static int check_model_tensor(const void *message, struct mfl_error *err)
{
        const Mfl__ModelTensor *m = message;
        return mfl_wire_check_shape("ModelTensor.shape", m->n_shape, m->shape, err);
}

static int check_drain(const void *message, struct mfl_error *err)
{
        const Mfl__Drain *m = message;
        if (m->all == (*m->daemon != '\0'))
                return INVALID("Drain.daemon: expected a name, or none and `all`");
        return 0;
}

/* A pattern for names, or for a certificate. */
static int check_pattern(const char *pattern, struct mfl_error *err)
{
        static const char hex[] = "0123456789abcdefABCDEF";
        const char *s = pattern;
        if (!strncmp(s, "sha256:", 7))
                return s[7 + strspn(s + 7, hex)] || strlen(s + 7) != 64
                               ? INVALID("Access.pattern: sha256: needs 64 hexadecimal digits")
                               : 0;
        if (!strncmp(s, "cn:", 3))
                s += 3;
        if (!*s || strlen(s) >= MFL_NAME_BYTES)
                return INVALID("Access.pattern: a name has 1 to %d bytes", MFL_NAME_BYTES - 1);
        for (; *s; s++)
                if (!strchr("*?", *s) && !mfl_wire_name_is_plain((char[]){*s, '\0'}))
                        return INVALID("Access.pattern: a name, with or without 'cn:' before it, may only "
                                       "have A-Z, a-z, 0-9, '.', '_', '-', '*' and '?'");
        return 0;
}

static int check_access(const void *message, struct mfl_error *err)
{
        const Mfl__Access *m = message;
        if (m->seconds && (m->remove || m->verdict != MFL__VERDICT__VERDICT_DENY))
                return INVALID("Access.seconds: only for a rule that denies");
        return check_pattern(m->pattern, err);
}

static int check_access_rule(const void *message, struct mfl_error *err)
{
        const Mfl__AccessRule *m = message;
        return check_pattern(m->pattern, err);
}

static int check_scores(const void *message, struct mfl_error *err)
{
        const Mfl__RoundScores *m = message;
        if (m->n_confusion != (size_t)m->classes * m->classes)
                return INVALID(
                        "RoundScores.confusion: %zu numbers for %u classes", m->n_confusion, m->classes);
        return 0;
}

static int check_event(const void *message, struct mfl_error *err)
{
        const Mfl__Event *m = message;
        if (m->what_case == MFL__EVENT__WHAT__NOT_SET)
                return INVALID("Event.what: not set, or of a kind that this version does not know");
        return 0;
}

#define MOVE_BYTES 0, (int64_t)1 << 50

/* A file's name, which becomes one of a directory. */
static bool is_file(const char *name)
{
        return *name != '.' && mfl_wire_name_is_plain(name);
}

static int check_move_file(const void *message, struct mfl_error *err)
{
        const Mfl__MoveFile *m = message;
        return is_file(m->name) ? 0 : INVALID("MoveFile.name: not a file's name");
}

static int check_move(const void *message, struct mfl_error *err)
{
        const Mfl__Move *m = message;
        const bool there = m->step >= MFL__MOVE_STEP__MOVE_OFFER;
        const bool with_file = m->step == MFL__MOVE_STEP__MOVE_READ || m->step == MFL__MOVE_STEP__MOVE_WRITE;
        if (there ? *m->job != 0 : !*m->job)
                return INVALID("Move.job: only for the server that has the job");
        if (there && (strlen(m->token) != 32 || m->token[strspn(m->token, "0123456789abcdef")]))
                return INVALID("Move.token: expected 32 hexadecimal digits");
        if (with_file && !is_file(m->file))
                return INVALID("Move.file: not a file's name");
        if (m->step == MFL__MOVE_STEP__MOVE_HOLD && !*m->to)
                return INVALID("Move.to: missing");
        if (m->step == MFL__MOVE_STEP__MOVE_GONE && !*m->there)
                return INVALID("Move.there: missing");
        return 0;
}

static const struct mfl_wire_message messages[] = {
        MESSAGE(submit, NULL, {"text", 1, JOB_TEXT_MAX, VERBATIM}, {"file", 0, 4096, LINE},
                {"token", NAME_OR_EMPTY, KEY}, {"initial_count", PARAMS_OFFSET}),
        MESSAGE(submitted, NULL, {"job", JOB}, {"existed", BOOL}),
        MESSAGE(initial, NULL, {"offset", PARAMS_OFFSET}),
        MESSAGE(list_jobs, NULL, {"without_archived", BOOL}, {"after", NAME_OR_EMPTY}, {"count", 0, 65536}),
        MESSAGE(job_info, NULL, {"job", JOB}, {"name", NAME_OR_EMPTY, LINE}, {"state", ENUM},
                {"reason", REASON}, {"round", ANY}, {"rounds", ANY}, {"n_params", PARAMS_OFFSET},
                {"model", NAME_OR_EMPTY, LINE}, {"data", NAME_OR_EMPTY, LINE},
                {"strategy", NAME_OR_EMPTY, LINE}, {"created_ms", ANY}, {"finished_ms", ANY},
                {"last", OPTIONAL}, {"best", OPTIONAL}, {"in_round", ANY}, {"clients_done", ANY},
                {"clients_total", ANY}, {"daemons", ANY}, {"phase", NAME_OR_EMPTY, LINE}, {"attempt", ANY},
                {"owner", NAME_OR_EMPTY, LINE}, {"per_token", BOOL}, {"n_frozen", PARAMS_OFFSET},
                {"evaluated", OPTIONAL}, {"trained", FLOAT}, {"privacy", NAME_OR_EMPTY, LINE},
                {"epsilon", FLOAT}, {"epsilon_max", FLOAT}, {"delta", FLOAT}, {"clip", FLOAT},
                {"noise", FLOAT}, {"metrics_withheld", BOOL}, {"archived_ms", ANY}),
        MESSAGE(round_info, NULL, {"round", ANY}, {"evaluated", BOOL}, {"accuracy", FLOAT}, {"loss", FLOAT},
                {"train_loss", FLOAT}, {"train_accuracy", FLOAT}, {"samples", ANY}, {"clients", ANY},
                {"clients_rejected", ANY}, {"weight", ANY}, {"bytes_up", ANY}, {"bytes_down", ANY},
                {"seconds", FLOAT}, {"digest", 0, MFL_DIGEST_BYTES}, {"attempt", ANY}, {"committed_ms", ANY},
                {"kept", BOOL}, {"daemons", ANY}, {"bytes_up_alone", ANY}, {"bytes_down_alone", ANY},
                {"no_accuracy", BOOL}, {"mean_iou", FLOAT}, {"choice", 0, 383, LINE}, {"clamped", ANY},
                {"states_lost", ANY}, {"measured", ANY}, {"measures", 0, 32}, {"clients_evaluated", ANY},
                {"client_bins", 0, 64}, {"virtual_start", FLOAT}, {"virtual_end", FLOAT},
                {"metrics", 0, 255, LINE}, {"metric_values", 0, 4}),
        MESSAGE(round_scores, check_scores, {"round", ANY}, {"clients", 0, 1000}, {"classes", 0, 100},
                {"confusion", 0, 10000}),
        MESSAGE(client_score, NULL, {"client", ANY}, {"site", NAME_OR_EMPTY, LINE}, {"samples", COUNTER},
                {"correct", COUNTER}, {"loss_sum", NOT_NEGATIVE}),
        MESSAGE(node_cost, NULL, {"round", ANY}, {"node", 0, MFL_NODE_BYTES - 1, LINE}, {"daemons", ANY},
                {"bytes_up", ANY}, {"bytes_down", ANY}, {"bytes_up_alone", ANY}, {"bytes_down_alone", ANY}),
        MESSAGE(job_list, NULL, {"jobs", 0, 65536}, {"notice", NOTE}, {"more", BOOL}),
        MESSAGE(show_job, NULL, {"job", JOB}),
        MESSAGE(job_detail, NULL, {"info", REQUIRED}, {"text", 0, JOB_TEXT_MAX, LINES}, {"rounds", 0, 1000},
                {"nodes", 0, 1000}, {"teams", OPTIONAL}, {"contract", 0, CONTRACT_MAX, LINE},
                {"scores", OPTIONAL}),
        MESSAGE(job_teams, NULL, {"formed", ANY}, {"broken", ANY}, {"taken", ANY}, {"times", OPTIONAL},
                {"at_work", 0, MFL_CREW_MAX}, {"last", 0, 200, LINE}, {"late", ANY}, {"unreached", ANY}),
        MESSAGE(job_team, NULL, {"members", 0, MFL_GROUP_MAX}, {"wide", BOOL}),
        MESSAGE(team_member, NULL, {"daemon", NAME}, {"ranks", ANY}),
        MESSAGE(watch, NULL, {"job", JOB}, {"logs", BOOL}, {"follow", BOOL}, {"rounds_from", ANY},
                {"all_rounds", BOOL}, {"crew", BOOL}),
        MESSAGE(get_partition, NULL, {"job", JOB}),
        MESSAGE(job_partition, NULL, {"job", JOB}, {"local", BOOL}, {"partition", OPTIONAL}),
        MESSAGE(event, check_event, {"info", OPTIONAL}, {"round", OPTIONAL}, {"log", OPTIONAL},
                {"crew", OPTIONAL}),
        MESSAGE(crew, NULL, {"members", 0, MFL_CREW_MAX}, {"more", ANY}),
        MESSAGE(crew_member, NULL, {"daemon", NAME}, {"state", NAME_OR_EMPTY, LINE}, {"items_done", ANY},
                {"items_total", ANY}, {"activity", OPTIONAL}),
        MESSAGE(log_line, NULL, {"seq", ANY}, {"time_ms", ANY}, {"text", 0, 8192, LINE}),
        MESSAGE(stop_job, NULL, {"job", JOB}),
        MESSAGE(stop_after_round, NULL, {"job", JOB}),
        MESSAGE(delete_job, NULL, {"job", JOB}),
        MESSAGE(archive_job, NULL, {"job", JOB}, {"undo", BOOL}),
        MESSAGE(clone_job, NULL, {"job", JOB}, {"token", NAME_OR_EMPTY, KEY}, {"forget", BOOL},
                {"client", ANY}, {"replay", BOOL}),
        MESSAGE(list_models, NULL, {"job", JOB}),
        MESSAGE(model_list, NULL, {"models", 0, 65536}),
        MESSAGE(pull, NULL, {"job", JOB}, {"round", -2, UINT32_MAX}, {"tensors", BOOL}, {"change", ANY}),
        MESSAGE(pull_begin, check_pull_begin, {"round", REQUIRED}, {"n_params", PARAMS},
                {"text", 0, JOB_TEXT_MAX, VERBATIM}, {"input", 1, MFL_SHAPE_RANK_MAX},
                {"classes", 1, 1 << 24}, {"n_frozen", PARAMS_OFFSET}, {"contract", 0, CONTRACT_MAX, LINE},
                {"n_tensors", ANY}, {"clients", 0, 4096}, {"weights", 0, 4096}),
        MESSAGE(model_tensors, NULL, {"tensors", 0, 1000}),
        MESSAGE(model_tensor, check_model_tensor, {"name", 1, MFL_TENSOR_NAME_BYTES - 1},
                {"shape", 1, MFL_SHAPE_RANK_MAX}, {"offset", PARAMS_OFFSET}),
        MESSAGE(list_daemons, NULL, {"after", NAME_OR_EMPTY}, {"count", 0, 65536}),
        MESSAGE(daemon_info, NULL, {"name", NAME}, {"node", 0, MFL_NODE_BYTES - 1, LINE},
                {"address", 0, 127, LINE}, {"backend", 0, 15, LINE}, {"device", 0, 95, LINE},
                {"workers", ANY}, {"state", NAME_OR_EMPTY, LINE}, {"job", JOB_OR_EMPTY}, {"round", ANY},
                {"items_done", ANY}, {"items_total", ANY}, {"samples_per_second", FLOAT},
                {"connected_ms", ANY}, {"data_sets", 0, MFL_DATA_SETS_MAX}, {"software", NAME_OR_EMPTY, LINE},
                {"note", REASON}, DEVICE_RULES, {"telemetry", OPTIONAL}, {"collective", ENUM_OR_NONE},
                {"leader", BOOL}, {"alone", REASON}, {"clients_per_second", FLOAT}, {"activity", OPTIONAL},
                {"numerics", 0, MFL_NUMERICS_BYTES - 1, LINE}, {"items_part", FLOAT},
                {"site", NAME_OR_EMPTY, LINE}, {"relay", 0, MFL_RELAY_BYTES - 1, LINE},
                {"tags", 0, MFL_TAGS_BYTES - 1, LINE}),
        MESSAGE(daemon_list, NULL, {"daemons", 0, 65536}, {"more", BOOL}),
        MESSAGE(drain, check_drain, {"daemon", NAME_OR_EMPTY}, {"undo", BOOL}, {"wait", BOOL}, {"all", BOOL}),
        MESSAGE(done, NULL, {"text", NOTE}),
        MESSAGE(access, check_access, {"pattern", PATTERN}, {"verdict", ENUM}, {"remove", BOOL},
                {"reason", 0, MFL_ACCESS_REASON_BYTES - 1, LINE}, {"seconds", 0, YEAR_S}),
        MESSAGE_EMPTY(list_access),
        MESSAGE(access_rule, check_access_rule, {"pattern", PATTERN}, {"verdict", ENUM},
                {"who", NAME_OR_EMPTY, LINE}, {"time_ms", ANY}, {"until_ms", ANY},
                {"reason", 0, MFL_ACCESS_REASON_BYTES - 1, LINE}, {"connected", ANY}, {"refused", ANY}),
        MESSAGE(access_list, NULL, {"rules", 0, MFL_ACCESS_RULES_MAX}),
        MESSAGE_EMPTY(list_spent),
        MESSAGE(spent, NULL, {"data", NAME}, {"job", JOB}, {"sigma", ANY}, {"rate", ANY}, {"releases", ANY}),
        MESSAGE(spent_limit, NULL, {"data", NAME}, {"epsilon", ANY}, {"delta", ANY}),
        MESSAGE(spent_list, NULL, {"rows", 0, 65536}, {"limits", 0, 64}),
        MESSAGE(list_audit, NULL, {"count", 0, 1000}),
        MESSAGE(audit_entry, NULL, {"seq", ANY}, {"time_ms", ANY}, {"who", NAME_OR_EMPTY, LINE},
                {"address", 0, 127, LINE}, {"action", NAME_OR_EMPTY, LINE}, {"object", NAME_OR_EMPTY, LINE},
                {"result", NAME_OR_EMPTY, LINE}, {"text", REASON}),
        MESSAGE(audit_list, NULL, {"entries", 0, 1000}),
        MESSAGE(move, check_move, {"step", ENUM}, {"job", JOB_OR_EMPTY}, {"to", 0, 255}, {"token", 0, 32},
                {"files", 0, MFL_MOVE_FILES_MAX}, {"file", NAME_OR_EMPTY}, {"offset", MOVE_BYTES},
                {"data", 0, MFL_MOVE_DATA_MAX, VERBATIM}, {"there", JOB_OR_EMPTY}, {"back", BOOL}),
        MESSAGE(move_file, check_move_file, {"name", NAME}, {"bytes", MOVE_BYTES}, {"sha256", DIGEST}),
        MESSAGE(moved, NULL, {"token", 0, 32}, {"job", JOB_OR_EMPTY}, {"files", 0, MFL_MOVE_FILES_MAX},
                {"data", 0, MFL_MOVE_DATA_MAX, VERBATIM}, {"to", 0, 255}),
        MESSAGE(put_file, NULL, {"sha256", DIGEST}, {"bytes", MOVE_BYTES}, {"offset", MOVE_BYTES},
                {"data", 0, MFL_MOVE_DATA_MAX, VERBATIM}),
        MESSAGE(get_file, NULL, {"sha256", DIGEST}, {"offset", MOVE_BYTES}),
        MESSAGE(file_piece, NULL, {"bytes", MOVE_BYTES}, {"offset", MOVE_BYTES}, {"durable", BOOL},
                {"data", 0, MFL_MOVE_DATA_MAX, VERBATIM}),
        MESSAGE(issue_login, NULL, {"seconds", 0, 86400}, {"end", BOOL}),
        MESSAGE(login, NULL, {"url", 1, 511, LINE}, {"code", 1, 127, LINE}, {"code_seconds", ANY},
                {"seconds", ANY}),
        MESSAGE(failure, NULL, {"code", ENUM}, {"text", NOTE}),
};
const struct mfl_wire_family mfl_wire_people_family = {messages, MFL_ARRAY_SIZE(messages)};
