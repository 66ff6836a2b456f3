/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a daemon can work for a job. */
#include "server/state/state.h"

#include "common/data/dataset.h"
#include "proto/version.h"

/* Simulated populations are cut from one data set, so every daemon must hold the same bytes. A `local` job
 * only needs samples of the same form, whose labels mean the same. */
enum core_fit mfl_core_fit_compare(const struct mfl_data_info *have, const struct core_job *job)
{
        const struct mfl_data_info *want = &job->data;
        if (!want->name[0])
                return FIT; /* nothing is decided yet */
        if (!mfl_shape_equal(&have->shape, &want->shape))
                return FIT_SHAPE;
        if (have->classes != want->classes)
                return FIT_CLASSES;
        if (!mfl_meaning_agrees(have->meaning, want->meaning))
                return FIT_MEANING;
        if (job->spec->data.partition == MFL_PARTITION_LOCAL)
                return FIT;
        bool same = have->fingerprint == want->fingerprint && have->train_samples == want->train_samples &&
                    have->test_samples == want->test_samples;
        return same ? FIT : FIT_CONTENT;
}

const struct mfl_data_info *mfl_core_fit_offer(const struct core_daemon *daemon, const char *name)
{
        for (uint32_t i = 0; i < daemon->info.n_data_sets; i++)
                if (strcmp(daemon->info.data_sets[i].name, name) == 0)
                        return &daemon->info.data_sets[i];
        return NULL;
}

const char *mfl_core_fit_lacks(const struct core_daemon *daemon, const struct core_job *job)
{
        char offer[MFL_NAME_BYTES];
        for (uint32_t i = 0; i < job->spec->n_filters; i++)
                if (!mfl_core_fit_offer(daemon, mfl_job_filter_offer(job->spec->filters[i], offer)))
                        return job->spec->filters[i];
        return NULL;
}

/* A job with a program or filters needs those, too. */
const struct mfl_data_info *mfl_core_fit_find(const struct core_daemon *daemon, const struct core_job *job)
{
        char offer[MFL_NAME_BYTES];
        const char *program = job->spec->training.program;
        if (*program && !mfl_core_fit_offer(daemon, mfl_job_program_offer(program, offer)))
                return NULL;
        if (mfl_core_fit_lacks(daemon, job))
                return NULL;
        return mfl_core_fit_offer(daemon, mfl_job_data_for(job->spec, daemon->info.name, daemon->info.site));
}

static bool has_last_cell(const struct core_job *job)
{
        for (int i = 0; i < job->spec->model.n_layers; i++)
                if (job->spec->model.layers[i].last_cell)
                        return true;
        return false;
}

/* NULL: nothing. */
static const char *hidden_by(const struct mfl_job *spec)
{
        return spec->secure.bits ? "secure_sum" : spec->privacy.kind ? "privacy" : NULL;
}

/* What its clients keep something for. */
static const char *keeper_of(const struct mfl_job *spec, const struct mfl_method_ops *method)
{
        return method->starts  ? "personal"
               : method->feeds ? "compression.up.top_k"
                               : mfl_strategy_name(spec->aggregation.strategy);
}

/* The key for which samples or updates are not what older daemons make of them; NULL: none. */
static const char *changed_by(const struct mfl_job *spec)
{
        if (spec->compression.up || spec->compression.down_half)
                return "compression";
        if (spec->edges.count)
                return "edges";
        return spec->data.normalise.kind != MFL_NORMALISE_SITE ? "data.normalise" : NULL;
}

/* What the model alone demands. */
static struct core_demand demand_of_model(const struct core_job *job)
{
        struct core_demand demand = {job->n_frozen ? MFL_PROTOCOL_FROZEN : 1, "frozen params", ""};
        for (int i = 0; i < job->spec->model.n_layers; i++) {
                const struct mfl_layer *layer = &job->spec->model.layers[i];
                const struct mfl_op_info *op = mfl_op_info(layer->op);
                if (op->since > demand.version)
                        demand = (struct core_demand){op->since, mfl_layer_kind(layer), " layers"};
                if (layer->has_padding && MFL_PROTOCOL_FUNCTIONS > demand.version)
                        demand = (struct core_demand){
                                MFL_PROTOCOL_FUNCTIONS, "embeddings with padding_idx", ""};
                if (MFL_MAX(layer->vocabulary, layer->out_channels) > MFL_WIDTH_OLD &&
                        MFL_PROTOCOL_WIDTHS > demand.version)
                        demand = (struct core_demand){MFL_PROTOCOL_WIDTHS, "layers wider than 65536", ""};
                if (layer->ceil_mode && MFL_PROTOCOL_LAYERS > demand.version)
                        demand = (struct core_demand){MFL_PROTOCOL_LAYERS, "pools with ceil_mode", ""};
                if (strlen(layer->name) > MFL_LAYER_NAME_OLD && MFL_PROTOCOL_NAMES > demand.version)
                        demand = (struct core_demand){
                                MFL_PROTOCOL_NAMES, "names of layers above 63 bytes", ""};
        }
        if (job->spec->model.n_layers > MFL_LAYERS_OLD && MFL_PROTOCOL_FUNCTIONS > demand.version)
                demand = (struct core_demand){MFL_PROTOCOL_FUNCTIONS, "more than 1024 layers", ""};
        const struct mfl_shape *input =
                job->spec->model.input.rank ? &job->spec->model.input : &job->data.shape;
        for (int i = 0; i < input->rank; i++)
                if (input->dim[i] > MFL_WIDTH_OLD && MFL_PROTOCOL_WIDTHS > demand.version)
                        demand = (struct core_demand){MFL_PROTOCOL_WIDTHS, "inputs wider than 65536", ""};
        return demand.version > 1 ? demand : (struct core_demand){0, "", ""};
}

