/* SPDX-License-Identifier: Apache-2.0 */
/* Gates of LSTM and GRU at one position: a thread for each row and hidden unit. */
#include "kernels/cuda/ops_common.h"
#include "kernels/cuda/ops_sequence.h"

struct unit {
        int u;
        int64_t gate, hidden; /* of this position: its first gate, its place in cell and output */
        int64_t state;        /* in dh, dc */
        bool exists;
};

MFL_DEVICE struct unit unit_of(const struct mfl_cuda_recurrent *a)
{
        struct unit at;
        int64_t i = MFL_GLOBAL_INDEX, n = (int64_t)a->batch * a->hidden;
        at.exists = i < n && mfl_cuda_rows(&a->steps, blockIdx.y) > 0;
        at.u = (int)(i % a->hidden);
        int64_t place =
                ((int64_t)blockIdx.y * a->batch + i / a->hidden) * a->positions + (int64_t)a->position;
        at.gate = place * 4 * a->hidden + at.u;
        at.hidden = place * a->hidden + at.u;
        at.state = (int64_t)blockIdx.y * n + i;
        return at;
}

/* Both biases of row `gate` * hidden + u of the weights. */
MFL_DEVICE float bias_of(const struct mfl_cuda_recurrent *a, const float *bias, int gate, int u)
{
        return bias ? bias[blockIdx.y * a->stride + (uint64_t)(gate * a->hidden + u)] : 0.0f;
}

MFL_DEVICE float sum_of(const struct mfl_cuda_recurrent *a, const struct unit *at, int gate)
{
        return a->gates[at->gate + (int64_t)gate * a->hidden] +
               (bias_of(a, a->bias_ih, gate, at->u) + bias_of(a, a->bias_hh, gate, at->u));
}

MFL_KERNEL(lstm_forward, struct mfl_cuda_recurrent)
{
        struct unit at = unit_of(&a);
        if (!at.exists)
                return;
        float *gate = a.gates + at.gate;
        int64_t n = a.hidden;
        float i = mfl_sigmoid(sum_of(&a, &at, 0)), f = mfl_sigmoid(sum_of(&a, &at, 1));
        float g = tanhf(sum_of(&a, &at, 2)), o = mfl_sigmoid(sum_of(&a, &at, 3));
        float c = f * (a.position ? a.cell[at.hidden - n] : 0.0f) + i * g;
        gate[0] = i;
        gate[n] = f;
        gate[2 * n] = g;
        gate[3 * n] = o;
        a.cell[at.hidden] = c;
        mfl_store(a.out, at.hidden, o * tanhf(c), a.type);
}

MFL_KERNEL(gru_forward, struct mfl_cuda_recurrent)
{
        struct unit at = unit_of(&a);
        if (!at.exists)
                return;
        float *gate = a.gates + at.gate;
        int64_t n = a.hidden;
        float r = mfl_sigmoid(sum_of(&a, &at, 0)), z = mfl_sigmoid(sum_of(&a, &at, 1));
        float hidden = (a.position ? gate[3 * n] : 0.0f) + bias_of(&a, a.bias_hh, 2, at.u);
        float c = tanhf(gate[2 * n] + bias_of(&a, a.bias_ih, 2, at.u) + r * hidden);
        float before = a.position ? mfl_load(a.out, at.hidden - n, a.type) : 0.0f;
        gate[0] = r;
        gate[n] = z;
        gate[2 * n] = c;
        gate[3 * n] = hidden;
        mfl_store(a.out, at.hidden, (1.0f - z) * c + z * before, a.type);
}

/* The gradient of this position's output. */
MFL_DEVICE float asked(const struct mfl_cuda_recurrent *a, const struct unit *at)
{
        float dy = mfl_load(a->dout, at->hidden, a->type);
        return a->position + 1 < a->positions ? a->dh[at->state] + dy : dy;
}

