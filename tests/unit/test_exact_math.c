/* exp, log, log1p, tanh, erf, erfc: error against the long double functions, special values, pinned bits
 * (routing.md 2.1). */
#include "numerics.h"

#include "core/numerics/exact_math.h"

#include <float.h>
#include <math.h>

typedef double (*function)(double x);
typedef long double (*reference)(long double x);

/* Largest error over n points of [a,b] in units of the last place of the exact value. */
static double worst_error(function f, reference r, double a, double b, int n)
{
    uint32_t x = SEED;
    double worst = 0;

    for (int i = 0; i < n; i++) {
        double v = a + (b - a) * ((double)xorshift(&x) * 0x1p-32 + (double)xorshift(&x) * 0x1p-64);
        long double want = r((long double)v), unit;
        int e;
        frexpl(want, &e);
        unit = ldexpl(1, (e < -1021 ? -1021 : e) - 53);
        double error = (double)(fabsl((long double)f(v) - want) / unit);
        if (!(error <= worst))
            worst = error;
    }
    return worst;
}

static long double reference_logistic(long double x)
{
    return 1 / (1 + expl(-x));
}

Test(exact_math, errors)
{
    static const struct {
        const char *name;
        function f;
        reference r;
        double a, b, limit;
    } cases[] = {{"exp", moert_exp, expl, -708, 709.7, 0.6},
                 {"exp", moert_exp, expl, -1, 1, 0.6},
                 {"exp, subnormal", moert_exp, expl, -745, -708, 1.0},
                 {"ln", moert_ln, logl, 0, 3, 0.6},
                 {"ln", moert_ln, logl, 0.99, 1.01, 0.6},
                 {"ln", moert_ln, logl, 0, 0x1p1023, 0.6},
                 {"ln, subnormal", moert_ln, logl, 0, 1e-310, 0.6},
                 {"log1p", moert_log1p, log1pl, -1, 1, 0.6},
                 {"log1p", moert_log1p, log1pl, -1e-3, 1e-3, 0.6},
                 {"log1p", moert_log1p, log1pl, 0, 1e9, 0.6},
                 {"tanh", moert_tanh, tanhl, -1, 1, 2.5},
                 {"tanh", moert_tanh, tanhl, -20, 20, 2.5},
                 {"erf", moert_erf, erfl, -0.5, 0.5, 1.3},
                 {"erf", moert_erf, erfl, -6, 6, 1.3},
                 {"erfc", moert_erfc, erfcl, -6, 6, 2.5},
                 {"erfc", moert_erfc, erfcl, 6, 26.5, 2.5},
                 {"logistic", moert_logistic, reference_logistic, -40, 40, 2.5}};

    if (LDBL_MANT_DIG < 64)
        cr_skip_test("long double is no wider than double here");
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        double worst = worst_error(cases[i].f, cases[i].r, cases[i].a, cases[i].b, 20000);
        cr_expect(worst <= cases[i].limit, "%s on [%g,%g]: %.3f units, limit %.3f", cases[i].name, cases[i].a,
                  cases[i].b, worst, cases[i].limit);
    }
}

static int same(double a, double b)
{
    return moert_f64_bits(a) == moert_f64_bits(b);
}

Test(exact_math, special_values)
{
    static const struct {
        const char *name;
        function f;
        double x, y;
    } cases[] = {{"exp", moert_exp, 0, 1},
                 {"exp", moert_exp, INFINITY, INFINITY},
                 {"exp", moert_exp, -INFINITY, 0},
                 {"exp", moert_exp, 709.79, INFINITY},
                 {"exp", moert_exp, -745.2, 0},
                 {"exp", moert_exp, -745.1, 0x1p-1074},
                 {"ln", moert_ln, 1, 0},
                 {"ln", moert_ln, 0, -INFINITY},
                 {"ln", moert_ln, INFINITY, INFINITY},
                 {"ln", moert_ln, 0x1.fffffffffffffp1023, 0x1.62e42fefa39efp+9},
                 {"log1p", moert_log1p, 0, 0},
                 {"log1p", moert_log1p, -0.0, -0.0},
                 {"log1p", moert_log1p, -1, -INFINITY},
                 {"log1p", moert_log1p, INFINITY, INFINITY},
                 {"log1p", moert_log1p, 0x1p-1074, 0x1p-1074},
                 {"tanh", moert_tanh, -0.0, -0.0},
                 {"tanh", moert_tanh, INFINITY, 1},
                 {"tanh", moert_tanh, -INFINITY, -1},
                 {"erf", moert_erf, 0, 0},
                 {"erf", moert_erf, INFINITY, 1},
                 {"erf", moert_erf, -INFINITY, -1},
                 {"erfc", moert_erfc, INFINITY, 0},
                 {"erfc", moert_erfc, -INFINITY, 2},
                 {"erfc", moert_erfc, 0, 1},
                 {"logistic", moert_logistic, 0, 0.5},
                 {"logistic", moert_logistic, INFINITY, 1},
                 {"logistic", moert_logistic, -INFINITY, 0}};
    static const function all[] = {moert_exp, moert_ln, moert_log1p, moert_tanh, moert_erf, moert_erfc};

    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
        cr_expect(same(cases[i].f(cases[i].x), cases[i].y), "%s(%a) = %a", cases[i].name, cases[i].x,
                  cases[i].f(cases[i].x));
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
        cr_expect(isnan(all[i]((double)NAN)), "function %zu of NaN", i);
    cr_expect(isnan(moert_ln(-1)) && isnan(moert_log1p(-1.5)));
}

/* The same bits on every host and with every compiler: hashes of 20000 results each, recorded once. */
Test(exact_math, pinned_bits)
{
    static const struct {
        const char *name;
        function f;
        double a, b;
        uint64_t hash;
    } cases[] = {{"exp", moert_exp, -745, 709, 0x3b33b7d9ed5cf864u},
                 {"ln", moert_ln, 0, 1000, 0xd391fdb199d68ffau},
                 {"log1p", moert_log1p, -1, 10, 0x311038639bec21ebu},
                 {"tanh", moert_tanh, -5, 5, 0x461df0d7b3482773u},
                 {"erf", moert_erf, -6, 6, 0xd630c9fef4edccbdu},
                 {"erfc", moert_erfc, -6, 27, 0xd1692caa07997c1cu},
                 {"logistic", moert_logistic, -50, 50, 0x742a01ae78c62a83u}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        uint64_t hash = FNV_START;
        uint32_t x = SEED;
        for (int n = 0; n < 20000; n++) {
            double v = cases[i].a + (cases[i].b - cases[i].a) * ((double)xorshift(&x) * 0x1p-32);
            uint64_t u = moert_f64_bits(cases[i].f(v));
            for (int k = 0; k < 8; k++)
                hash = fnv_byte(hash, (uint8_t)(u >> 8 * k));
        }
        cr_expect_eq(hash, cases[i].hash, "%s: 0x%016llxu", cases[i].name, (unsigned long long)hash);
    }
}
