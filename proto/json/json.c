/* SPDX-License-Identifier: Apache-2.0 */
/* Messages as JSON objects. */
#include "proto/json/json.h"

#include <math.h>

#include "common/base/digest.h"
#include "common/base/plain.h"

const char *mfl_state_name(Mfl__JobState state)
{
        static const char *const names[] = {"unknown", "waiting", "running", "done", "failed", "stopped"};
        return (size_t)state < MFL_ARRAY_SIZE(names) ? names[state] : names[0];
}

const char *mfl_collective_name(Mfl__Collective collective)
{
        static const char *const names[] = {"unknown", "solo", "shm", "nccl", "relay"};
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

json_t *mfl_json_number(bool known, double value)
{
        return known && isfinite(value) ? json_real(value) : json_null();
}

/* A string, also an empty one. */
static json_t *make_string(const char *text)
{
        uint32_t code;
        if (!mfl_plain_find(text, true, &code))
                return json_string(text);
        MFL_CLEANUP_FREE char *plain = mfl_strdup(text);
        if (!plain)
                return NULL;
        mfl_plain_clean(plain, true);
        return json_string(plain);
}

json_t *mfl_json_text(const char *text)
{
        return text && *text ? make_string(text) : json_null();
}

static json_t *digest_or_null(const ProtobufCBinaryData *digest)
{
        char hex[MFL_SHA256_HEX_BYTES] = "";
        if (digest->len == MFL_SHA256_BYTES)
                mfl_hex(digest->data, digest->len, hex);
        return mfl_json_text(hex);
}

struct mfl_measures mfl_round_measures(const Mfl__RoundInfo *round)
{
        struct mfl_measures m = {.clients = round->clients_evaluated};
        for (size_t k = 0; k < MFL_MIN(round->n_measures, (size_t)MFL_MEASURES); k++) {
                m.known |= round->measured & 1u << k;
                m.v[k] = round->measures[k];
        }
        for (size_t i = 0; i < MFL_MIN(round->n_client_bins, (size_t)MFL_SCORE_BINS); i++)
                m.bins[i] = round->client_bins[i];
        return m;
}

struct mfl_metrics mfl_round_metrics(const Mfl__RoundInfo *round)
{
        struct mfl_metrics m = {.n = (uint32_t)MFL_MIN(round->n_metric_values, (size_t)MFL_METRICS_MAX)};
        mfl_strcpy(m.names, sizeof m.names, round->metrics);
        for (uint32_t k = 0; k < m.n; k++)
                m.v[k] = round->metric_values[k];
        return m;
}

static json_t *json_metrics(const Mfl__RoundInfo *r)
{
        char name[64];
        double value;
        struct mfl_metrics metrics = mfl_round_metrics(r);
        json_t *object = metrics.n ? json_object() : json_null();
        for (uint32_t k = 0; object && mfl_metric_get(&metrics, k, name, &value); k++)
                json_object_set_new(object, name, mfl_json_number(isfinite(value), value));
        return object;
}

static json_t *put_measures(json_t *object, const Mfl__RoundInfo *r)
{
        struct mfl_measures m = mfl_round_measures(r);
        json_t *bins = m.clients ? json_array() : json_null();
        for (size_t i = 0; m.clients && i < MFL_SCORE_BINS; i++)
                json_array_append_new(bins, json_integer(m.bins[i]));
        json_object_set_new(
                object, "clients_evaluated", m.clients ? json_integer((json_int_t)m.clients) : json_null());
        json_object_set_new(object, "client_bins", bins);
        for (int k = 0; object && k < MFL_MEASURES; k++) /* last, so that a new one moves no column */
                json_object_set_new(object, mfl_measure_infos[k].name,
                        mfl_json_number(mfl_measure_known(&m, (enum mfl_measure)k), m.v[k]));
        json_object_set_new(object, "metrics", json_metrics(r));
        return object;
}

json_t *mfl_json_scores(const Mfl__RoundScores *scores)
{
        json_t *clients = json_array();
        for (size_t i = 0; scores && i < scores->n_clients; i++) {
                const Mfl__ClientScore *c = scores->clients[i];
                json_array_append_new(
                        clients, json_pack("{sI so sI sI sf}", "client", (json_int_t)c->client, "site",
                                         mfl_json_text(c->site), "samples", (json_int_t)c->samples, "correct",
                                         (json_int_t)c->correct, "loss_sum", (double)c->loss_sum * 0x1p-32));
        }
        json_t *confusion = scores && scores->classes ? json_array() : json_null();
        for (uint32_t c = 0; scores && c < scores->classes; c++) {
                json_t *row = json_array();
                for (uint32_t p = 0; p < scores->classes; p++)
                        json_array_append_new(
                                row, json_integer((json_int_t)scores->confusion[c * scores->classes + p]));
                json_array_append_new(confusion, row);
        }
        if (scores)
                return json_pack("{sI so so}", "round", (json_int_t)scores->round, "clients", clients,
                        "confusion", confusion);
        json_decref(clients);
        return confusion;
}

json_t *mfl_json_round(const Mfl__RoundInfo *r)
{
        if (!r)
                return json_null();
        bool iou = r->has_mean_iou_case == MFL__ROUND_INFO__HAS_MEAN_IOU_MEAN_IOU;
        bool virtual = r->has_virtual_end_case == MFL__ROUND_INFO__HAS_VIRTUAL_END_VIRTUAL_END;
        bool trained = r->clients; /* a Poisson sample may be empty */
        json_t *round = json_pack(
                "{sI so so so so sI sI sI sI sI sI so so sI sI sI sb sI sI so so so sI sI so}", "round",
                (json_int_t)r->round, "accuracy", mfl_json_number(mfl_has_accuracy(r), r->accuracy), "loss",
                mfl_json_number(r->evaluated, r->loss), "train_loss", mfl_json_number(trained, r->train_loss),
                "train_accuracy", mfl_json_number(trained && !r->no_accuracy, r->train_accuracy), "samples",
                (json_int_t)r->samples, "clients", (json_int_t)r->clients, "clients_rejected",
                (json_int_t)r->clients_rejected, "weight", (json_int_t)r->weight, "bytes_up",
                (json_int_t)r->bytes_up, "bytes_down", (json_int_t)r->bytes_down, "seconds",
                mfl_json_number(true, r->seconds), "digest", digest_or_null(&r->digest), "attempt",
                (json_int_t)r->attempt, "daemons", (json_int_t)r->daemons, "committed_unix_ms",
                (json_int_t)r->committed_ms, "kept", (int)r->kept, "bytes_up_alone",
                (json_int_t)r->bytes_up_alone, "bytes_down_alone", (json_int_t)r->bytes_down_alone,
                "mean_iou", mfl_json_number(iou, r->mean_iou), "virtual_start",
                mfl_json_number(virtual, r->virtual_start), "virtual_end",
                mfl_json_number(virtual, r->virtual_end), "clamped", (json_int_t)r->clamped, "states_lost",
                (json_int_t)r->states_lost, "choice", mfl_json_text(r->choice));
        return put_measures(round, r);
}

json_t *mfl_json_node(const Mfl__NodeCost *c)
{
        return json_pack("{sI so sI sI sI sI sI}", "round", (json_int_t)c->round, "node",
                make_string(c->node), "daemons", (json_int_t)c->daemons, "bytes_up", (json_int_t)c->bytes_up,
                "bytes_down", (json_int_t)c->bytes_down, "bytes_up_alone", (json_int_t)c->bytes_up_alone,
                "bytes_down_alone", (json_int_t)c->bytes_down_alone);
}

static json_t *make_client(const Mfl__ClientSamples *c)
{
        json_t *classes = c->n_classes ? json_array() : json_null();
        for (size_t i = 0; i < c->n_classes; i++)
                json_array_append_new(classes, json_integer(c->classes[i]));
        return json_pack("{sI so sI so}", "client", (json_int_t)c->client, "daemon", mfl_json_text(c->daemon),
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
        return json_pack("{sI sI so sI sI sI so}", "round", (json_int_t)i->in_round, "attempt",
                (json_int_t)i->attempt, "phase", mfl_json_text(i->phase), "clients_done",
                (json_int_t)i->clients_done, "clients_total", (json_int_t)i->clients_total, "daemons",
                (json_int_t)i->daemons, "trained", mfl_json_number(true, i->trained));
}

static json_t *make_privacy(const Mfl__JobInfo *i)
{
        if (!*i->privacy)
                return json_null();
        json_t *open = i->metrics_withheld
                               ? json_pack("[ss]", "counts", "logs")
                               : json_pack("[sssss]", "losses", "accuracies", "measures", "counts", "logs");
        return json_pack("{so so so so so so so}", "kind", mfl_json_text(i->privacy), "epsilon",
                mfl_json_number(true, i->epsilon), "epsilon_max", mfl_json_number(true, i->epsilon_max),
                "delta", mfl_json_number(true, i->delta), "clip", mfl_json_number(true, i->clip), "noise",
                mfl_json_number(true, i->noise), "not_private", open);
}

json_t *mfl_json_job(const Mfl__JobInfo *i)
{
        return json_pack("{ss so ss so sI sI sI sI so so so sI so so so so so so sb so so}", "job", i->job,
                "name", make_string(i->name), "state", mfl_state_name(i->state), "reason",
                mfl_json_text(i->reason), "round", (json_int_t)i->round, "rounds", (json_int_t)i->rounds,
                "params", (json_int_t)i->n_params, "moving", (json_int_t)(i->n_params - i->n_frozen), "model",
                mfl_json_text(i->model), "data", mfl_json_text(i->data), "strategy",
                mfl_json_text(i->strategy), "created_unix_ms", (json_int_t)i->created_ms, "finished_unix_ms",
                i->finished_ms ? json_integer((json_int_t)i->finished_ms) : json_null(), "archived_unix_ms",
                i->archived_ms ? json_integer((json_int_t)i->archived_ms) : json_null(), "last",
                mfl_json_round(i->last), "best", mfl_json_round(i->best), "progress", make_progress(i),
                "owner", mfl_json_text(i->owner), "per_token", (int)i->per_token, "evaluated",
                mfl_json_round(i->evaluated                    ? i->evaluated
                               : i->last && i->last->evaluated ? i->last
                                                               : NULL),
                "privacy", make_privacy(i));
}

static json_t *make_data_set(const Mfl__DataSet *d)
{
        json_t *shape = json_array();
        for (size_t i = 0; i < d->n_shape; i++)
                json_array_append_new(shape, json_integer(d->shape[i]));
        return json_pack("{so so sI sI sI}", "name", make_string(d->name), "shape", shape, "classes",
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
        return json_pack("{so so so so so so so so}", "uuid", mfl_json_text(d->device_uuid), "pci",
                mfl_json_text(d->device_pci), "memory", integer_or_null(d->device_memory, d->device_memory),
                "percent", integer_or_null(t->has_gpu_percent_case, t->gpu_percent), "memory_used",
                integer_or_null(t->has_memory_used_case, t->memory_used), "memory_total",
                integer_or_null(t->has_memory_total_case, t->memory_total), "temperature",
                integer_or_null(t->has_temperature_case, t->temperature), "power_watts",
                mfl_json_number(t->has_power_case, t->power_mw / 1000.0));
}

json_t *mfl_json_activity(const Mfl__Activity *a)
{
        if (!a)
                return json_null();
        return json_pack("{sI so so so so so sI sf sf sf sf}", "workers", (json_int_t)a->workers,
                "samples_per_second", mfl_json_number(true, a->samples_per_second), "compute",
                mfl_json_number(true, a->compute), "data", mfl_json_number(true, a->data), "network",
                mfl_json_number(true, a->network), "wait", mfl_json_number(true, a->wait), "samples",
                (json_int_t)a->samples, "compute_seconds", (double)a->compute_us / 1e6, "data_seconds",
                (double)a->data_us / 1e6, "network_seconds", (double)a->network_us / 1e6, "wait_seconds",
                (double)a->wait_us / 1e6);
}

/* The filter's name, if that is what is offered (DataSet.name in mfl.proto); else NULL. */
static const char *filter_of(const Mfl__DataSet *offer)
{
        static const char lead[] = "filter:";
        return strncmp(offer->name, lead, sizeof lead - 1) ? NULL : offer->name + sizeof lead - 1;
}

json_t *mfl_json_daemon(const Mfl__DaemonInfo *d)
{
        json_t *sets = json_array(), *filters = json_array();
        for (size_t i = 0; i < d->n_data_sets; i++) {
                const char *filter = filter_of(d->data_sets[i]);
                if (filter)
                        json_array_append_new(filters, make_string(filter));
                else
                        json_array_append_new(sets, make_data_set(d->data_sets[i]));
        }
        return json_pack(
                "{so so so so so sI ss so sI sI sI so sI so so so so so so sb so so so so so so so so}",
                "name", make_string(d->name), "node", mfl_json_text(d->node), "address",
                mfl_json_text(d->address), "backend", mfl_json_text(d->backend), "device",
                mfl_json_text(d->device), "workers", (json_int_t)d->workers, "state", d->state, "job",
                mfl_json_text(d->job), "round", (json_int_t)d->round, "items_done", (json_int_t)d->items_done,
                "items_total", (json_int_t)d->items_total, "samples_per_second",
                mfl_json_number(true, d->samples_per_second), "connected_unix_ms",
                (json_int_t)d->connected_ms, "data_sets", sets, "filters", filters, "software",
                mfl_json_text(d->software), "note", mfl_json_text(d->note), "gpu", make_gpu(d), "collective",
                mfl_json_text(d->collective ? mfl_collective_name(d->collective) : NULL), "leader",
                (int)d->leader, "alone", mfl_json_text(d->alone), "clients_per_second",
                mfl_json_number(true, d->clients_per_second), "numerics", mfl_json_text(d->numerics),
                "activity", mfl_json_activity(d->activity), "items_part",
                mfl_json_number(true, d->items_part), "site", mfl_json_text(d->site), "tags",
                mfl_json_text(d->tags), "relay", mfl_json_text(d->relay));
}
