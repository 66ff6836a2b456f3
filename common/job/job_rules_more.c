/* SPDX-License-Identifier: Apache-2.0 */
/* Combinations with own training programs, privacy and secure sums. */
#include "common/job/job_rules.h"

#include "common/job/job_compression.h"
#include "common/privacy/matrix.h"
#include "common/secure/shares.h"

static bool has_program(const struct mfl_job *job)
{
        return mfl_job_has_program(job);
}

static bool program_layers(const struct mfl_job *job)
{
        return has_program(job) && !job->model.tensors;
}

static bool tensors_alone(const struct mfl_job *job)
{
        return !has_program(job);
}

static bool program_virtual(const struct mfl_job *job)
{
        return has_program(job) && job->time == MFL_TIME_VIRTUAL;
}

static bool program_by_samples(const struct mfl_job *job)
{
        return has_program(job) && job->selection.kind >= MFL_SELECT_WEIGHTED;
}

static bool program_cut(const struct mfl_job *job)
{
        return mfl_job_owns_data(job) && job->data.partition > MFL_PARTITION_IID;
}

static bool private_adaptive(const struct mfl_job *job)
{
        return is_private(job) && job->aggregation.mu_adaptive;
}

static bool private_personal(const struct mfl_job *job)
{
        return is_private(job) && is_personal(job);
}

static bool private_rounds(const struct mfl_job *job)
{
        return is_private(job) && (rounds(job) || mfl_job_cuts(job));
}

static bool private_virtual(const struct mfl_job *job)
{
        return is_private(job) && !real(job);
}

static bool private_attacked(const struct mfl_job *job)
{
        return is_private(job) && attacks_rows(job);
}

static bool private_by_samples(const struct mfl_job *job)
{
        return mfl_privacy_of_sums(&job->privacy) && job->aggregation.weighting == MFL_WEIGHT_SAMPLES;
}

static bool is_correlated(const struct mfl_job *job)
{
        return job->privacy.mechanism != MFL_MECHANISM_GAUSSIAN;
}

static bool correlated_elsewhere(const struct mfl_job *job)
{
        return is_correlated(job) && job->privacy.kind != MFL_PRIVACY_CENTRAL;
}

static bool correlated_mixed(const struct mfl_job *job)
{
        return is_correlated(job) && job->selection.kind != MFL_SELECT_SEPARATED;
}

static bool correlated_adaptive(const struct mfl_job *job)
{
        return is_correlated(job) && job->privacy.adaptive;
}

static bool correlated_long(const struct mfl_job *job)
{
        return is_correlated(job) && job->rounds > MFL_MATRIX_ROUNDS_MAX;
}

static bool correlated_secure(const struct mfl_job *job)
{
        return is_correlated(job) && job->secure.bits;
}

static bool shared_plainly(const struct mfl_job *job)
{
        return is_distributed(job) && !job->secure.bits;
}

static bool shared_adaptive(const struct mfl_job *job)
{
        return is_distributed(job) && job->privacy.adaptive;
}

static bool shared_divided(const struct mfl_job *job)
{
        return is_distributed(job) && job->privacy.clients;
}

static bool shared_by_nobody(const struct mfl_job *job)
{
        return is_distributed(job) && job->limits.quorum <= job->secure.bad;
}

static bool shared_chosen(const struct mfl_job *job)
{
        return is_distributed(job) && job->selection.clients > MFL_SECURE_SHARES_MOST && is_local(job);
}

static bool secure_private_narrow(const struct mfl_job *job)
{
        return job->secure.bits && job->secure.bits < 64 && is_private(job);
}

static bool secure_private_packs(const struct mfl_job *job)
{
        return job->secure.bits && is_private(job) && (job->compression.up || private_rounds(job));
}

static bool evaluates_withheld(const struct mfl_job *job)
{
        return is_private(job) && mfl_privacy_withholds(&job->privacy) && job->evaluation.every &&
               (is_local(job) || job->evaluation.on != MFL_EVALUATE_TEST);
}

