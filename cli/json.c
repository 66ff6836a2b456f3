/* SPDX-License-Identifier: Apache-2.0 */
/* Messages of the operator's plane as JSON objects. */
#include "cli/json.h"

#include "common/digest.h"

const char *mfl_state_name(Mfl__JobState state)
{
        static const char *const names[] = {"unknown", "waiting", "running", "done", "failed", "stopped"};
        return (size_t)state < MFL_ARRAY_SIZE(names) ? names[state] : names[0];
}

const char *mfl_collective_name(Mfl__Collective collective)
{
        static const char *const names[] = {"unknown", "solo", "shm", "nccl"};
        return (size_t)collective < MFL_ARRAY_SIZE(names) ? names[collective] : names[0];
}

bool mfl_state_is_final(Mfl__JobState state)
{
        return state == MFL__JOB_STATE__JOB_DONE || state == MFL__JOB_STATE__JOB_FAILED ||
               state == MFL__JOB_STATE__JOB_STOPPED;
}

bool mfl_has_accuracy(const Mfl__RoundInfo *r)
{
        return r->evaluated && !r->no_accuracy;
}

static json_t *number_or_null(bool known, double value)
{
        return known ? json_real(value) : json_null();
}

static json_t *text_or_null(const char *text)
{
        return text && *text ? json_string(text) : json_null();
}

static json_t *digest_or_null(const ProtobufCBinaryData *digest)
{
        char hex[MFL_SHA256_HEX_BYTES] = "";
        if (digest->len == MFL_SHA256_BYTES)
                mfl_hex(digest->data, digest->len, hex);
        return text_or_null(hex);
}

json_t *mfl_json_round(const Mfl__RoundInfo *r)
{
        if (!r)
                return json_null();
        return json_pack("{sI so so sf so sI sI sI sI sI sI sf so sI sI sI sb sI sI}", "round",
                (json_int_t)r->round, "accuracy", number_or_null(mfl_has_accuracy(r), r->accuracy), "loss",
                number_or_null(r->evaluated, r->loss), "train_loss", r->train_loss, "train_accuracy",
                number_or_null(!r->no_accuracy, r->train_accuracy), "samples", (json_int_t)r->samples,
                "clients", (json_int_t)r->clients, "clients_rejected", (json_int_t)r->clients_rejected,
                "weight", (json_int_t)r->weight, "bytes_up", (json_int_t)r->bytes_up, "bytes_down",
                (json_int_t)r->bytes_down, "seconds", r->seconds, "digest", digest_or_null(&r->digest),
                "attempt", (json_int_t)r->attempt, "daemons", (json_int_t)r->daemons, "committed_ms",
                (json_int_t)r->committed_ms, "kept", (int)r->kept, "bytes_up_alone",
                (json_int_t)r->bytes_up_alone, "bytes_down_alone", (json_int_t)r->bytes_down_alone);
}

json_t *mfl_json_node(const Mfl__NodeCost *c)
{
        return json_pack("{sI ss sI sI sI sI sI}", "round", (json_int_t)c->round, "node", c->node, "daemons",
                (json_int_t)c->daemons, "bytes_up", (json_int_t)c->bytes_up, "bytes_down",
                (json_int_t)c->bytes_down, "bytes_up_alone", (json_int_t)c->bytes_up_alone,
                "bytes_down_alone", (json_int_t)c->bytes_down_alone);
}

static json_t *make_client(const Mfl__ClientSamples *c)
{
        json_t *classes = c->n_classes ? json_array() : json_null();
        for (size_t i = 0; i < c->n_classes; i++)
                json_array_append_new(classes, json_integer(c->classes[i]));
        return json_pack("{sI so sI so}", "client", (json_int_t)c->client, "daemon", text_or_null(c->daemon),
                "samples", (json_int_t)c->samples, "classes", classes);
}

json_t *mfl_json_partition(const Mfl__JobPartition *p)
{
        const Mfl__Partition *all = p->partition;
        json_t *told = json_null();
        if (all) {
                json_t *shown = json_array();
                for (size_t i = 0; i < all->n_shown; i++)
                        json_array_append_new(shown, make_client(all->shown[i]));
                told = json_pack("{sI sI sI sI so so}", "clients", (json_int_t)all->clients, "samples",
                        (json_int_t)all->samples, "samples_min", (json_int_t)all->samples_min, "samples_max",
                        (json_int_t)all->samples_max, "classes",
                        all->classes ? json_integer(all->classes) : json_null(), "shown", shown);
        }
        return json_pack("{ss sb so}", "job", p->job, "local", (int)p->local, "partition", told);
}

static json_t *make_progress(const Mfl__JobInfo *i)
{
        if (!i->in_round)
                return json_null();
        return json_pack("{sI sI so sI sI sI}", "round", (json_int_t)i->in_round, "attempt",
                (json_int_t)i->attempt, "phase", text_or_null(i->phase), "clients_done",
                (json_int_t)i->clients_done, "clients_total", (json_int_t)i->clients_total, "daemons",
                (json_int_t)i->daemons);
}

