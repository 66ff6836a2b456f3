/* SPDX-License-Identifier: Apache-2.0 */
/* unary.def: derivatives against central differences in double, values that PyTorch gives, parameters. */
#include <math.h>
#include <string.h>

#include "common/model/unary.h"
#include "kernels/bodies.h"
#include "kernels/reference/layer.h"
#include "tests/lib/test.h"

/* The parameters that tests use. */
static double test_param(const struct mfl_unary *f, int k)
{
        return k < f->n_params ? (double)f->params[k].otherwise : 0;
}

/* Whether the derivative jumps between x - h and x + h: the one-sided differences differ. */
static bool jumps(enum mfl_curve curve, double x, double h, double a, double b)
{
        double y = mfl_curve_value(curve, x, a, b), left = (y - mfl_curve_value(curve, x - h, a, b)) / h,
               right = (mfl_curve_value(curve, x + h, a, b) - y) / h;
        return fabs(left - right) > 0.01 * (1 + fabs(left));
}

static void derivatives_are_those_of_the_values(void **state)
{
        const double h = 1e-5;
        for (int i = 0; i < MFL_CURVE_COUNT_; i++) {
                const struct mfl_unary *f = &mfl_unaries[i];
                enum mfl_curve curve = (enum mfl_curve)i;
                if (curve == MFL_CURVE_DETACH) /* its derivative is 0 by definition: below */
                        continue;
                double a = test_param(f, 0), b = test_param(f, 1), low = (double)f->low,
                       high = (double)f->high;
                int n_jumps = 0;
                for (int k = 0; k < 1000; k++) {
                        double x = low + (k + 0.5) / 1000 * (high - low), y = mfl_curve_value(curve, x, a, b);
                        double v = f->reads & MFL_READS_OUTPUT ? y : x;
                        double got = mfl_curve_grad(curve, v, 1, a, b);
                        double want =
                                (mfl_curve_value(curve, x + h, a, b) - mfl_curve_value(curve, x - h, a, b)) /
                                (2 * h);
                        if (jumps(curve, x, h, a, b)) {
                                assert_true(f->kinked);
                                n_jumps++;
                        } else if (!(fabs(got - want) <= 1e-8 * (1 + fabs(want)) + 1e-7)) {
                                fail_msg("%s: at %.9g the derivative is %.9g, not %.9g", f->name, x, got,
                                        want);
                        }
                        /* Linear in dy, exactly. */
                        assert_true(mfl_curve_grad(curve, v, -2, a, b) == -2 * got);
                }
                assert_true(n_jumps <= 2);
        }
}

/* y and dx of dy = 1, as torch 2.x gives them in double. */
static void functions_are_those_of_pytorch(void **state)
{
        static const struct {
                enum mfl_curve curve;
                double x, a, b, y, dx;
        } points[] = {
                {MFL_CURVE_ABS, 0, 0, 0, 0, 0},
                {MFL_CURVE_ABS, -2, 0, 0, 2, -1},
                {MFL_CURVE_SELU, -1, 0, 0, -1.1113307378125625, 0.646768603034814},
                {MFL_CURVE_SELU, 0, 0, 0, 0, 1.7580993408473766},
                {MFL_CURVE_CELU, -1, 2, 0, -0.78693868057473315, 0.60653065971263342},
                {MFL_CURVE_MISH, 1, 0, 0, 0.86509838826731034, 1.0490362200997922},
                {MFL_CURVE_SOFTSIGN, -3, 0, 0, -0.75, 0.0625},
                {MFL_CURVE_HARDTANH, 2, -1, 2, 2, 0},
                {MFL_CURVE_HARDSHRINK, 0.5, 0.5, 0, 0, 0},
                {MFL_CURVE_SOFTSHRINK, -1.5, 0.5, 0, -1, 1},
                {MFL_CURVE_THRESHOLD, 0.1, 0.1, 20, 20, 0},
                {MFL_CURVE_LOGSIGMOID, -50, 0, 0, -50, 1},
                {MFL_CURVE_TANHSHRINK, 1, 0, 0, 0.23840584404423515, 0.5800256583859739},
                {MFL_CURVE_POW, -2, 3, 0, -8, 12},
                {MFL_CURVE_POW, 0, 0, 0, 1, 0},
                {MFL_CURVE_DETACH, -1.5, 0, 0, -1.5, 0},
                {MFL_CURVE_FMOD, -1.5, 1, 0, -0.5, 1},
                {MFL_CURVE_FMOD, 5.25, -2, 0, 1.25, 1},
                {MFL_CURVE_ATAN, -40, 0, 0, -1.5458015331759765, 0.00062460961898813237},
                {MFL_CURVE_ACOS, -1, 0, 0, 3.1415926535897931, -INFINITY},
                {MFL_CURVE_SINH, 1e-9, 0, 0, 1e-9, 1},
                {MFL_CURVE_ASINH, -1e160, 0, 0, -369.10676205960726, 0},
                {MFL_CURVE_ACOSH, 1, 0, 0, 0, INFINITY},
                {MFL_CURVE_ATANH, 1e-12, 0, 0, 1e-12, 1},
        };
        for (size_t i = 0; i < MFL_ARRAY_SIZE(points); i++) {
                const struct mfl_unary *f = &mfl_unaries[points[i].curve];
                double a = points[i].a, b = points[i].b,
                       y = mfl_curve_value(points[i].curve, points[i].x, a, b);
                double v = f->reads & MFL_READS_OUTPUT ? y : points[i].x;
                double dx = mfl_curve_grad(points[i].curve, v, 1, a, b);
                if (!(fabs(y - points[i].y) < 1e-15 + 1e-9 * fabs(points[i].y)) ||
                        !(dx == points[i].dx || fabs(dx - points[i].dx) < 1e-9))
                        fail_msg("%s of %g: %.17g and %.17g", f->name, points[i].x, y, dx);
        }
        assert_true(isinf(mfl_curve_grad(MFL_CURVE_SQRT, 0, 1, 0, 0)));
        assert_true(isnan(mfl_curve_value(MFL_CURVE_LOG, -1, 0, 0)));
}