/* What the other settings demand; the latest version comes first. */
static struct core_demand demand_of_settings(const struct core_job *job)
{
        const struct mfl_method_ops *method = mfl_method_get(job->spec);
        bool on_clients = job->spec->evaluation.on == MFL_EVALUATE_CLIENTS;
        if (on_clients || job->spec->evaluation.detailed)
                return (struct core_demand){MFL_PROTOCOL_EVALUATION,
                        on_clients ? "evaluation on clients" : "evaluation.detailed", ""};
        if (method->starts || mfl_method_keeps(method))
                return (struct core_demand){MFL_PROTOCOL_STATES, keeper_of(job->spec, method), ""};
        if (hidden_by(job->spec))
                return (struct core_demand){MFL_PROTOCOL_PRIVACY, hidden_by(job->spec), ""};
        if (changed_by(job->spec))
                return (struct core_demand){MFL_PROTOCOL_PACKED, changed_by(job->spec), ""};
        if (job->spec->time == MFL_TIME_VIRTUAL)
                return (struct core_demand){MFL_PROTOCOL_COHORTS, "time: virtual", ""};
        if (job->spec->selection.kind >= MFL_SELECT_WEIGHTED)
                return (struct core_demand){
                        MFL_PROTOCOL_COHORTS, mfl_selection_name(job->spec->selection.kind), " selection"};
        if (job->spec->parallel.grain && job->spec->parallel.within == MFL_WITHIN_ANY)
                return (struct core_demand){MFL_PROTOCOL_PEERS, "parallel", " within any"};
        if (has_last_cell(job))
                return (struct core_demand){MFL_PROTOCOL_LAST_CELL, "lstm layers with last_cell", ""};
        const struct mfl_robust_spec *robust = &job->spec->aggregation.robust;
        if (mfl_simulation_is_on(&job->spec->simulation))
                return (struct core_demand){MFL_PROTOCOL_ROBUST, "simulation", ""};
        if (robust->has_update_clip ||
                (mfl_job_is_robust(job->spec) && (job->spec->aggregation.strategy != MFL_STRATEGY_MEDIAN ||
                                                         robust->has_f || robust->has_more)))
                return (struct core_demand){MFL_PROTOCOL_ROBUST,
                        mfl_strategy_name(job->spec->aggregation.strategy),
                        " with keys of robust aggregation"};
        if (method->weighs || method->n_state)
                return (struct core_demand){MFL_PROTOCOL_METHODS,
                        method->weighs ? mfl_strategy_name(job->spec->aggregation.strategy) : "mu: adaptive",
                        ""};
        if (job->spec->selection.where[0])
                return (struct core_demand){MFL_PROTOCOL_METHODS, "selection.where", ""};
        if (job->spec->selection.kind != MFL_SELECT_UNIFORM)
                return (struct core_demand){
                        MFL_PROTOCOL_METHODS, mfl_selection_name(job->spec->selection.kind), " selection"};
        if (job->statistics && job->fixed.statistics_max > 0)
                return (struct core_demand){
                        MFL_PROTOCOL_STATISTICS, "running statistics with a limit of their own", ""};
        if (job->spec->arithmetic >= MFL_ARITHMETIC_STATISTICS && job->spec->training.clip_norm > 0 &&
                job->spec->aggregation.strategy == MFL_STRATEGY_FEDPROX)
                return (struct core_demand){MFL_PROTOCOL_STATISTICS, "clip_norm with fedprox", ""};
        if (job->spec->parallel.grain && !job->spec->parallel.exact)
                return (struct core_demand){MFL_PROTOCOL_SHARDS, "parallel.exact: false", ""};
        if (job->spec->parallel.members_min)
                return (struct core_demand){MFL_PROTOCOL_SHARDS, "parallel.members.min", ""};
        if (job->spec->parallel.grain && job->spec->parallel.zero != MFL_ZERO_AUTO)
                return (struct core_demand){MFL_PROTOCOL_SHARDS, "parallel.zero", ""};
        if (job->spec->parallel.grain)
                return (struct core_demand){MFL_PROTOCOL_PARALLEL, "parallel", ""};
        return (struct core_demand){0, "", ""};
}

