/* ref.c - the plain twins of the products: textbook loops, sums in double.
 * They stay for ever as the oracle of the fast kernels. */
#include "engine/kernels/kernels.h"

/* y (N,O) (+)= alpha * sum over k < K of a[n*an + k*ak] * b[o*bo + k*bk] One loop with strides
 * serves all three products, so that there is one place to trust. Double sums make its own error
 * negligible beside that of float32 kernels. */
static void ref_product(float *y, size_t N, size_t O, size_t K, const float *a, size_t an,
                        size_t ak, const float *b, size_t bo, size_t bk, float alpha,
                        int accumulate)
{
    for (size_t n = 0; n < N; n++)
        for (size_t o = 0; o < O; o++) {
            double sum = 0;
            for (size_t k = 0; k < K; k++)
                sum += (double)a[n * an + k * ak] * b[o * bo + k * bk];
            double before = accumulate ? y[n * O + o] : 0;
            y[n * O + o] = (float)(before + alpha * sum);
        }
}

/* y (N,O) = x (N,C) w^T, w (O,C): the forward pass of a linear layer. */
void ref_gemm_nt(float *y, const float *x, const float *w, size_t N, size_t O, size_t C,
                 float alpha, int accumulate)
{
    ref_product(y, N, O, C, x, C, 1, w, C, 1, alpha, accumulate);
}

/* y (N,O) = x (N,C) w, w (C,O): the gradient of its input. */
void ref_gemm_nn(float *y, const float *x, const float *w, size_t N, size_t O, size_t C,
                 float alpha, int accumulate)
{
    ref_product(y, N, O, C, x, C, 1, w, 1, O, alpha, accumulate);
}

/* y (O,C) = a^T x, a (N,O), x (N,C): the gradient of its weights, a sum over the batch. */
void ref_gemm_tn(float *y, const float *a, const float *x, size_t N, size_t O, size_t C,
                 float alpha, int accumulate)
{
    ref_product(y, O, C, N, a, 1, O, x, 1, C, alpha, accumulate);
}
