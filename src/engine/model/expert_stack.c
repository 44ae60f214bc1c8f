/* expert_stack.c - see expert_stack.h. */
#include "engine/model/expert_stack.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "engine/kernels/blocks.h"
#include "engine/safetensors/safetensors.h"

/* MXFP4: 32 weights of 4 bits share a scale of one byte. */
enum { NAME = 192, MX_WEIGHTS = 32, MX_HALF = 16, MX_BLOCK = 17 };

/* Which part of which stack a name means. */
struct stack_part {
    const struct weight_files *files;
    const struct arch *arch;
    char stack[NAME]; /* name of the stack without _blocks, _scales or _bias */
    size_t expert, rows, cols;
    size_t per, at; /* the stack has `per` matrices of an expert, of which this is number `at` */
    bool bias;
    tinker_error *err;
};

/* "<layer>.<experts>.<index>.<expert>.weight": false when the name has another form. */
static bool parse_name(struct stack_part *p, const char *name, const char *experts)
{
    const struct arch_names *names = p->arch->names;
    char text[NAME], *end;
    snprintf(text, sizeof(text), ".%s.", names->experts);
    const char *at = strstr(name, text);
    if (!at)
        return false;
    const char *index = at + strlen(text);
    p->expert = (size_t)strtoul(index, &end, 10);
    size_t which = 0;
    for (; which < EXPERT_LINEARS; which++) {
        /* A bias belongs to the same expert, with another suffix. */
        snprintf(text, sizeof(text), ".%s.%s", names->expert[which], p->bias ? "bias" : "weight");
        if (strcmp(end, text) == 0)
            break;
    }
    if (end == index || which == EXPERT_LINEARS)
        /* strtoul() read no digit, or the name ends otherwise. */
        return false;
    /* gate and up share a stack */
    bool down = which == LINEAR_DOWN - LINEAR_GATE;
    p->per = down ? 1 : 2;
    p->at = which == LINEAR_UP - LINEAR_GATE;
    snprintf(p->stack, sizeof(p->stack), "%.*s.%s.%s", (int)(at - name), name, experts,
             down ? names->stacked_down : names->stacked_gate_up);
    return true;
}

static const struct st_tensor *find_tensor(const struct stack_part *p, const char *suffix,
                                           const char **file)
{
    char name[NAME + 16];
    snprintf(name, sizeof(name), "%s%s", p->stack, suffix);
    return weight_files_find(p->files, name, file);
}

/* Whether a tensor has these dimensions; 0 in `shape` ends them. */
static bool has_shape(const struct st_tensor *t, const size_t *shape)
{
    size_t n = 0;
    while (shape[n]) {
        /* The first dimension counts experts: the file may have more, not fewer. */
        if (n >= t->ndim || (n == 0 ? t->shape[0] < shape[0] : t->shape[n] != shape[n]))
            return false;
        n++;
    }
    return t->ndim == n;
}

static enum stack_result refuse_stack(const struct stack_part *p, const char *file,
                                      const struct st_tensor *t)
{
    err_set(p->err, TINKER_EINVAL,
            "%s: tensor %s has no expert %zu of %zu x %zu as config.json asks", file, t->name,
            p->expert, p->per * (p->rows ? p->rows : 1), p->cols);
    return STACK_WRONG;
}

static enum stack_result refuse_dtype(const struct stack_part *p, const char *file,
                                      const struct st_tensor *t)
{
    err_set(p->err, TINKER_EINVAL, "%s: tensor %s: dtype %s is not supported (F32, F16, BF16)",
            file, t->name, t->dtype_name);
    return STACK_WRONG;
}

/* (experts, per rows, cols): the expert's rows as they lie in the file.  Nothing is copied: rows of
 * an expert are neighbors. */
static enum stack_result take_rows(const struct stack_part *p, const struct st_tensor *t,
                                   const char *file, struct weight *out)
{
    size_t per_expert = p->per * p->rows;
    if (!has_shape(t, (size_t[]){ p->expert + 1, per_expert, p->cols, 0 }))
        return refuse_stack(p, file, t);
    size_t first = (p->expert * per_expert + p->at * p->rows) * p->cols;
    *out = (struct weight){ .data = (const char *)t->data + first * st_dtype_size(t->dtype),
                            .dtype = t->dtype };
    return STACK_FOUND;
}

/* (experts, cols, per rows), or a bias (experts, per cols): every per-th column, turned.  They are
 * unpacked, because no kernel reads a matrix of which every second column is another one. */
