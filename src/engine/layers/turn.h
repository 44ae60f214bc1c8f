/* turn.h - a small matrix turned, in blocks of four rows and columns. */
#ifndef ENGINE_TURN_H
#define ENGINE_TURN_H

#include <stddef.h>
#include <string.h>

/* dst (cols, rows; row stride ldd) = src (rows, cols; row stride lds) turned. */
static inline void turn_matrix(float *dst, size_t ldd, const float *src, size_t lds, size_t rows,
                               size_t cols)
{
    enum { SIDE = 4 };
    size_t r = 0, c;
    for (; r + SIDE <= rows; r += SIDE) {
        for (c = 0; c + SIDE <= cols; c += SIDE) {
            float in[SIDE][SIDE], out[SIDE][SIDE];
            for (size_t i = 0; i < SIDE; i++)
                memcpy(in[i], src + (r + i) * lds + c, sizeof(in[i]));
            for (size_t i = 0; i < SIDE; i++)
                for (size_t k = 0; k < SIDE; k++)
                    out[k][i] = in[i][k];
            for (size_t k = 0; k < SIDE; k++)
                memcpy(dst + (c + k) * ldd + r, out[k], sizeof(out[k]));
        }
        for (; c < cols; c++)
            for (size_t i = 0; i < SIDE; i++)
                dst[c * ldd + r + i] = src[(r + i) * lds + c];
    }
    for (; r < rows; r++)
        for (c = 0; c < cols; c++)
            dst[c * ldd + r] = src[r * lds + c];
}

#endif