json_t *mfl_json_job(const Mfl__JobInfo *i)
{
        return json_pack("{ss ss ss so sI sI sI sI so so so sI so so so so so sb so}", "job", i->job, "name",
                i->name, "state", mfl_state_name(i->state), "reason", text_or_null(i->reason), "round",
                (json_int_t)i->round, "rounds", (json_int_t)i->rounds, "params", (json_int_t)i->n_params,
                "moving", (json_int_t)(i->n_params - i->n_frozen), "model", text_or_null(i->model), "data",
                text_or_null(i->data), "strategy", text_or_null(i->strategy), "created_ms",
                (json_int_t)i->created_ms, "finished_ms",
                i->finished_ms ? json_integer((json_int_t)i->finished_ms) : json_null(), "last",
                mfl_json_round(i->last), "best", mfl_json_round(i->best), "progress", make_progress(i),
                "owner", text_or_null(i->owner), "per_token", (int)i->per_token, "evaluated",
                mfl_json_round(i->evaluated                    ? i->evaluated
                               : i->last && i->last->evaluated ? i->last
                                                               : NULL));
}

static json_t *make_data_set(const Mfl__DataSet *d)
{
        json_t *shape = json_array();
        for (size_t i = 0; i < d->n_shape; i++)
                json_array_append_new(shape, json_integer(d->shape[i]));
        return json_pack("{ss so sI sI sI}", "name", d->name, "shape", shape, "classes",
                (json_int_t)d->classes, "train_samples", (json_int_t)d->train_samples, "test_samples",
                (json_int_t)d->test_samples);
}

static json_t *integer_or_null(bool known, uint64_t value)
{
        return known ? json_integer((json_int_t)value) : json_null();
}

/* null for a daemon without a GPU. */
static json_t *make_gpu(const Mfl__DaemonInfo *d)
{
        static const Mfl__Telemetry none = MFL__TELEMETRY__INIT;
        const Mfl__Telemetry *t = d->telemetry ? d->telemetry : &none;
        if (!*d->device_uuid && !d->telemetry)
                return json_null();
        return json_pack("{so so so so so so so so}", "uuid", text_or_null(d->device_uuid), "pci",
                text_or_null(d->device_pci), "memory", integer_or_null(d->device_memory, d->device_memory),
                "percent", integer_or_null(t->has_gpu_percent_case, t->gpu_percent), "memory_used",
                integer_or_null(t->has_memory_used_case, t->memory_used), "memory_total",
                integer_or_null(t->has_memory_total_case, t->memory_total), "temperature",
                integer_or_null(t->has_temperature_case, t->temperature), "power_watts",
                number_or_null(t->has_power_case, t->power_mw / 1000.0));
}

json_t *mfl_json_activity(const Mfl__Activity *a)
{
        if (!a)
                return json_null();
        return json_pack("{sI sf sf sf sf sf sI sf sf sf sf}", "workers", (json_int_t)a->workers,
                "samples_per_second", a->samples_per_second, "compute", a->compute, "data", a->data,
                "network", a->network, "wait", a->wait, "samples", (json_int_t)a->samples, "compute_seconds",
                (double)a->compute_us / 1e6, "data_seconds", (double)a->data_us / 1e6, "network_seconds",
                (double)a->network_us / 1e6, "wait_seconds", (double)a->wait_us / 1e6);
}

json_t *mfl_json_daemon(const Mfl__DaemonInfo *d)
{
        json_t *sets = json_array();
        for (size_t i = 0; i < d->n_data_sets; i++)
                json_array_append_new(sets, make_data_set(d->data_sets[i]));
        return json_pack("{ss so so so so sI ss so sI sI sI sf sI so so so so so sb so sf so so}", "name",
                d->name, "node", text_or_null(d->node), "address", text_or_null(d->address), "backend",
                text_or_null(d->backend), "device", text_or_null(d->device), "workers",
                (json_int_t)d->workers, "state", d->state, "job", text_or_null(d->job), "round",
                (json_int_t)d->round, "items_done", (json_int_t)d->items_done, "items_total",
                (json_int_t)d->items_total, "samples_per_second", d->samples_per_second, "connected_ms",
                (json_int_t)d->connected_ms, "data_sets", sets, "software", text_or_null(d->software), "note",
                text_or_null(d->note), "gpu", make_gpu(d), "collective",
                text_or_null(d->collective ? mfl_collective_name(d->collective) : NULL), "leader",
                (int)d->leader, "alone", text_or_null(d->alone), "clients_per_second", d->clients_per_second,
                "numerics", text_or_null(d->numerics), "activity", mfl_json_activity(d->activity));
}

json_t *mfl_json_event(const char *kind)
{
        return json_pack("{ss}", "event", kind);
}

int mfl_json_print(FILE *out, json_t *object, struct mfl_error *err)
{
        if (!object)
                return mfl_fail_memory(err, 0, "JSON");
        int bad = json_dumpf(object, out, JSON_COMPACT | JSON_ENCODE_ANY) || fputc('\n', out) == EOF ||
                  fflush(out);
        json_decref(object);
        return bad && errno != EPIPE ? mfl_fail_errno(err, "write to standard output") : 0;
}

void mfl_json_print_error(FILE *out, const char *code, const char *text)
{
        json_t *error = json_pack("{s{ss ss}}", "error", "code", code, "text", text);
        if (!error) /* not UTF-8, or no memory: the code at least */
                error = json_pack("{s{ss ss}}", "error", "code", code, "text", "");
        mfl_json_print(out, error, NULL);
}