struct core_demand mfl_core_fit_demand(const struct core_job *job)
{
        struct core_demand settings = demand_of_settings(job), model = demand_of_model(job);
        return model.version > settings.version ? model : settings;
}

bool mfl_core_fit_is_outdated(const struct core_daemon *daemon, const struct core_job *job)
{
        return daemon->info.protocol < MFL_PROTOCOL_MAX &&
               daemon->info.protocol < mfl_core_fit_demand(job).version;
}

bool mfl_core_fit_where(const struct mfl_daemon_info *info, const char *where)
{
        const struct mfl_where_daemon facts = {.name = info->name,
                .site = info->site[0] ? info->site : info->name,
                .node = info->node,
                .backend = info->backend,
                .tags = info->tags};
        return mfl_where_matches(where, &facts);
}

bool mfl_core_fit_is_wanted(const struct core_daemon *daemon, const struct core_job *job)
{
        return mfl_core_fit_where(&daemon->info, job->spec->selection.where);
}

const struct mfl_data_info *mfl_core_daemon_data(const struct core_daemon *daemon, const struct core_job *job)
{
        bool able = !mfl_core_fit_is_outdated(daemon, job) && mfl_core_fit_is_wanted(daemon, job);
        const struct mfl_data_info *data = able ? mfl_core_fit_find(daemon, job) : NULL;
        return data && mfl_core_fit_compare(data, job) == FIT ? data : NULL;
}

static bool may_join(const struct core_daemon *daemon, const struct core_job *job)
{
        const struct core_relation *relation = mfl_core_relation_find(daemon, job);
        return daemon->info.protocol >= MFL_PROTOCOL_SHARDS && !daemon->info.alone && daemon->info.instance &&
               !(relation && relation->barred);
}

/* It has the data set; a site's own data only the site's daemons have. */
static bool may_help(
        const struct core_daemon *d, const struct core_daemon *daemon, const struct core_job *job)
{
        return may_join(d, job) && mfl_core_daemon_data(d, job) &&
               (!mfl_core_job_is_local(job) || d->client == daemon->client) &&
               !strcmp(d->info.numerics, daemon->info.numerics);
}

/* The largest team in which all would do with its size. */
static uint32_t largest_team(const struct core_daemon *daemon, const struct core_job *job)
{
        uint32_t least[MFL_GROUP_MAX + 1] = {0}, most = 0;
        for (const struct core_daemon *d = daemon->node ? daemon->node->first : NULL; d; d = d->node_next)
                if (may_help(d, daemon, job))
                        least[MFL_MIN(mfl_core_daemon_team_least(d, job), MFL_GROUP_MAX)]++;
        for (uint32_t size = 1, n = 0; size <= MFL_GROUP_MAX; size++) {
                n += least[size];
                most = n >= size ? size : most;
        }
        return most;
}

uint32_t mfl_core_daemon_team_most(const struct core_daemon *daemon, const struct core_job *job)
{
        const struct mfl_job *spec = job->spec;
        if (!spec->parallel.grain || spec->parallel.within == MFL_WITHIN_DAEMON || !spec->parallel.zero ||
                spec->selection.assign == MFL_ASSIGN_MODULO || !may_join(daemon, job))
                return 1;
        uint32_t grains = mfl_job_grains(spec);
        uint32_t most = spec->parallel.members ? spec->parallel.members : MFL_TEAM_RANKS_MAX;
        if (spec->selection.daemons_max && !mfl_core_job_is_local(job))
                most = MFL_MIN(most, spec->selection.daemons_max);
        return MFL_MAX(1u, MFL_MIN(MFL_MIN(grains, most), largest_team(daemon, job)));
}

bool mfl_core_daemon_barred(const struct core_daemon *daemon, const struct core_job *job)
{
        const struct core_relation *relation = mfl_core_relation_find(daemon, job);
        return relation &&
               (relation->barred || (relation->team_least > 1 &&
                                            relation->team_least > mfl_core_daemon_team_most(daemon, job)));
}

bool mfl_core_daemon_usable(const struct core_daemon *daemon, const struct core_job *job)
{
        if (!daemon->conn || !mfl_core_daemon_takes_work(daemon) || !mfl_core_daemon_data(daemon, job))
                return false;
        const struct core_relation *relation = mfl_core_relation_find(daemon, job);
        return !relation ||
               (!mfl_core_daemon_barred(daemon, job) && !relation->asks &&
                       relation->rest_stamp != job->stamp && !mfl_core_cut_differs(relation, job));
}