static enum stack_result take_columns(const struct stack_part *p, const struct st_tensor *t,
                                      const char *file, struct weight *out)
{
    /* of a bias, `rows` is one and its elements are the columns */
    size_t in = p->bias ? 1 : p->cols, outs = p->bias ? p->cols : p->rows, width = p->per * outs;
    const size_t matrix[] = { p->expert + 1, in, width, 0 }, vector[] = { p->expert + 1, width, 0 };
    if (!has_shape(t, p->bias ? vector : matrix))
        return refuse_stack(p, file, t);
    float *row = malloc(width * sizeof(*row)), *turned = malloc(in * outs * sizeof(*turned));
    if (row && turned) {
        /* Row by row, so that only one row is float besides the result. */
        for (size_t i = 0; i < in; i++) {
            st_to_float(t->data, t->dtype, (p->expert * in + i) * width, width, row);
            for (size_t o = 0; o < outs; o++)
                turned[o * in + i] = row[o * p->per + p->at];
        }
    }
    free(row);
    *out = (struct weight){ .data = turned, .dtype = SOURCE_F32, .owned = turned };
    if (turned && row)
        return STACK_FOUND;
    free(turned);
    err_nomem(p->err, t->name);
    return STACK_WRONG;
}

/* Element e of a released block.  The lower half of a byte comes first. */
static unsigned mx_element(const uint8_t *block, size_t e)
{
    return e % 2 ? block[e / 2] >> 4 : block[e / 2] & 15u;
}

/* MXFP4 as released, to the blocks that kernels read: the scale, then elements j and j + 16 in the
 * two halves of byte j. */
static enum stack_result take_blocks(const struct stack_part *p, const struct st_tensor *t,
                                     const char *file, struct weight *out)
{
    const char *scales_file;
    const struct st_tensor *scales = find_tensor(p, "_scales", &scales_file);
    size_t per_row = p->cols / MX_WEIGHTS, all = p->per * p->rows;
    /* OpenAI's files keep scales in a tensor of their own. */
    if (!scales || p->cols % MX_WEIGHTS ||
        !has_shape(t, (size_t[]){ p->expert + 1, all, per_row, MX_HALF, 0 }) ||
        !has_shape(scales, (size_t[]){ p->expert + 1, all, per_row, 0 }))
        return refuse_stack(p, file, t);
    /* U8 is no number type that the engine reads, so these tensors are not `usable`. */
    if (strcmp(t->dtype_name, "U8") != 0 || strcmp(scales->dtype_name, "U8") != 0)
        return refuse_dtype(p, file, t);
    uint8_t *blocks = malloc(p->rows * per_row * MX_BLOCK), *to = blocks;
    if (!blocks) {
        err_nomem(p->err, t->name);
        return STACK_WRONG;
    }
    for (size_t row = 0; row < p->rows; row++) {
        /* Rows of gate and up in turn, so every per-th row. */
        size_t first = (p->expert * all + row * p->per + p->at) * per_row;
        for (size_t b = first; b < first + per_row; b++, to += MX_BLOCK) {
            const uint8_t *from = (const uint8_t *)t->data + b * MX_HALF;
            to[0] = ((const uint8_t *)scales->data)[b];
            for (size_t i = 0; i < MX_HALF; i++)
                to[1 + i] = (uint8_t)(mx_element(from, i) | mx_element(from, i + MX_HALF) << 4);
        }
    }
    *out = (struct weight){ .data = blocks, .dtype = SOURCE_MXFP4, .owned = blocks };
    return STACK_FOUND;
}

enum stack_result expert_stack_weight(const struct weight_files *files, const struct arch *arch,
                                      const char *name, size_t rows, size_t cols,
                                      struct weight *out, tinker_error *err)
{
    struct stack_part p = {
        .files = files, .arch = arch, .rows = rows, .cols = cols, .bias = rows == 0, .err = err
    };
    const char *const experts[] = { arch->names->experts, arch->names->other_experts };
    const char *file;
    for (size_t i = 0; i < 2 && experts[i]; i++) {
        /* Experts under either name; STACK_NONE lets the caller report the matrix as missing. */
        if (!parse_name(&p, name, experts[i]))
            return STACK_NONE;
        bool columns = arch->stack == STACK_COLUMNS;
        /* Biases are not quantized in any release. */
        const struct st_tensor *blocks = p.bias ? NULL : find_tensor(&p, "_blocks", &file);
        if (blocks && columns)
            return take_blocks(&p, blocks, file, out);
        const struct st_tensor *t = find_tensor(&p, p.bias ? "_bias" : "", &file);
        if (!t)
            continue;
        if (!t->usable)
            return refuse_dtype(&p, file, t);
        return columns ? take_columns(&p, t, file, out) : take_rows(&p, t, file, out);
    }
    return STACK_NONE;
}

bool expert_stack_is_mxfp4(const struct weight_files *files)
{
    static const char suffix[] = "gate_up_proj_blocks";
    for (size_t f = 0; f < files->n; f++) {
        for (size_t i = 0; i < files->files[f].n; i++) {
            const char *name = files->files[f].tensors[i].name;
            size_t n = strlen(name), k = sizeof(suffix) - 1;
            if (n > k && strcmp(name + n - k, suffix) == 0)
                return true;
        }
    }
    return false;
}
