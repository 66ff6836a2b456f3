/* SPDX-License-Identifier: Apache-2.0 */
/* Replays the proof of a job's ONNX file. */
#include "cli/job/proof.h"

#include "cli/proof/proof.h"

#define HOW "mfl_export.save(net, example, file) writes one (see pytorch.md)"

/* The model as the file has it. */
static int build(const struct mfl_job *job, const struct mfl_onnx_model *model, struct mfl_graph **ret_graph,
        struct mfl_error *err)
{
        struct mfl_job plain = *job;
        plain.model.lora.rank = 0;
        plain.model.freeze.n = 0;
        plain.by_layers = true;
        int r = mfl_job_graph(&plain, &model->input, model->classes, ret_graph, err);
        if (!r)
                mfl_assert((*ret_graph)->n == model->n);
        return r;
}

static void note_unproved(struct mfl_submission *s, const struct mfl_onnx_model *model)
{
        size_t used = strlen(s->notes);
        if (model->own)
                return;
        if (model->no_proof[0])
                mfl_snprintf(s->notes + used, sizeof s->notes - used,
                        "the ONNX file has no proof that mfl computes what PyTorch does: %s\n",
                        model->no_proof);
        else if (model->said)
                mfl_snprintf(s->notes + used, sizeof s->notes - used,
                        "the ONNX file has no proof that mfl computes what PyTorch does, and it does not say "
                        "which "
                        "parameters are frozen (all are trained), what is detached, or what the export "
                        "merged; " HOW "\n");
        else if (!model->described)
                mfl_snprintf(s->notes + used, sizeof s->notes - used,
                        "the ONNX file has no proof that mfl computes what PyTorch does, and it does not say "
                        "which "
                        "weights are tied or frozen, which are buffers, what is detached, or what the "
                        "export merged or "
                        "dropped; " HOW "\n");
        else
                mfl_snprintf(s->notes + used, sizeof s->notes - used,
                        "the ONNX file has no proof that mfl computes what PyTorch does; " HOW "\n");
}

int mfl_job_prove(struct mfl_submission *s, const struct mfl_onnx_model *model, const char *prover,
        struct mfl_error *err)
{
        struct mfl_graph *graph;
        struct mfl_error why;
        if (!model->proof) {
                note_unproved(s, model);
                return 0;
        }
        int r = build(s->job, model, &graph, err);
        if (r)
                return r;
        r = mfl_proof_replay(
                model->proof, graph, model->params, s->job->training.auxiliary.n, prover, s->proof, &why);
        mfl_graph_free(graph);
        return r > 0 ? mfl_fail(err, r, "%s: %s", s->path, why.text)
               : r   ? mfl_fail(err, r, "%s", why.text)
                     : 0;
}