static bool private_chosen(const struct mfl_job *job)
{
        bool all = job->selection.kind == MFL_SELECT_UNIFORM && !job->selection.clients;
        return is_central(job) && !all && job->selection.kind != MFL_SELECT_POISSON && !is_correlated(job);
}

static bool private_local(const struct mfl_job *job)
{
        return is_central(job) && is_local(job) && !job->privacy.clients;
}

static bool private_population(const struct mfl_job *job)
{
        return is_private(job) && !is_local(job);
}

static bool at_sites_elsewhere(const struct mfl_job *job)
{
        return job->privacy.kind == MFL_PRIVACY_LOCAL && !is_local(job);
}

static bool at_sites_divided(const struct mfl_job *job)
{
        return job->privacy.kind == MFL_PRIVACY_LOCAL && job->privacy.clients;
}

static bool at_sites_in_teams(const struct mfl_job *job)
{
        return job->privacy.kind == MFL_PRIVACY_LOCAL && job->parallel.grain &&
               job->parallel.within != MFL_WITHIN_DAEMON;
}

static bool adapts_at_sites(const struct mfl_job *job)
{
        return job->privacy.kind == MFL_PRIVACY_LOCAL && job->privacy.adaptive;
}

/* The bits' noise is m / 20 for m expected clients, and takes a share of the noise: 2 m / 20 must be above it. */
static bool adapts_to_few(const struct mfl_job *job)
{
        uint32_t clients = job->privacy.clients ? job->privacy.clients : job->data.clients;
        return is_central(job) && job->privacy.adaptive &&
               mfl_job_rate(job) * clients <= 10 * job->privacy.noise;
}

static bool private_limited(const struct mfl_job *job)
{
        return is_private(job) &&
               job->aggregation.delta_max < job->privacy.clip * (job->privacy.adaptive ? 64 : 1);
}

static bool is_secure(const struct mfl_job *job)
{
        return job->secure.bits;
}

static bool secure_rows(const struct mfl_job *job)
{
        return is_secure(job) && !(mfl_job_is_robust(job) && job->aggregation.robust.unit == MFL_ROWS_BUCKET);
}

static bool secure_median(const struct mfl_job *job)
{
        const struct mfl_robust_spec *spec = &job->aggregation.robust;
        return is_secure(job) && spec->has_update_clip && spec->update_clip == 0;
}

static bool secure_virtual(const struct mfl_job *job)
{
        return is_secure(job) && !real(job);
}

static bool secure_packs(const struct mfl_job *job)
{
        return is_secure(job) && job->compression.up && !rounds(job);
}

static bool secure_exact(const struct mfl_job *job)
{
        return is_secure(job) && job->secure.bits < 64 && !rounds(job);
}

static bool secure_attacked(const struct mfl_job *job)
{
        return is_secure(job) && attacks_rows(job);
}

static bool secure_chosen(const struct mfl_job *job)
{
        return is_secure(job) && (by_loss(job) || job->selection.kind == MFL_SELECT_POISSON);
}

static bool secure_few(const struct mfl_job *job)
{
        uint32_t n = job->selection.clients;
        return is_secure(job) &&
               ((n && n < MFL_SECURE_LEAST) || (!is_local(job) && job->data.clients < MFL_SECURE_LEAST));
}

static bool cuts_adaptive(const struct mfl_job *job)
{
        return mfl_job_cuts(job) && job->aggregation.mu_adaptive;
}

static bool kept_for_all(const struct mfl_job *job)
{
        return !is_local(job) && job->client_state == MFL_CLIENT_STATE_DAEMON;
}

static bool without(const struct mfl_job *job)
{
        return job->selection.n_without;
}

static bool local_without(const struct mfl_job *job)
{
        return without(job) && is_local(job);
}

static bool hidden_without(const struct mfl_job *job)
{
        return without(job) && (is_private(job) || job->secure.bits);
}

static bool shows(const struct mfl_job *job)
{
        return job->debug.deltas;
}

static bool shows_personal(const struct mfl_job *job)
{
        return shows(job) && is_personal(job);
}

static bool shows_private(const struct mfl_job *job)
{
        return shows(job) && is_private(job);
}