/* The operators' two tables agree, and the reference backend has every operator. */
static void every_operator_has_its_entries(void **state)
{
        for (int op = MFL_OP_INPUT + 1; op < MFL_OP_COUNT_; op++) {
                const struct mfl_layer layer = {.op = (enum mfl_op)op};
                const struct mfl_op_info *info = mfl_op_info((enum mfl_op)op);
                assert_non_null(mfl_ref_ops[op]);
                assert_non_null(mfl_ref_ops[op]->forward);
                assert_non_null(mfl_ref_ops[op]->backward);
                assert_true(info->since >= 1);
                assert_int_equal(info->unary, mfl_curve_of(&layer) < MFL_CURVE_COUNT_);
                if (info->unary)
                        assert_int_equal(mfl_unaries[mfl_curve_of(&layer)].op, op);
                for (int other = op + 1; other < MFL_OP_COUNT_; other++)
                        assert_string_not_equal(info->name, mfl_op_info((enum mfl_op)other)->name);
        }
}

static int build(struct mfl_layer layer, struct mfl_error *err)
{
        struct mfl_layer layers[] = {{.op = MFL_OP_INPUT, .out = {1, {3}}}, layer};
        struct mfl_graph *graph = NULL;
        int rc = mfl_graph_build("one", layers, 2, 0, &graph, err);
        mfl_graph_free(graph);
        return rc;
}

static void parameters_have_bounds(void **state)
{
        struct mfl_error err;
        assert_int_equal(build((struct mfl_layer){.op = MFL_OP_SOFTSHRINK}, &err), 0); /* 0.5 */
        assert_int_equal(build((struct mfl_layer){.op = MFL_OP_SOFTSHRINK, .alpha = -1}, &err), MFL_INVALID);
        assert_non_null(strstr(err.text, "lambd -1"));
        assert_int_equal(build((struct mfl_layer){.op = MFL_OP_HARDTANH, .beta = 1}, &err), 0);
        assert_int_equal(
                build((struct mfl_layer){.op = MFL_OP_HARDTANH, .alpha = 1, .beta = 1}, &err), MFL_INVALID);
        assert_non_null(strstr(err.text, "min_val 1"));
        assert_int_equal(build((struct mfl_layer){.op = MFL_OP_POW, .alpha = NAN}, &err), MFL_INVALID);
}

int main(void)
{
        const struct CMUnitTest tests[] = {cmocka_unit_test(derivatives_are_those_of_the_values),
                cmocka_unit_test(functions_are_those_of_pytorch),
                cmocka_unit_test(every_operator_has_its_entries), cmocka_unit_test(parameters_have_bounds)};
        return cmocka_run_group_tests(tests, NULL, NULL);
}