MFL_KERNEL(lstm_backward, struct mfl_cuda_recurrent)
{
        struct unit at = unit_of(&a);
        if (!at.exists)
                return;
        float *gate = a.gates + at.gate, dh = asked(&a, &at);
        int64_t n = a.hidden;
        float i = gate[0], f = gate[n], g = gate[2 * n], o = gate[3 * n], c = tanhf(a.cell[at.hidden]);
        float before = a.position ? a.cell[at.hidden - n] : 0.0f;
        float d = (a.position + 1 < a.positions ? a.dc[at.state] : 0.0f) + mfl_tanh_grad(c, dh * o);
        gate[0] = mfl_sigmoid_grad(i, d * g);
        gate[n] = mfl_sigmoid_grad(f, d * before);
        gate[2 * n] = mfl_tanh_grad(g, d * i);
        gate[3 * n] = mfl_sigmoid_grad(o, dh * c);
        a.dc[at.state] = d * f;
}

MFL_KERNEL(gru_backward, struct mfl_cuda_recurrent)
{
        struct unit at = unit_of(&a);
        if (!at.exists)
                return;
        float *gate = a.gates + at.gate, dh = asked(&a, &at);
        int64_t n = a.hidden;
        float r = gate[0], z = gate[n], c = gate[2 * n], hidden = gate[3 * n];
        float before = a.position ? mfl_load(a.out, at.hidden - n, a.type) : 0.0f;
        float dn = mfl_tanh_grad(c, dh * (1.0f - z));
        gate[0] = mfl_sigmoid_grad(r, dn * hidden);
        gate[n] = mfl_sigmoid_grad(z, dh * (before - c));
        gate[2 * n] = dn;
        gate[3 * n] = dn * r;
        a.dh[at.state] = dh * z;
}

MFL_KERNEL(recurrent_biases, struct mfl_cuda_recurrent)
{
        int64_t n = 4 * (int64_t)a.hidden, u = MFL_GLOBAL_INDEX, places = (int64_t)a.batch * a.positions;
        if (u >= n || mfl_cuda_rows(&a.steps, blockIdx.y) == 0)
                return;
        float sum = 0.0f;
        for (int64_t i = 0; i < places; i++)
                sum += a.gates[((int64_t)blockIdx.y * places + i) * n + u];
        bool share = !a.lstm && u >= 3 * (int64_t)a.hidden, input = !a.lstm && u >= 2 * (int64_t)a.hidden;
        if (!share)
                a.dbias_ih[blockIdx.y * a.stride + (uint64_t)u] = sum;
        if (share)
                a.dbias_hh[blockIdx.y * a.stride + (uint64_t)(u - a.hidden)] = sum;
        else if (!input)
                a.dbias_hh[blockIdx.y * a.stride + (uint64_t)u] = sum;
}

static cudaError_t launch_units(
        const void *kernel, const struct mfl_cuda_recurrent *a, int64_t n, cudaStream_t stream)
{
        if (a->groups < 1 || a->groups > 65535 || n < 1 || n >= (int64_t)1 << 31)
                return cudaErrorInvalidValue;
        return mfl_ops_launch_flat(kernel, n, a->groups, stream, a);
}

MFL_HOST cudaError_t mfl_cuda_recurrent_forward(const struct mfl_cuda_recurrent *a, cudaStream_t stream)
{
        return launch_units(a->lstm ? (const void *)(lstm_forward) : (const void *)(gru_forward), a,
                (int64_t)a->batch * a->hidden, stream);
}

MFL_HOST cudaError_t mfl_cuda_recurrent_backward(const struct mfl_cuda_recurrent *a, cudaStream_t stream)
{
        return launch_units(a->lstm ? (const void *)(lstm_backward) : (const void *)(gru_backward), a,
                (int64_t)a->batch * a->hidden, stream);
}

MFL_HOST cudaError_t mfl_cuda_recurrent_biases(const struct mfl_cuda_recurrent *a, cudaStream_t stream)
{
        return launch_units((const void *)(recurrent_biases), a, 4 * (int64_t)a->hidden, stream);
}