static bool shows_secure(const struct mfl_job *job)
{
        return shows(job) && job->secure.bits;
}

static bool regions(const struct mfl_job *job)
{
        return mfl_job_has_regions(job);
}

static bool regions_packed(const struct mfl_job *job)
{
        return job->edges.count;
}

static bool regions_adaptive(const struct mfl_job *job)
{
        return regions(job) && job->aggregation.mu_adaptive;
}

static bool regions_poisson(const struct mfl_job *job)
{
        return regions(job) && job->selection.kind == MFL_SELECT_POISSON;
}

static bool regions_clipped(const struct mfl_job *job)
{
        return regions(job) && job->aggregation.robust.has_update_clip;
}

const struct mfl_job_rule mfl_job_rules_more[] = {
        {{"edges", "strategies other than fedavg and its server optimizers, without unit: server",
                 "takes the mean of each region's clients: write fedavg, fedavgm, fedadagrad, fedadam, "
                 "fedyogi "
                 "or fedprox; a robust rule needs unit: server, and compares the regions"},
                ~AVERAGES, regions, "", "edges"},
        {{"edges", "mu: adaptive", "adaptive follows one model's loss; write a number"}, ONLY(FEDPROX),
                regions_adaptive, "aggregation", "mu"},
        {{"edges", "update_clip", "is not supported with regions yet; remove it"}, ANY, regions_clipped,
                "aggregation", "update_clip"},
        {{"edges", "compression",
                 "is for sums of updates, and regions take each client's by itself; remove it"},
                ANY, regions_packed, "", "compression"},
        {{"edges", "privacy", "is not supported with edges yet; remove one of the two"}, ANY, regions_packed,
                "", "privacy"},
        {{"edges", "secure_sum", "is not supported with edges yet; remove one of the two"}, ANY,
                regions_packed, "", "secure_sum"},
        {{"edges", "personal", "is not supported with edges yet; remove one of the two"}, ANY, regions_packed,
                "", "personal"},
        {{"edges", "parallel",
                 "clients that start from several params can't be trained by several workers together yet; "
                 "remove `parallel`"},
                ANY, regions_packed, "", "parallel"},
        {{"edges", "selection: poisson", "may draw nobody; write uniform"}, ANY, regions_poisson, "selection",
                "kind"},
        {{"selection.without", "partition: local",
                 "names clients by their numbers, and with partition local they are sites: remove it, and "
                 "end the "
                 "site's daemons"},
                ANY, local_without, "selection", "without"},
        {{"selection.without", "strategy: fedbuff or fedasync",
                 "is for rounds, which clients that don't wait for each other do not have; remove it"},
                ASYNC, without, "selection", "without"},
        {{"selection.without", "privacy or secure_sum",
                 "is not supported with privacy and secure_sum yet, whose rounds have their clients by "
                 "chance; "
                 "remove it"},
                ANY, hidden_without, "selection", "without"},
        {{"debug.deltas", "privacy",
                 "would show people the change of each client, which privacy hides; remove it"},
                ANY, shows_private, "debug", "deltas"},
        {{"debug.deltas", "secure_sum",
                 "needs each client's change, and with secure_sum the server sees their sum alone; remove "
                 "it"},
                ANY, shows_secure, "debug", "deltas"},
        {{"debug.deltas", "strategy: fednova or qfedavg",
                 "is not supported where daemons fold clients' weights into their changes; remove it"},
                ONLY(FEDNOVA) | ONLY(QFEDAVG), shows, "debug", "deltas"},
        {{"debug.deltas", "personal",
                 "would show people the layers that stay with each client; remove one of the two"},
                ANY, shows_personal, "debug", "deltas"},
        {{"compression: top_k", "strategies other than fedavg and its server optimizers",
                 "keeps what a client did not send for its next turn, which only a plain mean makes up for: "
                 "write "
                 "strategy: fedavg, fedavgm, fedadagrad, fedadam, fedyogi or fedprox. Others keep a state of "
                 "their "
                 "own, weigh clients otherwise, or compare whole updates; with them write up: bf16 or "
                 "lossless, if "
                 "at all"},
                ~AVERAGES, mfl_job_cuts, "compression", "up"},
        {{"compression: top_k", "mu: adaptive", "adaptive is not supported with top_k; write a number"},
                ONLY(FEDPROX), cuts_adaptive, "aggregation", "mu"},
        {{"compression: top_k", "update_clip",
                 "would shorten a change before what is not sent of it is kept; remove it, or top_k"},
                ANY, mfl_job_cuts, "aggregation", "update_clip"},
        {{"compression: top_k", "parallel",
                 "clients that keep a state can't be trained by several workers together yet; remove "
                 "`parallel`"},
                ANY, mfl_job_cuts, "", "parallel"},
        {{"client_state: daemon", "partitions other than local",
                 "daemon needs sites that keep their own client: with a population clients move from daemon "
                 "to "
                 "daemon; write server"},
                ANY, kept_for_all, "", "client_state"},
        {{"program", "model: layers, preset or onnx",
                 "trains a model that only it knows: write model: {initial: FILE.safetensors}, whose tensors "
                 "are its params"},
                ANY, program_layers, "training", "program"},
        {{"model: tensors", "training without program",
                 "have no layers that mfl can train; name the program that does: training: {program: NAME}"},
                ANY, tensors_alone, "model", "tensors"},
        {{"program", "strategies that change local training",
                 "needs local training of mfl's own: a program would have to add its terms or tell its "
                 "steps; "
                 "write "
                 "fedavg, one of its server optimizers, or a robust rule"},
                TRAINS_APART, has_program, "aggregation", "strategy"},
        {{"program", "parallel", "shares out steps of mfl's own training, and a program has none; remove it"},
                ANY, has_program, "", "parallel"},
        {{"program", "personal", "is done by mfl's own training; keep such tensors in the program"}, ANY,
                has_program, "", "personal"},
        {{"program", "augment", "is done by mfl's own training; do it in the program"}, ANY, has_program,
                "data", "augment"},
        {{"program", "time: virtual",
                 "needs the number of each client's steps, and only its program knows them; write real"},
                ANY, program_virtual, "", "time"},
        {{"program", "selection by samples or loss",
                 "needs figures of each client that a program does not tell; write uniform, separated or "
                 "poisson"},
                ANY, program_by_samples, "selection", "kind"},
        {{"program with its own data", "partitions other than local and iid",
                 "needs samples, and here only the program has them: write local, or iid, whose clients the "
                 "program "
                 "tells apart by their numbers, or name a data set of the daemons"},
                ANY, program_cut, "data", "partition"},
        {{"program", "evaluation on",
                 "is not supported with a program yet, which has test samples; remove it"},
                ANY, has_program, "evaluation", "on"},
        {{"program", "evaluation metrics", "count predictions that only the program sees; remove them"}, ANY,
                has_program, "evaluation", "metrics"},
        {{"program", "evaluation detailed", "counts predictions that only the program sees; remove it"}, ANY,
                has_program, "evaluation", "detailed"},
        {{"program", "simulation", "changes mfl's own training; remove it, or let the program do it"}, ANY,
                has_program, "", "simulation"},
        {{"privacy", "strategies other than fedavg and its server optimizers",
                 "needs a strategy that only adds up clients' changes: fedavg, fedavgm, fedadagrad, fedadam, "
                 "fedyogi "
                 "or fedprox. Others look at single updates or losses, or keep states of clients, which the "
                 "noise "
                 "of a sum does not hide"},
                ~AVERAGES, is_private, "", "privacy"},
        {{"privacy", "mu: adaptive",
                 "adaptive follows the training losses, which have no noise; write a number"},
                ONLY(FEDPROX), private_adaptive, "aggregation", "mu"},
        {{"privacy", "personal", "personal layers are not supported with privacy yet; remove one of the two"},
                ANY, private_personal, "", "privacy"},
        {{"privacy", "secure_sum.bits below 64",
                 "noise has the grid of exact sums, which take 64 bits: write secure_sum: {bits: 64}, "
                 "without "
                 "compression.up"},
                ANY, secure_private_narrow, "secure_sum", "bits"},
        {{"privacy and secure_sum", "compression.up",
                 "clipping and noise have a grid of their own, and masked updates can't be packed; remove "
                 "it"},
                ANY, secure_private_packs, "compression", "up"},
        {{"privacy", "compression: bits or top_k",
                 "bits and top_k are of no use with privacy, whose clipping and noise have a grid of their "
                 "own; "
                 "write "
                 "lossless"},
                ANY, private_rounds, "compression", "up"},
        {{"privacy", "time: virtual", "virtual is not supported with privacy yet; write real"}, ANY,
                private_virtual, "", "time"},
        {{"privacy", "simulation: an attack on updates",
                 "bad clients change single updates, which a job with privacy does not have; remove it"},
                ANY, private_attacked, "", "simulation"},
        {{"privacy", "weighting: samples",
                 "a client must not count more than others: write uniform, or remove it"},
                ANY, private_by_samples, "aggregation", "weighting"},
        {{"privacy", "selection other than poisson, or of all",
                 "the cost of a round is only known if each client is drawn by itself, or all take part: "
                 "write "
                 "selection: {kind: poisson, rate: 0.1}, or no selection"},
                ANY, private_chosen, "", "selection"},
        {{"privacy", "partition: local without privacy.clients",
                 "needs clients, the number of sites by which a round's sum is divided: a number that does "
                 "not "
                 "depend on who is there"},
                ANY, private_local, "", "privacy"},
        {{"privacy.clients", "partitions other than local", "is data.clients for a population; remove it"},
                ANY, private_population, "privacy", "clients"},
        {{"privacy: local", "partitions other than local",
                 "noise is made where the data are, with a key of that site: write partition: local, or "
                 "kind: "
                 "central"},
                ANY, at_sites_elsewhere, "", "privacy"},
        {{"privacy: local", "privacy.clients", "is the divisor of kind: central; remove it"}, ANY,
                at_sites_divided, "privacy", "clients"},
        {{"privacy: local", "parallel beyond one daemon",
                 "daemons of a team exchange gradients without noise; write within: daemon, or remove "
                 "parallel"},
                ANY, at_sites_in_teams, "", "parallel"},
        {{"privacy: local", "clip: adaptive", "adaptive is for kind: central; write a number, such as 1.0"},
                ANY, adapts_at_sites, "", "privacy"},
        {{"privacy.clip: adaptive", "10 * noise expected clients in a round, or fewer",
                 "adaptive asks each client whether its change is shorter than the clip, and hiding the "
                 "answers of so "
                 "few clients takes all the noise; write a number, less noise, or a higher rate"},
                ANY, adapts_to_few, "privacy", "clip"},
        {{"privacy.mechanism: bisr or bsr", "kinds other than central",
                 "the server adds correlated noise; write kind: central, or mechanism: gaussian"},
                ANY, correlated_elsewhere, "privacy", "mechanism"},
        {{"privacy.mechanism: bisr or bsr", "selection other than separated",
                 "correlated noise counts on turns that are far apart: write selection: {kind: separated, "
                 "separation: 10}, or mechanism: gaussian"},
                ANY, correlated_mixed, "privacy", "mechanism"},
        {{"privacy.mechanism: bisr or bsr", "clip: adaptive",
                 "adaptive asks for bits in each round, whose noise is not correlated; write a number"},
                ANY, correlated_adaptive, "privacy", "mechanism"},
        {{"privacy.mechanism: bisr or bsr", "more than 10,000 rounds",
                 "correlated noise is worked out for 10000 rounds at most"},
                ANY, correlated_long, "privacy", "mechanism"},
        {{"privacy.mechanism: bisr or bsr", "secure_sum",
                 "a sum that can't be opened again has no place in correlated noise; write mechanism: "
                 "gaussian"},
                ANY, correlated_secure, "privacy", "mechanism"},
        {{"privacy: distributed", "no secure_sum",
                 "is noise that daemons share under the masks of a secure sum: write secure_sum: {bits: 64}, "
                 "or "
                 "kind: local"},
                ANY, shared_plainly, "", "privacy"},
        {{"privacy: distributed", "clip: adaptive",
                 "adaptive is for kind: central; write a number, such as 1.0"},
                ANY, shared_adaptive, "privacy", "clip"},
        {{"privacy: distributed", "privacy.clients",
                 "is the divisor of kind: central; here sums are divided by the clients in them; remove it"},
                ANY, shared_divided, "privacy", "clients"},
        {{"privacy: distributed", "limits.quorum that is not above secure_sum.bad",
                 "all that may be left may be bad, and nobody's noise is sure: write a larger limits.quorum, "
                 "or a smaller secure_sum.bad"},
                ANY, shared_by_nobody, "limits", "quorum"},
        {{"privacy: distributed", "more than 20 sites in a round",
                 "participants all share masks with each other, which 20 can; write selection: {clients: "
                 "20}"},
                ANY, shared_chosen, "selection", "clients"},
        {{"privacy.metrics: withheld", "evaluation at sites or on clients",
                 "would tell of their data without noise, and no ledger would count it: write evaluation: "
                 "{every: 0}, or, if the server may know, privacy: {metrics: plain}"},
                ANY, evaluates_withheld, "", "privacy"},
        {{"privacy", "delta_max below clip",
                 "a client with a longer element would be left out instead of clipped; write at least "
                 "privacy.clip, or remove it"},
                ANY, private_limited, "aggregation", "delta_max"},
        {{"secure_sum", "strategies that look at single updates, or keep something of each client",
                 "the server sees sums of updates alone: write fedavg, fedavgm, fedadagrad, fedadam, "
                 "fedyogi, "
                 "fedprox, fednova or qfedavg, or a robust strategy with unit: bucket"},
                ~(AVERAGES | ONLY(FEDNOVA) | ONLY(QFEDAVG)), secure_rows, "", "secure_sum"},
        {{"secure_sum", "fewer than 3 clients in a round",
                 "a sum of two tells each of them the other's update; a round needs at least 3 clients"},
                ANY, secure_few, "", "secure_sum"},
        {{"secure_sum", "personal",
                 "the server takes updates of clients with personal layers one by one; remove one of the "
                 "two"},
                ANY, is_secure, "", "personal"},
        {{"secure_sum", "compression: up: lossless or bf16",
                 "masked updates look like noise, and can't be packed; remove it, or write {bits: 16}, with "
                 "secure_sum: {bits: 32}"},
                ANY, secure_packs, "compression", "up"},
        {{"secure_sum.bits below 64", "changes that are not rounded",
                 "exact sums take 64 bits; for a narrower ring round clients' changes, compression: {up: "
                 "{bits: 16}}, or write 64"},
                ANY, secure_exact, "secure_sum", "bits"},
        {{"secure_sum", "parallel",
                 "clients that are trained by several workers together are not supported with secure_sum "
                 "yet; "
                 "remove it"},
                ANY, is_secure, "", "parallel"},
        {{"secure_sum", "training.program",
                 "updates of programs are not masked yet; remove it, or secure_sum"},
                ANY, is_secure, "training", "program"},
        {{"secure_sum", "time: virtual", "virtual is not supported with secure_sum yet; write real"}, ANY,
                secure_virtual, "", "time"},
        {{"secure_sum", "simulation: an attack on updates",
                 "bad clients change single updates, which the server does not see; remove it"},
                ANY, secure_attacked, "", "simulation"},
        {{"secure_sum", "selection: power-of-choice, oort or poisson",
                 "the first two need each client's losses, and poisson may draw fewer than 3 clients; write "
                 "uniform"},
                ANY, secure_chosen, "selection", "kind"},
        {{"secure_sum", "update_clip: median",
                 "the median needs each update by itself; write a number, to which daemons shorten updates"},
                ANY, secure_median, "aggregation", "update_clip"},
};

const size_t mfl_job_rules_more_count = MFL_ARRAY_SIZE(mfl_job_rules_more);
