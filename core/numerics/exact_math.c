/* core/numerics/exact_math.c: see exact_math.h. The methods are textbook ones (Muller, "Elementary Functions"; Dekker's
 * and Knuth's error-free transformations); tables and coefficients were computed in 400-bit arithmetic. */
#include "core/numerics/exact_math.h"

#include <stdint.h>
#include <string.h>

/* An unevaluated sum hi + lo, |lo| at most half a unit of the last place of hi. */
struct pair {
    double hi, lo;
};

#define INV_LN2_64 0x1.71547652b82fep+6
/* ln2/64: 32 leading bits, so that a product with an integer below 2^21 is exact, and the rest. */
#define LN2_64_HI 0x1.62e42feep-7
#define LN2_64_LO 0x1.a39ef35793c76p-39
/* ln2: 40 leading bits and the rest. */
#define LN2_HI       0x1.62e42fefa2p-1
#define LN2_LO       0x1.9ef35793c7673p-41
#define SQRT2        0x1.6a09e667f3bcdp+0
#define TWO_SQRTPI   0x1.20dd750429b6dp+0 /* 2/sqrt(pi) */
#define TWO_SQRTPI_L 0x1.1ae3a914fed8p-56 /* and what its rounding left */

/* 2^(i/64). */
static const struct pair exp2_table[64] = {
    // clang-format off
    {0x1.0000000000000p+0, 0x0.0p+0}, {0x1.02c9a3e778061p+0, -0x1.19083535b085dp-56},
    {0x1.059b0d3158574p+0, 0x1.d73e2a475b465p-55}, {0x1.0874518759bc8p+0, 0x1.186be4bb284ffp-57},
    {0x1.0b5586cf9890fp+0, 0x1.8a62e4adc610bp-54}, {0x1.0e3ec32d3d1a2p+0, 0x1.03a1727c57b53p-59},
    {0x1.11301d0125b51p+0, -0x1.6c51039449b3ap-54}, {0x1.1429aaea92de0p+0, -0x1.32fbf9af1369ep-54},
    {0x1.172b83c7d517bp+0, -0x1.19041b9d78a76p-55}, {0x1.1a35beb6fcb75p+0, 0x1.e5b4c7b4968e4p-55},
    {0x1.1d4873168b9aap+0, 0x1.e016e00a2643cp-54}, {0x1.2063b88628cd6p+0, 0x1.dc775814a8495p-55},
    {0x1.2387a6e756238p+0, 0x1.9b07eb6c70573p-54}, {0x1.26b4565e27cddp+0, 0x1.2bd339940e9d9p-55},
    {0x1.29e9df51fdee1p+0, 0x1.612e8afad1255p-55}, {0x1.2d285a6e4030bp+0, 0x1.0024754db41d5p-54},
    {0x1.306fe0a31b715p+0, 0x1.6f46ad23182e4p-55}, {0x1.33c08b26416ffp+0, 0x1.32721843659a6p-54},
    {0x1.371a7373aa9cbp+0, -0x1.63aeabf42eae2p-54}, {0x1.3a7db34e59ff7p+0, -0x1.5e436d661f5e3p-56},
    {0x1.3dea64c123422p+0, 0x1.ada0911f09ebcp-55}, {0x1.4160a21f72e2ap+0, -0x1.ef3691c309278p-58},
    {0x1.44e086061892dp+0, 0x1.89b7a04ef80d0p-59}, {0x1.486a2b5c13cd0p+0, 0x1.3c1a3b69062f0p-56},
    {0x1.4bfdad5362a27p+0, 0x1.d4397afec42e2p-56}, {0x1.4f9b2769d2ca7p+0, -0x1.4b309d25957e3p-54},
    {0x1.5342b569d4f82p+0, -0x1.07abe1db13cadp-55}, {0x1.56f4736b527dap+0, 0x1.9bb2c011d93adp-54},
    {0x1.5ab07dd485429p+0, 0x1.6324c054647adp-54}, {0x1.5e76f15ad2148p+0, 0x1.ba6f93080e65ep-54},
    {0x1.6247eb03a5585p+0, -0x1.383c17e40b497p-54}, {0x1.6623882552225p+0, -0x1.bb60987591c34p-54},
    {0x1.6a09e667f3bcdp+0, -0x1.bdd3413b26456p-54}, {0x1.6dfb23c651a2fp+0, -0x1.bbe3a683c88abp-57},
    {0x1.71f75e8ec5f74p+0, -0x1.16e4786887a99p-55}, {0x1.75feb564267c9p+0, -0x1.0245957316dd3p-54},
    {0x1.7a11473eb0187p+0, -0x1.41577ee04992fp-55}, {0x1.7e2f336cf4e62p+0, 0x1.05d02ba15797ep-56},
    {0x1.82589994cce13p+0, -0x1.d4c1dd41532d8p-54}, {0x1.868d99b4492edp+0, -0x1.fc6f89bd4f6bap-54},
    {0x1.8ace5422aa0dbp+0, 0x1.6e9f156864b27p-54}, {0x1.8f1ae99157736p+0, 0x1.5cc13a2e3976cp-55},
    {0x1.93737b0cdc5e5p+0, -0x1.75fc781b57ebcp-57}, {0x1.97d829fde4e50p+0, -0x1.d185b7c1b85d1p-54},
    {0x1.9c49182a3f090p+0, 0x1.c7c46b071f2bep-56}, {0x1.a0c667b5de565p+0, -0x1.359495d1cd533p-54},
    {0x1.a5503b23e255dp+0, -0x1.d2f6edb8d41e1p-54}, {0x1.a9e6b5579fdbfp+0, 0x1.0fac90ef7fd31p-54},
    {0x1.ae89f995ad3adp+0, 0x1.7a1cd345dcc81p-54}, {0x1.b33a2b84f15fbp+0, -0x1.2805e3084d708p-57},
    {0x1.b7f76f2fb5e47p+0, -0x1.5584f7e54ac3bp-56}, {0x1.bcc1e904bc1d2p+0, 0x1.23dd07a2d9e84p-55},
    {0x1.c199bdd85529cp+0, 0x1.11065895048ddp-55}, {0x1.c67f12e57d14bp+0, 0x1.2884dff483cadp-54},
    {0x1.cb720dcef9069p+0, 0x1.503cbd1e949dbp-56}, {0x1.d072d4a07897cp+0, -0x1.cbc3743797a9cp-54},
    {0x1.d5818dcfba487p+0, 0x1.2ed02d75b3707p-55}, {0x1.da9e603db3285p+0, 0x1.c2300696db532p-54},
    {0x1.dfc97337b9b5fp+0, -0x1.1a5cd4f184b5cp-54}, {0x1.e502ee78b3ff6p+0, 0x1.39e8980a9cc8fp-55},
    {0x1.ea4afa2a490dap+0, -0x1.e9c23179c2893p-54}, {0x1.efa1bee615a27p+0, 0x1.dc7f486a4b6b0p-54},
    {0x1.f50765b6e4540p+0, 0x1.9d3e12dd8a18bp-54}, {0x1.fa7c1819e90d8p+0, 0x1.74853f3a5931ep-55},
    // clang-format on
};

