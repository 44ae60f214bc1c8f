/* exp_simd.h - e^x in the words of simd_*.h; include it after one of them. */
#ifndef ENGINE_KERNELS_EXP_SIMD_H
#define ENGINE_KERNELS_EXP_SIMD_H

/* e^x; above 88 as at 88, below -150 exactly 0, minus infinity included.  NaN stays NaN: both
 * bounds are the first operand, and the instructions return the second when one is NaN.  The
 * error of the polynomial on [-ln2/2, ln2/2] is below one unit in the last place. */
INLINE vec vec_exp(vec x)
{
    x = vec_min(vec_set1(88.0f), vec_max(vec_set1(-150.0f), x));
    vec n = vec_round(vec_mul(x, vec_set1(1.44269504f)));
    vec r = vec_fma(n, vec_set1(-0.693145752f), x); /* ln2 in two parts: the first has 14 bits */
    r = vec_fma(n, vec_set1(-1.42860677e-6f), r);
    vec p = vec_set1(1.98412698e-4f);
    p = vec_fma(p, r, vec_set1(1.38888889e-3f));
    p = vec_fma(p, r, vec_set1(8.33333333e-3f));
    p = vec_fma(p, r, vec_set1(4.16666667e-2f));
    p = vec_fma(p, r, vec_set1(1.66666667e-1f));
    p = vec_fma(p, r, vec_set1(0.5f));
    p = vec_fma(p, r, vec_set1(1.0f));
    p = vec_fma(p, r, vec_set1(1.0f));
    return vec_scale2(p, n);
}

#endif