static double from_bits(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

static uint64_t to_bits(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

static double not_a_number(void)
{
    return from_bits(0x7FF8000000000000u);
}

static double infinity(void)
{
    return from_bits(0x7FF0000000000000u);
}

/* 2^e, -1022 <= e <= 1023. */
static double power_of_two(int e)
{
    return from_bits((uint64_t)(e + 1023) << 52);
}

/* a + b exactly. */
static struct pair two_sum(double a, double b)
{
    double s = a + b, t = s - a;
    return (struct pair){s, (a - (s - t)) + (b - t)};
}

/* a * b exactly (Dekker), no overflow for |a|, |b| < 2^500. */
static struct pair two_product(double a, double b)
{
    double p = a * b, t, ah, al, bh, bl;

    t = 0x1p27 * a + a;
    ah = t - (t - a);
    al = a - ah;
    t = 0x1p27 * b + b;
    bh = t - (t - b);
    bl = b - bh;
    return (struct pair){p, ((ah * bh - p) + ah * bl + al * bh) + al * bl};
}

/* exp(x) * 2^-*ret_e as a pair near 1..2, error below 2^-60; |x| < 1000. */
static struct pair exp_reduced(double x, int *ret_e)
{
    double t = x * INV_LN2_64, r, p;
    int n = (int)(t < 0 ? t - 0.5 : t + 0.5);
    unsigned i = (unsigned)n & 63;

    r = (x - n * LN2_64_HI) - n * LN2_64_LO; /* |r| < ln2/128: the Taylor rest r^7/5040 is below 2^-64 */
    p = r + r * r * (0.5 + r * (1.0 / 6 + r * (1.0 / 24 + r * (1.0 / 120 + r * (1.0 / 720)))));
    *ret_e = (n - (int)i) / 64;
    return (struct pair){exp2_table[i].hi, exp2_table[i].lo + exp2_table[i].hi * p};
}

/* x * 2^e, -1100 < e < 1100, one rounding when the result is subnormal. */
static double scale(double x, int e)
{
    if (e > 1023)
        return x * 0x1p1023 * power_of_two(e - 1023);
    if (e < -1022)
        return x * power_of_two(e + 1022 > -1022 ? e + 1022 : -1022) * 0x1p-1022;
    return x * power_of_two(e);
}

double moert_exp(double x)
{
    struct pair y;
    int e;

    if (x != x)
        return not_a_number();
    if (x > 710)
        return infinity();
    if (x < -746)
        return 0;
    y = exp_reduced(x, &e);
    return scale(y.hi + y.lo, e);
}

/* ln(1 + f.hi + f.lo) + e*ln2 for 1 + f in about [sqrt(1/2), sqrt(2)]. With s = f/(2+f) it is 2 atanh(s): the leading
 * 2s is kept as a pair, so that the rounding errors of the series (|s| <= 0.172) stay below 0.02 units. */
static double log_core(struct pair f, int e)
{
    struct pair d = two_sum(2, f.hi), q, sum;
    double s, s_lo, z, series;

    d.lo += f.lo;
    s = f.hi / d.hi;
    q = two_product(s, d.hi);
    s_lo = (((f.hi - q.hi) - q.lo) + f.lo - s * d.lo) / d.hi;
    z = s * s;
    series =
        1.0 / 3 +
        z * (1.0 / 5 +
             z * (1.0 / 7 +
                  z * (1.0 / 9 + z * (1.0 / 11 +
                                      z * (1.0 / 13 +
                                           z * (1.0 / 15 +
                                                z * (1.0 / 17 + z * (1.0 / 19 + z * (1.0 / 21 + z * (1.0 / 23))))))))));
    sum = two_sum(e * LN2_HI, 2 * s);
    return sum.hi + (sum.lo + (2 * s * z * series + (2 * s_lo + e * LN2_LO)));
}

/* Exponent e for which x * 2^-e lies in [sqrt(1/2), sqrt(2)); x normal and positive. */
static int log_exponent(double x)
{
    uint64_t bits = to_bits(x);
    double m = from_bits((bits & 0x000FFFFFFFFFFFFFu) | 0x3FF0000000000000u);
    return (int)(bits >> 52) - 1023 + (m >= SQRT2);
}

double moert_ln(double x)
{
    int e, shift = 0;

    if (x != x || x < 0)
        return not_a_number();
    if (x == 0)
        return -infinity();
    if (x == infinity())
        return x;
    if (x < 0x1p-1022) {
        x *= 0x1p54;
        shift = 54;
    }
    e = log_exponent(x);
    x = e > 1022 ? x * 0.25 * power_of_two(2 - e) : x * power_of_two(-e);
    return log_core((struct pair){x - 1, 0}, e - shift);
}

double moert_log1p(double x)
{
    struct pair u, f;
    int e;

    if (x != x || x < -1)
        return not_a_number();
    if (x == -1)
        return -infinity();
    if (x == infinity())
        return x;
    if (x > -0x1p-54 && x < 0x1p-54)
        return x;
    if (x > -0.25 && x < 0.375)
        return log_core((struct pair){x, 0}, 0);
    u = two_sum(1, x);
    e = log_exponent(u.hi);
    if (e > 1000) /* 1 + x == x here */
        return moert_ln(x);
    f = two_sum(u.hi * power_of_two(-e) - 1, u.lo * power_of_two(-e));
    return log_core(f, e);
}

/* tanh(x) = x - x z (C - S) / (1 + z C) with z = x^2, sinh(x) = x (1 + z S), cosh(x) = 1 + z C; |x| <= 0.55, where the
 * first left-out term of each series is below 2^-58 and the correction is below a tenth of x. */
static double tanh_small(double x)
{
    double z = x * x;
    double sinh_rest =
        1.0 / 6 +
        z * (1.0 / 120 +
             z * (1.0 / 5040 + z * (1.0 / 362880 + z * (1.0 / 39916800 + z * (1.0 / 6227020800 + z / 1307674368000)))));
    double cosh_rest =
        0.5 + z * (1.0 / 24 +
                   z * (1.0 / 720 + z * (1.0 / 40320 + z * (1.0 / 3628800 + z * (1.0 / 479001600 + z / 87178291200)))));
    return x - x * (z * (cosh_rest - sinh_rest) / (1 + z * cosh_rest));
}

double moert_tanh(double x)
{
    double a = x < 0 ? -x : x, y;

    if (x != x)
        return not_a_number();
    if (a < 0x1p-28) /* x^3/3 is below half a unit */
        return x;
    if (a < 0.55)
        return tanh_small(x);
    y = a > 22 ? 1 : 1 - 2 / (moert_exp(2 * a) + 1);
    return x < 0 ? -y : y;
}

/* erf for |x| < 0.5: Maclaurin series, coefficients (-1)^n / (n! (2n+1)); the first left-out term is below 2^-59. */
static double erf_small(double x)
{
    static const double c[] = {-1.0 / 3,       1.0 / 10,       -1.0 / 42,        1.0 / 216,
                               -1.0 / 1320,    1.0 / 9360,     -1.0 / 75600,     1.0 / 685440,
                               -1.0 / 6894720, 1.0 / 76204800, -1.0 / 918086400, 1.0 / 11975040000};
    struct pair lead = two_product(x, TWO_SQRTPI);
    double z = x * x, sum = 0;

    for (int n = 11; n >= 0; n--)
        sum = c[n] + z * sum;
    return lead.hi + (lead.lo + x * TWO_SQRTPI_L + lead.hi * z * sum);
}

/* erfc for 0.5 <= x < 28 = exp(-x^2) h(x)/(1+2x), h smooth in (x-3.5)/(x+3.5): Chebyshev series of h on [0.5, 28], rest
 * below 2^-58. The result is a pair times 2^*ret_e. */
static struct pair erfc_large(double x, int *ret_e)
{
    static const double c[] = {
        // clang-format off
        0x1.38b3cf27bd0d2p+0, -0x1.f731fb988b68ep-5, -0x1.9b0863b992d6bp-6, 0x1.2598f08730cb8p-6,
    -0x1.a99ec43e81d94p-8, 0x1.b6058a5d30b03p-10, -0x1.4efaa54e26fd5p-12, 0x1.6a21434beb574p-15,
    -0x1.aa109d54afad2p-19, -0x1.256d6c9a0389fp-23, 0x1.111d39b2d8c30p-24, -0x1.3485d2d0559a5p-28,
    -0x1.738b59edde028p-31, 0x1.1fc9ced547989p-33, 0x1.49ef449035101p-38, -0x1.8cf74dee08ae9p-39,
        0x1.86dad775015e9p-47, 0x1.0fef30ec47f0cp-44, -0x1.7a56c6f6b5b0dp-50, -0x1.8f5ba398c9f62p-50,
        0x1.1afd3fe60e6f2p-55, 0x1.3d6eb9690d1acp-55
        // clang-format on
    };
    double t = ((x - 3.5) / (x + 3.5) - 0x1.c71c71c71c71cp-7) * (1 / 0x1.871c71c71c71cp-1);
    double b0 = 0, b1 = 0, b2;
    struct pair square = two_product(x, x), y, h, d, p;
    double q;

    for (int k = (int)(sizeof(c) / sizeof(*c)) - 1; k > 0; k--) {
        b2 = b1;
        b1 = b0;
        b0 = 2 * t * b1 - b2 + c[k];
    }
    h = two_sum(c[0], t * b0 - b1);
    d = two_sum(1, 2 * x);
    q = h.hi / d.hi;
    p = two_product(q, d.hi);
    h.lo = ((h.hi - p.hi) - p.lo + h.lo - q * d.lo) / d.hi; /* h/d = q + h.lo */
    y = exp_reduced(-square.hi, ret_e);
    p = two_product(y.hi, q);
    p.lo += (y.hi + y.lo) * (h.lo - square.lo * q) + y.lo * q; /* exp(-square.lo) = 1 - square.lo */
    return p;
}

/* base + sign * erfc_large(x); base is 0, 1 or 2. */
static double with_erfc(double base, double sign, double x)
{
    int e;
    struct pair p = erfc_large(x, &e), sum;

    if (base == 0)
        return scale(p.hi + p.lo, e);
    sum = two_sum(base, sign * scale(p.hi, e));
    return sum.hi + (sum.lo + sign * scale(p.lo, e));
}

double moert_erfc(double x)
{
    if (x != x)
        return not_a_number();
    if (x > 27.5)
        return 0;
    if (x < -6)
        return 2;
    if (x <= -0.5)
        return with_erfc(2, -1, -x);
    return x < 0.5 ? 1 - erf_small(x) : with_erfc(0, 1, x);
}

double moert_erf(double x)
{
    if (x != x)
        return not_a_number();
    if (x > -0.5 && x < 0.5)
        return erf_small(x);
    if (x > 6 || x < -6)
        return x < 0 ? -1 : 1;
    return x < 0 ? with_erfc(-1, 1, -x) : with_erfc(1, -1, x);
}

double moert_logistic(double x)
{
    double e;

    if (x >= 0)
        return 1 / (1 + moert_exp(-x));
    e = moert_exp(x); /* NaN comes here too */
    return e / (1 + e);
}
