/* reference_engine.c - load, run, fine-tune and sample a language model, in one plain file.
 *
 *     cc -std=c11 -O2 examples/reference_engine.c -lm -o reference_engine
 *     ./reference_engine [directory of a model]        (default: models/tiny)
 *
 * Read this before src/engine.  It computes what that engine computes, with loops in the place of
 * kernels, threads and caches, and it includes nothing but the C library.  A test compares the two:
 * log-probabilities, gradients, an AdamW step and sampled tokens (tests/engine/reference_engine.c).
 * Where the fast engine goes another way to the same numbers, a comment names the file.
 *
 * What is computed: a text is a sequence of tokens, numbers below the size of the vocabulary.  Each
 * token becomes a vector, its row.  A stack of equal blocks rewrites the rows: attention lets a row
 * read from the rows before it, an MLP works on each row alone.  From the last state of a row the
 * head gives a score, the logit, to every token that could come next.  Training changes weights so
 * that the token that really came next scores higher; sampling draws one and goes on behind it.
 *
 * The file from top to bottom:
 *
 *     JSON, files      config.json and model.safetensors, which are not trusted
 *     weights          of the model, which are frozen, and of the adapter, which is trained
 *     activations      what the forward keeps for the backward and for later tokens
 *     layers           RMSNorm, linear with LoRA, rope, attention, SwiGLU, cross-entropy:
 *                      each forward is followed by its backward
 *     the model        all layers in a row, forward and backward
 *     AdamW, sampling
 *     main             teach the model a sentence and let it say it
 *
 * Letters for sizes, the same everywhere:
 *
 *     T  rows: tokens of the sequence        N  query heads
 *     H  hidden size: of a row               G  key/value heads; N / G query heads share one
 *     I  intermediate size of the MLP        D  size of a head, even
 *     V  vocabulary                          R  rank of the LoRA factors
 *
 * A matrix (rows, columns) is one array with the rows one after another.  d-something is the
 * gradient of the loss with respect to something and has its shape.  Backward functions ADD to the
 * gradients they are given, because a value that is used twice has the sum of two gradients. */
#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Sizes from files are limited (see load_config), so that a product of two fits. */
_Static_assert(sizeof(size_t) >= 8, "a product of two sizes must fit");

enum { NAME_SIZE = 160, PATH_SIZE = 1024 };

/* ---- errors and memory ---- */

/* A library returns its errors, as the fast engine does; a program that one reads first may end. */
static _Noreturn void fail(const char *place, const char *name, const char *problem)
{
    fprintf(stderr, "reference_engine: %s: %s%s%s\n", place, name, *name ? ": " : "", problem);
    exit(EXIT_FAILURE);
}

/* Zeroed memory for count things; calloc checks the product. */
static void *allocate_zeroed(size_t count, size_t size, const char *what)
{
    void *p = calloc(count ? count : 1, size);
    if (!p)
        fail(what, "", "out of memory");
    return p;
}

/* Arrays of floats that live and die together are a list, so that one call frees them all. */
struct float_list {
    struct float_list *next;
    size_t n;
    float floats[];
};

/* A matrix of zeros, added to the list. */
static float *allocate_floats(struct float_list **list, size_t rows, size_t columns)
{
    if (columns && rows > (SIZE_MAX / 2 / sizeof(float)) / columns)
        fail("memory", "", "the model is larger than an address space");
    size_t n = rows * columns;
    struct float_list *item = allocate_zeroed(1, sizeof(*item) + n * sizeof(float), "memory");
    item->n = n;
    item->next = *list;
    *list = item;
    return item->floats;
}

static void free_floats(struct float_list *list)
{
    while (list) {
        struct float_list *next = list->next;
        free(list);
        list = next;
    }
}

/* ---- JSON ----
 *
 * Two kinds of documents are read: config.json and the header of a safetensors file.  Both are
 * objects whose member names are unique, so no tree is built from them: a value is a span of the
 * text, found by searching for its quoted name.  A quotation mark inside a string is written \",
 * so that no string can pass for a name.  What is not JSON, or cut off, has members missing, and
 * each one that we need is named when it is missing.  The text is followed by a NUL. */

struct json {
    const char *at, *end;
};

static const char *skip_space(const char *p)
{
    return p + strspn(p, " \t\r\n");
}

/* Just behind the value at p.  No object or array that we read has another of its kind inside. */
static const char *find_value_end(const char *p, const char *end)
{
    const char *close = *p == '{' ? "}" : *p == '[' ? "]" : *p == '"' ? "\"" : NULL;
    size_t n = close ? 1 + strcspn(p + 1, close) + 1 : strcspn(p, ",]} \t\r\n");
    return n < (size_t)(end - p) ? p + n : end;
}

/* The value of a member; at is NULL where there is none. */
static struct json find_member(struct json object, const char *name)
{
    size_t n = strlen(name);
    for (const char *p = object.at; p && (size_t)(object.end - p) > n + 2; p++) {
        if (p[0] != '"' || memcmp(p + 1, name, n) != 0 || p[n + 1] != '"')
            continue;
        const char *value = skip_space(p + n + 2);
        if (value >= object.end || *value != ':')
            continue; /* not the name of a member but a value that reads the same */
        value = skip_space(value + 1);
        if (value < object.end)
            return (struct json){ value, find_value_end(value, object.end) };
    }
    return (struct json){ NULL, NULL };
}

static bool is_text(struct json value, const char *text)
{
    return value.at && (size_t)(value.end - value.at) == strlen(text) &&
           memcmp(value.at, text, strlen(text)) == 0;
}

/* A missing member and null mean the same in files written by transformers. */
static bool is_given(struct json value)
{
    return value.at && !is_text(value, "null");
}

/* A number that is the whole value. */
static bool read_number(struct json value, double *out)
{
    char *end = NULL;
    if (value.at)
        *out = strtod(value.at, &end);
    return end && end == value.end && end > value.at && isfinite(*out);
}

/* An array of exactly n whole numbers below 2^53, up to which doubles are exact. */
static bool read_sizes(struct json array, size_t *out, size_t n)
{
    const char *p = array.at;
    for (size_t i = 0; i < n; i++) {
        char *end;
        if (!p || *p != (i ? ',' : '['))
            return false;
        double number = strtod(p + 1, &end);
        if (end == p + 1 || !(number >= 0 && number < 0x1p53) || number != floor(number))
            return false;
        out[i] = (size_t)number;
        p = skip_space(end);
    }
    return *p == ']' && p + 1 == array.end;
}

/* ---- files ---- */

/* The whole file dir/name, with a NUL behind it; path receives its name for messages. */
static unsigned char *read_file(const char *dir, const char *name, char path[PATH_SIZE],
                                size_t *size)
{
    int n = snprintf(path, PATH_SIZE, "%s/%s", dir, name);
    if (n < 0 || n >= PATH_SIZE)
        fail(dir, "", "the path is too long");
    FILE *f = fopen(path, "rb");
    if (!f)
        fail(path, "", "cannot be opened: is this the directory of a model?");
    long length = fseek(f, 0, SEEK_END) == 0 ? ftell(f) : -1;
    if (length < 0 || length == LONG_MAX || fseek(f, 0, SEEK_SET) != 0)
        fail(path, "", "cannot be measured: is it a plain file?");
    unsigned char *bytes = allocate_zeroed((size_t)length + 1, 1, path);
    if (fread(bytes, 1, (size_t)length, f) != (size_t)length)
        fail(path, "", "cannot be read to its end");
    fclose(f);
    *size = (size_t)length;
    return bytes;
}

/* A safetensors file:
 *
 *     8 bytes      length n of the header, little-endian
 *     n bytes      JSON: { "name": { "dtype": "F32", "shape": [2048, 128],
 *                                    "data_offsets": [begin, end] }, ... }
 *     the rest     the data; offsets count from here */
struct tensor_file {
    char path[PATH_SIZE];
    unsigned char *bytes; /* the whole file; free() it */
    struct json header;
    const unsigned char *data; /* behind the header */
    size_t data_size;
};

static void open_tensors(struct tensor_file *f, const char *dir, const char *name)
{
    size_t size;
    uint64_t n = 0;
    f->bytes = read_file(dir, name, f->path, &size);
    for (int i = 7; i >= 0 && size >= 8; i--)
        n = n << 8 | f->bytes[i];
    if (size < 8 || n > size - 8)
        fail(f->path, "", "the header is longer than the file: download it again");
    f->header = (struct json){ (const char *)f->bytes + 8, (const char *)f->bytes + 8 + n };
    f->data = f->bytes + 8 + n;
    f->data_size = size - 8 - (size_t)n;
}

/* The tensor of this name as floats.  rows 0: a vector.  Everything the header says is compared
 * with what the model needs and with the size of the file before a byte is read. */
static float *load_tensor(const struct tensor_file *f, const char *name, size_t rows,
                          size_t columns, struct float_list **list)
{
    const size_t wanted[2] = { rows, columns }, count = (rows ? rows : 1) * columns;
    size_t shape[2] = { 0, 0 }, range[2] = { 0, 0 }; /* range: [begin, end) of the data */
    struct json entry = find_member(f->header, name);
    if (!entry.at)
        fail(f->path, name, "there is no such tensor");
    if (!read_sizes(find_member(entry, "shape"), shape + !rows, rows ? 2 : 1) ||
        memcmp(shape, wanted, sizeof(wanted)) != 0)
        fail(f->path, name, "the shape is not what config.json asks for");
    struct json dtype = find_member(entry, "dtype");
    size_t width = is_text(dtype, "\"F32\"") ? 4 : is_text(dtype, "\"BF16\"") ? 2 : 0;
    if (!width)
        fail(f->path, name, "the dtype is neither F32 nor BF16");
    if (!read_sizes(find_member(entry, "data_offsets"), range, 2) || range[0] > range[1] ||
        range[1] > f->data_size || range[1] - range[0] != count * width)
        fail(f->path, name, "the data is not inside the file, or not as long as the shape says");

    /* bfloat16 is the upper half of a float: 8 bits of exponent, but 7 instead of 23 of fraction */
    float *out = allocate_floats(list, rows ? rows : 1, columns);
    const unsigned char *p = f->data + range[0];
    for (size_t i = 0; i < count; i++, p += width) {
        uint32_t bits = width == 4 ? (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 |
                                         (uint32_t)p[3] << 24
                                   : (uint32_t)p[0] << 16 | (uint32_t)p[1] << 24;
        memcpy(&out[i], &bits, sizeof(bits));
    }
    return out;
}

/* ---- the shape of the model: config.json ---- */

struct config {
    size_t vocab;           /* V */
    size_t hidden;          /* H */
    size_t layers;          /* how many blocks */
    size_t heads, kv_heads; /* N, G */
    size_t head_dim;        /* D */
    size_t intermediate;    /* I */
    size_t context;         /* the longest sequence the model was made for */
    float norm_eps;         /* keeps RMSNorm from dividing by zero */
    double rope_theta;      /* base of the frequencies of rope */
    bool tied;              /* the head's matrix is the embedding */
    int32_t eos;            /* the token that ends a text; -1: none or several */
};

/* A number in [min, max]; `missing` where the file has none, which may be out of range as well. */
static double config_number(const char *path, struct json config, const char *name, double missing,
                            double min, double max)
{
    double number = missing;
    struct json value = find_member(config, name);
    if (is_given(value) && !read_number(value, &number))
        fail(path, name, "is not a number");
    if (number < min || number > max)
        fail(path, name, "is missing or out of range");
    return number;
}

static size_t config_size(const char *path, struct json config, const char *name, size_t missing,
                          size_t max)
{
    double number = config_number(path, config, name, (double)missing, 1, (double)max);
    if (number != floor(number))
        fail(path, name, "is not a whole number");
    return (size_t)number;
}

/* A setting that would change the computation below is refused, not ignored. */
static void refuse_unless(const char *path, struct json config, const char *name, const char *text)
{
    struct json value = find_member(config, name);
    if (is_given(value) && !is_text(value, text))
        fail(path, name, "this setting is not supported here; src/engine knows more of them");
}

/* Defaults are those of transformers.  The limits keep every product of two sizes below 2^48. */
static void load_config(struct config *c, const char *dir)
{
    enum { SIZE_LIMIT = 1 << 20, VOCAB_LIMIT = 1 << 24, LAYER_LIMIT = 1 << 12 };
    char path[PATH_SIZE];
    size_t size;
    unsigned char *bytes = read_file(dir, "config.json", path, &size);
    struct json all = { (const char *)bytes, (const char *)bytes + size };
    if (size == 0 || *skip_space(all.at) != '{')
        fail(path, "", "is not a JSON object");
    if (!is_text(find_member(all, "model_type"), "\"qwen3\""))
        fail(path, "model_type", "is not qwen3; src/engine knows more of them");
    refuse_unless(path, all, "hidden_act", "\"silu\"");
    refuse_unless(path, all, "attention_bias", "false");
    refuse_unless(path, all, "mlp_bias", "false");
    refuse_unless(path, all, "use_sliding_window", "false");
    refuse_unless(path, all, "rope_scaling", "null");
    refuse_unless(path, all, "rope_parameters", "null");

    c->vocab = config_size(path, all, "vocab_size", 0, VOCAB_LIMIT);
    c->hidden = config_size(path, all, "hidden_size", 0, SIZE_LIMIT);
    c->layers = config_size(path, all, "num_hidden_layers", 0, LAYER_LIMIT);
    c->intermediate = config_size(path, all, "intermediate_size", 0, SIZE_LIMIT);
    c->context = config_size(path, all, "max_position_embeddings", 0, VOCAB_LIMIT);
    c->heads = config_size(path, all, "num_attention_heads", 0, 1 << 10);
    c->kv_heads = config_size(path, all, "num_key_value_heads", c->heads, c->heads);
    c->head_dim = config_size(path, all, "head_dim", c->hidden / c->heads, 1 << 10);
    if (c->heads % c->kv_heads || c->head_dim % 2)
        fail(path, "", "heads cannot be shared evenly, or their size is odd");
    c->norm_eps = (float)config_number(path, all, "rms_norm_eps", 1e-6, 1e-30, 1);
    c->rope_theta = config_number(path, all, "rope_theta", 10000, 1, 1e30);
    c->tied = is_text(find_member(all, "tie_word_embeddings"), "true");
    double eos = -1;
    if (!read_number(find_member(all, "eos_token_id"), &eos) || eos < 0 || eos >= (double)c->vocab)
        eos = -1;
    c->eos = (int32_t)eos;
    free(bytes);
}

/* ---- weights ---- */

/* The linear layers of one block, in the order of the adapter's parameters. */
enum { Q_PROJ, K_PROJ, V_PROJ, O_PROJ, GATE_PROJ, UP_PROJ, DOWN_PROJ, BLOCK_LINEARS };

static const char *const linear_names[BLOCK_LINEARS] = {
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
    "mlp.gate_proj",    "mlp.up_proj",      "mlp.down_proj",
};

/* A linear layer and its LoRA pair (Hu et al., 2021):  y = W x + (alpha / R) B (A x).
 *
 * W is frozen; A and B are what training changes.  A squeezes x into R numbers and B spreads them
 * out again, so together they are a change of W of rank R.  They have R (in + out) numbers instead
 * of in * out: gradients and optimizer state are small, and thousands of adapters can share one
 * model. */
struct lora_linear {
    size_t out, in;
    float *w;       /* (out, in) */
    float *a, *b;   /* A (R, in), B (out, R): views into the adapter */
    float *da, *db; /* their gradients: views as well */
};

/* All trained numbers in one array, and three more arrays of the same layout.  So the optimizer is
 * a loop over i that need not know what the numbers mean. */
struct adapter {
    size_t rank;   /* R */
    size_t n;      /* numbers in each array */
    float scale;   /* alpha / R */
    float *w;      /* the factors: A, B of the first linear layer, A, B of the next, ... */
    float *grad;   /* of w; passes add to it, a step uses it up */
    float *m, *v;  /* AdamW: running means of the gradient and of its square */
    int64_t steps; /* of AdamW, taken so far */
};

/* The same for every rank, as on the hosted service.  With alpha / R in front, B A does not grow
 * with the number of its terms, and a learning rate that is good for one rank is good for others,
 * too. */
static const float lora_alpha = 32;

struct block {
    float *norm1, *norm2;                     /* (H): before attention, before the MLP */
    float *q_norm, *k_norm;                   /* (D): the same for all heads */
    struct lora_linear linear[BLOCK_LINEARS]; /* see load_block() for their shapes */
};

struct transformer {
    struct config config;
    float *embed; /* (V, H) */
    struct block *blocks;
    float *norm;             /* (H): before the head */
    struct lora_linear head; /* (V, H) */
    struct adapter adapter;
    struct float_list *memory;
};

/* One tensor of a block, by its Hugging Face name. */
static float *load_block_tensor(struct transformer *t, const struct tensor_file *f, size_t layer,
                                const char *name, size_t rows, size_t columns)
{
    char full[NAME_SIZE];
    snprintf(full, sizeof(full), "model.layers.%zu.%s.weight", layer, name);
    return load_tensor(f, full, rows, columns, &t->memory);
}

static void load_block(struct transformer *t, const struct tensor_file *f, size_t layer)
{
    const struct config *c = &t->config;
    struct block *b = &t->blocks[layer];
    size_t H = c->hidden, I = c->intermediate;
    size_t Q = c->heads * c->head_dim, KV = c->kv_heads * c->head_dim; /* Q need not be H */
    const size_t shapes[BLOCK_LINEARS][2] = { { Q, H }, { KV, H }, { KV, H }, { H, Q },
                                              { I, H }, { I, H },  { H, I } };
    b->norm1 = load_block_tensor(t, f, layer, "input_layernorm", 0, H);
    b->norm2 = load_block_tensor(t, f, layer, "post_attention_layernorm", 0, H);
    b->q_norm = load_block_tensor(t, f, layer, "self_attn.q_norm", 0, c->head_dim);
    b->k_norm = load_block_tensor(t, f, layer, "self_attn.k_norm", 0, c->head_dim);
    for (int id = 0; id < BLOCK_LINEARS; id++) {
        struct lora_linear *l = &b->linear[id];
        l->out = shapes[id][0];
        l->in = shapes[id][1];
        l->w = load_block_tensor(t, f, layer, linear_names[id], l->out, l->in);
    }
}

/* The model without an adapter; make_adapter() must follow. */
static void load_transformer(struct transformer *t, const char *dir)
{
    struct tensor_file f;
    *t = (struct transformer){ 0 };
    load_config(&t->config, dir);
    open_tensors(&f, dir, "model.safetensors");
    size_t V = t->config.vocab, H = t->config.hidden;
    t->embed = load_tensor(&f, "model.embed_tokens.weight", V, H, &t->memory);
    t->blocks = allocate_zeroed(t->config.layers, sizeof(*t->blocks), "blocks");
    for (size_t i = 0; i < t->config.layers; i++)
        load_block(t, &f, i);
    t->norm = load_tensor(&f, "model.norm.weight", 0, H, &t->memory);
    t->head.out = V;
    t->head.in = H;
    t->head.w = t->config.tied ? t->embed : load_tensor(&f, "lm_head.weight", V, H, &t->memory);
    free(f.bytes);
}

static void free_transformer(struct transformer *t)
{
    free_floats(t->memory);
    free(t->blocks);
}

/* All linear layers in the order of the adapter: block by block, then the head.  NULL: no more. */
static struct lora_linear *linear_at(struct transformer *t, size_t i)
{
    if (i < t->config.layers * BLOCK_LINEARS)
        return &t->blocks[i / BLOCK_LINEARS].linear[i % BLOCK_LINEARS];
    return i == t->config.layers * BLOCK_LINEARS ? &t->head : NULL;
}

/* The name of a LoRA factor, 'A' or 'B', as in the adapter files of PEFT and of the service. */
static void name_factor(const struct transformer *t, size_t linear, char factor,
                        char out[NAME_SIZE])
{
    if (linear == t->config.layers * BLOCK_LINEARS)
        snprintf(out, NAME_SIZE, "base_model.model.model.unembed_tokens.lora_%c.weight", factor);
    else
        snprintf(out, NAME_SIZE, "base_model.model.model.layers.%zu.%s.lora_%c.weight",
                 linear / BLOCK_LINEARS, linear_names[linear % BLOCK_LINEARS], factor);
}

/* ---- random numbers ----
 *
 * Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) turns a key
 * and a counter into four random words.  There is no state: the i-th number of a stream is a
 * function of (seed, stream, i), so threads and order cannot change what is drawn. */
static void philox_words(uint64_t key, uint64_t index, uint64_t stream, uint32_t out[4])
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t c[4] = { (uint32_t)index, (uint32_t)(index >> 32), (uint32_t)stream,
                      (uint32_t)(stream >> 32) };
    for (int round = 0; round < 10; round++) {
        uint64_t p = (uint64_t)0xd2511f53u * c[0], q = (uint64_t)0xcd9e8d57u * c[2];
        c[0] = (uint32_t)(q >> 32) ^ c[1] ^ k0;
        c[1] = (uint32_t)q;
        c[2] = (uint32_t)(p >> 32) ^ c[3] ^ k1;
        c[3] = (uint32_t)p;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    memcpy(out, c, sizeof(c));
}

/* Uniform in [0, 1), with the 53 bits that a double holds. */
static double draw_uniform(uint64_t seed, uint64_t index)
{
    uint32_t words[4];
    philox_words(seed, index, 0, words);
    return (double)(((uint64_t)words[0] | (uint64_t)words[1] << 32) >> 11) * 0x1p-53;
}

/* A starts uniform in +-1/sqrt(in).  The stream of a factor is the FNV-1a hash of its name: the
 * same seed gives the same numbers whatever else is trained. */
static void draw_factor(float *a, size_t rows, size_t in, const char *name, uint64_t seed)
{
    uint32_t words[4] = { 0 };
    uint64_t stream = 0xcbf29ce484222325u;
    for (; *name; name++)
        stream = (stream ^ (unsigned char)*name) * 0x100000001b3u;
    double bound = 1 / sqrt((double)in);
    for (size_t i = 0; i < rows * in; i++) {
        if (i % 4 == 0)
            philox_words(seed, i / 4, stream, words);
        double u = (words[i % 4] + 0.5) * 0x1p-32;
        a[i] = (float)((2 * u - 1) * bound);
    }
}

/* A new adapter.  B starts at zero, so B A is zero, too, and training starts from exactly the base
 * model.  Were A zero as well, neither would ever get a gradient, since each is multiplied by the
 * other. */
static void make_adapter(struct transformer *t, size_t rank, uint64_t seed)
{
    struct adapter *a = &t->adapter;
    struct lora_linear *l;
    size_t at = 0;
    *a = (struct adapter){ .rank = rank, .scale = lora_alpha / (float)rank };
    for (size_t i = 0; (l = linear_at(t, i)) != NULL; i++)
        a->n += rank * (l->in + l->out);
    a->w = allocate_floats(&t->memory, a->n, 1);
    a->grad = allocate_floats(&t->memory, a->n, 1);
    a->m = allocate_floats(&t->memory, a->n, 1);
    a->v = allocate_floats(&t->memory, a->n, 1);
    for (size_t i = 0; (l = linear_at(t, i)) != NULL; i++) {
        char name[NAME_SIZE];
        l->a = a->w + at;
        l->da = a->grad + at;
        at += rank * l->in;
        l->b = a->w + at;
        l->db = a->grad + at;
        at += rank * l->out;
        name_factor(t, i, 'A', name);
        draw_factor(l->a, rank, l->in, name, seed);
    }
}

/* ---- activations ----
 *
 * The forward keeps what the backward needs.  The rows of a sequence never change once they are
 * computed, because a token sees only the tokens before it.  So these arrays are also the key/value
 * cache of sampling: a new token is one more row, which reads the rows of k and v before it.
 *
 * The fast engine keeps k and v in pages that sequences share (kv.c), neither p nor all logits at
 * once, and when memory is short only x, computing the rest of a block again (pass.c). */

struct block_activations {
    float *x;                 /* (T, H) what enters the block: the residual stream */
    float *n1, *rstd1;        /* (T, H) x normalized, (T) 1 / its root mean square */
    float *q_raw, *k_raw;     /* (T, N, D), (T, G, D) before norm and rope */
    float *q_rstd, *k_rstd;   /* (T, N), (T, G) */
    float *q, *k, *v;         /* (T, N, D), (T, G, D), (T, G, D) as attention uses them */
    float *p;                 /* (N, T, T) attention probabilities; row t has t + 1 of them */
    float *o;                 /* (T, N, D) what attention gives */
    float *x2;                /* (T, H) the residual stream after attention */
    float *n2, *rstd2;        /* (T, H), (T) */
    float *gate, *up, *f;     /* (T, I): f = silu(gate) * up */
    float *xa[BLOCK_LINEARS]; /* (T, R): A x of each linear layer */
};

struct activations {
    size_t rows; /* T: room for so many tokens */
    struct block_activations *blocks;
    float *x, *h, *rstd;   /* (T, H) after the last block, (T, H) normalized, (T) */
    float *xa_head;        /* (T, R) */
    float *logits;         /* (T, V) */
    float *lse, *logprobs; /* (T) log of the sum of exp(logits), (T) of the targets */
    /* Gradients.  d.q is that of q, and so on.  One block is walked back at a time, so that one set
     * is enough for all of them. */
    struct block_activations d;
    float *dx, *dh, *dxa_head, *dlogits; /* (T, H), (T, H), (T, R), (T, V) */
    struct float_list *memory, *d_memory;
};

static void make_block_activations(const struct transformer *t, struct block_activations *b,
                                   size_t T, struct float_list **list)
{
    const struct config *c = &t->config;
    size_t H = c->hidden, I = c->intermediate, N = c->heads, G = c->kv_heads, D = c->head_dim;
    const struct {
        float **array;
        size_t columns; /* of T rows */
    } arrays[] = {
        { &b->x, H },         { &b->n1, H },     { &b->rstd1, 1 },  { &b->q_raw, N * D },
        { &b->k_raw, G * D }, { &b->q_rstd, N }, { &b->k_rstd, G }, { &b->q, N * D },
        { &b->k, G * D },     { &b->v, G * D },  { &b->o, N * D },  { &b->x2, H },
        { &b->n2, H },        { &b->rstd2, 1 },  { &b->gate, I },   { &b->up, I },
        { &b->f, I },         { &b->p, N * T },
    };
    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++)
        *arrays[i].array = allocate_floats(list, T, arrays[i].columns);
    for (int id = 0; id < BLOCK_LINEARS; id++)
        b->xa[id] = allocate_floats(list, T, t->adapter.rank);
}

static void make_activations(const struct transformer *t, struct activations *s, size_t rows)
{
    size_t H = t->config.hidden, V = t->config.vocab, R = t->adapter.rank;
    if (rows > t->config.context)
        fail("activations", "", "the sequence is longer than the context of the model");
    *s = (struct activations){ .rows = rows };
    s->blocks = allocate_zeroed(t->config.layers, sizeof(*s->blocks), "activations");
    for (size_t i = 0; i < t->config.layers; i++)
        make_block_activations(t, &s->blocks[i], rows, &s->memory);
    make_block_activations(t, &s->d, rows, &s->d_memory);
    const struct {
        float **array;
        size_t columns; /* of T rows */
    } arrays[] = {
        { &s->x, H },   { &s->h, H },      { &s->rstd, 1 },     { &s->xa_head, R },
        { &s->lse, 1 }, { &s->logits, V }, { &s->logprobs, 1 }, { &s->dxa_head, R },
        { &s->dx, H },  { &s->dh, H },     { &s->dlogits, V },
    };
    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++)
        *arrays[i].array = allocate_floats(&s->memory, rows, arrays[i].columns);
}

static void free_activations(struct activations *s)
{
    free_floats(s->memory);
    free_floats(s->d_memory);
    free(s->blocks);
}

/* ---- layers ----
 *
 * A backward function is the chain rule.  For y = f(x) it is given dy, the gradient of the loss
 * with respect to each element of y, and adds to dx_i the sum over j of dy_j times the derivative
 * of y_j by x_i.  The formulas are that sum, worked out.
 *
 * Products of floats are summed in double.  That costs little in plain loops, and it makes this
 * file the more exact of the two engines.  The fast one sums floats in blocks of a fixed order, so
 * that any number of threads gives the same bits (linear.c, kernels/). */
static double dot(const float *a, const float *b, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)a[i] * b[i];
    return sum;
}

static void clear_floats(float *p, size_t n)
{
    memset(p, 0, n * sizeof(*p));
}

/* RMSNorm (Zhang and Sennrich, 2019) of each row of x (rows, n):
 *
 *     y_i = x_i w_i r        r = 1 / sqrt(mean(x^2) + eps), kept for the backward
 *
 * Whatever the length of a row is, what goes into the next layer has the same size: this is what
 * keeps a deep stack from blowing up or fading out.  w (n) gives each column a scale again. */
static void rmsnorm_forward(float *y, float *rstd, const float *x, const float *w, size_t rows,
                            size_t n, float eps)
{
    for (size_t t = 0; t < rows; t++, x += n, y += n) {
        rstd[t] = (float)(1 / sqrt(dot(x, x, n) / (double)n + eps));
        for (size_t i = 0; i < n; i++)
            y[i] = x[i] * w[i] * rstd[t];
    }
}

/* Each x_i changes its own y_i, and through r all of them.  dr/dx_i = -r^3 x_i / n, so
 *
 *     dx_i = r (dy_i w_i - x_i r^2 mean(dy w x)) */
static void rmsnorm_backward(float *dx, const float *dy, const float *rstd, const float *x,
                             const float *w, size_t rows, size_t n)
{
    for (size_t t = 0; t < rows; t++, x += n, dx += n, dy += n) {
        double mean = 0;
        for (size_t i = 0; i < n; i++)
            mean += (double)dy[i] * w[i] * x[i] / (double)n;
        double r = rstd[t];
        for (size_t i = 0; i < n; i++)
            dx[i] += (float)(r * ((double)dy[i] * w[i] - x[i] * r * r * mean));
    }
}

/* A linear layer with its LoRA pair, for each row of x (rows, in):
 *
 *     xa = A x                        (R), kept for the backward
 *     y  = W x + scale * B xa         (out)
 *
 * Nearly all the time of a model is spent here.  All rows meet the same W, so a fast engine reads
 * a piece of W once for many rows. */
static void linear_forward(float *y, float *xa, const float *x, const struct lora_linear *l,
                           const struct adapter *a, size_t rows)
{
    size_t rank = a->rank;
    for (size_t t = 0; t < rows; t++, x += l->in, y += l->out, xa += rank) {
        for (size_t r = 0; r < rank; r++)
            xa[r] = (float)dot(x, l->a + r * l->in, l->in);
        for (size_t o = 0; o < l->out; o++)
            y[o] = (float)(dot(x, l->w + o * l->in, l->in) +
                           a->scale * dot(xa, l->b + o * rank, rank));
    }
}

/* y is linear in all three, so each gradient is a product of the other two:
 *
 *     dxa += scale * B^T dy
 *     dB  += scale * dy xa^T          summed over rows, as dA
 *     dA  += dxa x^T
 *     dx  += W^T dy + A^T dxa         W itself is frozen: there is no dW */
static void linear_backward(float *dx, float *dxa, const float *dy, const float *x, const float *xa,
                            const struct lora_linear *l, const struct adapter *a, size_t rows)
{
    size_t rank = a->rank, in = l->in;
    for (size_t t = 0; t < rows; t++, x += in, dx += in, dy += l->out, xa += rank, dxa += rank) {
        for (size_t o = 0; o < l->out; o++) {
            float d = dy[o], scaled = a->scale * d;
            if (d == 0)
                continue; /* rows of a prompt, which have no loss, are all zero in the head */
            for (size_t r = 0; r < rank; r++) {
                dxa[r] += scaled * l->b[o * rank + r];
                l->db[o * rank + r] += scaled * xa[r];
            }
            for (size_t i = 0; i < in; i++)
                dx[i] += d * l->w[o * in + i];
        }
        for (size_t r = 0; r < rank; r++) {
            for (size_t i = 0; i < in; i++) {
                l->da[r * in + i] += dxa[r] * x[i];
                dx[i] += dxa[r] * l->a[r * in + i];
            }
        }
    }
}

/* Rotary position embedding (Su et al., 2021).  Attention by itself does not know where a row is.
 * So the pair (x_j, x_{j+D/2}) of each head of q and k at position p is turned by the angle p f_j,
 *
 *     x_j'       = x_j cos(p f_j) - x_{j+D/2} sin(p f_j)          f_j = theta^(-2j / D)
 *     x_{j+D/2}' = x_{j+D/2} cos(p f_j) + x_j sin(p f_j)
 *
 * and the dot product of a query and a key depends on the distance of their positions only, through
 * angles that turn fast (small j) or slowly (large j).  sign +1 turns, -1 turns back.
 *
 * Angles are floats because the models were trained so: far out their rounding is visible.  rope.c
 * has the variants that stretch f_j for longer contexts. */
static void rope_rotate(float *x, size_t first, size_t rows, size_t heads, const struct config *c,
                        double sign)
{
    size_t D = c->head_dim, half = D / 2;
    for (size_t t = 0; t < rows; t++) {
        for (size_t j = 0; j < half; j++) {
            float frequency = (float)(1 / pow(c->rope_theta, 2 * (double)j / (double)D));
            float angle = (float)(first + t) * frequency;
            float cosine = (float)cos(angle), sine = (float)(sign * sin(angle));
            for (size_t h = 0; h < heads; h++) {
                float *pair = x + (t * heads + h) * D + j;
                float left = pair[0], right = pair[half];
                pair[0] = left * cosine - right * sine;
                pair[half] = right * cosine + left * sine;
            }
        }
    }
}

static void rope_forward(float *x, size_t first, size_t rows, size_t heads, const struct config *c)
{
    rope_rotate(x, first, rows, heads, c, 1);
}

/* The transpose of a rotation is the rotation by the negative angle. */
static void rope_backward(float *dx, size_t rows, size_t heads, const struct config *c)
{
    rope_rotate(dx, 0, rows, heads, c, -1);
}

/* Causal attention of the rows [first, end).  Row t asks with its query q_t, every row j up to t
 * answers with its key k_j, and t receives the mean of their values v_j, weighted by how well key
 * and query agree.  For head h, with g = h / (N / G) its key/value head:
 *
 *     s_j = q_t . k_j / sqrt(D)                   for j = 0 ... t, never for a later row
 *     p_j = exp(s_j - max s) / sum of the same    the maximum only keeps exp from overflowing
 *     o_t = sum_j p_j v_j
 *
 * A dot product of D random terms is about sqrt(D) large: divided by that, p is neither flat nor a
 * single spike at the start of training.  That query heads share keys and values (GQA, Ainslie et
 * al., 2023) loses little and makes the cache N / G times smaller.
 *
 * attention.c walks over keys in pages with a running maximum and sum, and keeps but the logarithm
 * of the denominator: no (T, T) matrix exists there. */
static void attention_forward(struct block_activations *b, size_t first, size_t end, size_t T,
                              const struct config *c)
{
    size_t N = c->heads, G = c->kv_heads, D = c->head_dim;
    double scale = 1 / sqrt((double)D);
    for (size_t t = first; t < end; t++) {
        for (size_t h = 0; h < N; h++) {
            size_t g = h / (N / G);
            const float *q = b->q + (t * N + h) * D;
            float *p = b->p + (h * T + t) * T, *o = b->o + (t * N + h) * D;
            double max = -INFINITY, sum = 0;
            for (size_t j = 0; j <= t; j++) {
                p[j] = (float)(dot(q, b->k + (j * G + g) * D, D) * scale);
                max = fmax(max, p[j]);
            }
            for (size_t j = 0; j <= t; j++) {
                p[j] = (float)exp(p[j] - max);
                sum += p[j];
            }
            clear_floats(o, D);
            for (size_t j = 0; j <= t; j++) {
                p[j] = (float)(p[j] / sum);
                for (size_t i = 0; i < D; i++)
                    o[i] += p[j] * b->v[(j * G + g) * D + i];
            }
        }
    }
}

/* d has the gradients of what b has.  With do that of o_t:
 *
 *     dv_j += p_j do
 *     dp_j  = do . v_j
 *     ds_j  = p_j (dp_j - sum_i p_i dp_i)
 *     dq_t += sum_j ds_j k_j / sqrt(D)
 *     dk_j += ds_j q_t / sqrt(D)
 *
 * dk_j and dv_j are sums over all rows t >= j and over the heads that share them.  ds is that of
 * the softmax: its outputs sum to 1 whatever its inputs are, so what all dp_j have in common
 * changes nothing and is taken off.  sum_i p_i dp_i is do . o_t, because o_t is sum_i p_i v_i. */
static void attention_backward(const struct block_activations *d, const struct block_activations *b,
                               size_t rows, size_t T, const struct config *c)
{
    size_t N = c->heads, G = c->kv_heads, D = c->head_dim;
    double scale = 1 / sqrt((double)D);
    for (size_t t = 0; t < rows; t++) {
        for (size_t h = 0; h < N; h++) {
            size_t at = (t * N + h) * D;
            const float *p = b->p + (h * T + t) * T;
            double common = dot(d->o + at, b->o + at, D);
            for (size_t j = 0; j <= t; j++) {
                size_t key = (j * G + h / (N / G)) * D;
                double dp = dot(d->o + at, b->v + key, D);
                float ds = (float)(p[j] * (dp - common) * scale);
                for (size_t i = 0; i < D; i++) {
                    d->v[key + i] += p[j] * d->o[at + i];
                    d->q[at + i] += ds * b->k[key + i];
                    d->k[key + i] += ds * b->q[at + i];
                }
            }
        }
    }
}

/* SwiGLU (Shazeer, 2020), what is not linear in the MLP:
 *
 *     f = silu(gate) * up        silu(x) = x s(x)        s(x) = 1 / (1 + exp(-x))
 *
 * gate decides for each of the I numbers how much of up passes; silu is 0 far below zero and x far
 * above, with a smooth bend between. */
static void swiglu_forward(float *f, const float *gate, const float *up, size_t n)
{
    for (size_t i = 0; i < n; i++)
        f[i] = gate[i] / (1 + expf(-gate[i])) * up[i];
}

/* The product rule, and s' = s (1 - s):
 *
 *     dup = df silu(gate)        dgate = df up silu'(gate)
 *     silu'(x) = s(x) + x s(x) (1 - s(x)) = s(x) (1 + x (1 - s(x))) */
static void swiglu_backward(float *dgate, float *dup, const float *df, const float *gate,
                            const float *up, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float s = 1 / (1 + expf(-gate[i]));
        dup[i] += df[i] * gate[i] * s;
        dgate[i] += df[i] * up[i] * s * (1 + gate[i] * (1 - s));
    }
}

/* What is learned: after tokens[0..t] comes targets[t].  The weight is 0 where that is given, as
 * in a prompt.  All three arrays have n items. */
struct example {
    const int32_t *tokens, *targets;
    const float *weights;
    size_t n;
};

/* Cross-entropy, with y the target of row t and z the logits:
 *
 *     logprob_t = z_y - log sum_i exp(z_i)          loss = -sum_t weight_t logprob_t
 *
 * exp(logprob) is the probability that the model gave to what came: a loss of 0 is certainty, log V
 * is guessing.  The loss is a sum, not a mean: for a mean put 1 / count into the weights.  loss.c
 * has others, all of them functions of logprob, for reinforcement learning. */
static double crossentropy_forward(struct activations *s, const struct example *e, size_t V)
{
    double loss = 0;
    for (size_t t = 0; t < e->n; t++) {
        const float *z = s->logits + t * V;
        double max = -INFINITY, sum = 0;
        for (size_t i = 0; i < V; i++)
            max = fmax(max, z[i]);
        for (size_t i = 0; i < V; i++)
            sum += exp(z[i] - max);
        s->lse[t] = (float)(max + log(sum));
        s->logprobs[t] = (float)(z[e->targets[t]] - max - log(sum));
        loss -= (double)e->weights[t] * s->logprobs[t];
    }
    return loss;
}

/* The derivative of lse by z_i is p_i = exp(z_i - lse), so
 *
 *     dz_i = weight (p_i - [i = y])
 *
 * A step against it raises the target and lowers each other token by as much as the model believed
 * in it.  The target's own entry is p_y - 1 = expm1(logprob): as a difference it would have no
 * digits left once the model is sure. */
static void crossentropy_backward(struct activations *s, const struct example *e, size_t V)
{
    for (size_t t = 0; t < e->n; t++) {
        const float *z = s->logits + t * V;
        float *dz = s->dlogits + t * V;
        for (size_t i = 0; i < V; i++)
            dz[i] = e->weights[t] == 0 ? 0 : e->weights[t] * expf(z[i] - s->lse[t]);
        dz[e->targets[t]] = e->weights[t] * expm1f(s->logprobs[t]);
    }
}

/* ---- the model ---- */

/* One block on the rows [first, end); out (T, H) receives the residual stream behind it:
 *
 *     n1  = norm(x)
 *     q   = rope(norm(Wq n1)),  k = rope(norm(Wk n1)),  v = Wv n1
 *     x2  = x + Wo attention(q, k, v)
 *     n2  = norm(x2)
 *     out = x2 + Wd (silu(Wg n2) * Wu n2)
 *
 * x, x2 and out are the residual stream: layers never replace a row but add to it.  So late layers
 * can read what early ones wrote, and gradients reach early layers, without passing through
 * anything.  Normalizing each head of q and k, as Qwen3 does, bounds the scores of attention. */
static void block_forward(const struct transformer *t, struct activations *s, size_t layer,
                          size_t first, size_t end, float *out)
{
    const struct config *c = &t->config;
    const struct adapter *a = &t->adapter;
    const struct block *w = &t->blocks[layer];
    struct block_activations *b = &s->blocks[layer];
    const struct lora_linear *linear = w->linear;
    size_t H = c->hidden, I = c->intermediate, R = a->rank, n = end - first;
    size_t N = c->heads, G = c->kv_heads, D = c->head_dim;
    size_t h = first * H, q = first * N * D, kv = first * G * D, i = first * I, r = first * R;

    /* attention: read from the rows before */
    rmsnorm_forward(b->n1 + h, b->rstd1 + first, b->x + h, w->norm1, n, H, c->norm_eps);
    linear_forward(b->q_raw + q, b->xa[Q_PROJ] + r, b->n1 + h, &linear[Q_PROJ], a, n);
    linear_forward(b->k_raw + kv, b->xa[K_PROJ] + r, b->n1 + h, &linear[K_PROJ], a, n);
    linear_forward(b->v + kv, b->xa[V_PROJ] + r, b->n1 + h, &linear[V_PROJ], a, n);
    /* to a norm of heads, each head is a row of its own */
    rmsnorm_forward(b->q + q, b->q_rstd + first * N, b->q_raw + q, w->q_norm, n * N, D,
                    c->norm_eps);
    rmsnorm_forward(b->k + kv, b->k_rstd + first * G, b->k_raw + kv, w->k_norm, n * G, D,
                    c->norm_eps);
    rope_forward(b->q + q, first, n, N, c);
    rope_forward(b->k + kv, first, n, G, c);
    attention_forward(b, first, end, s->rows, c);
    linear_forward(b->x2 + h, b->xa[O_PROJ] + r, b->o + q, &linear[O_PROJ], a, n);
    for (size_t k = h; k < end * H; k++)
        b->x2[k] += b->x[k];

    /* the MLP: work on what was read, each row for itself */
    rmsnorm_forward(b->n2 + h, b->rstd2 + first, b->x2 + h, w->norm2, n, H, c->norm_eps);
    linear_forward(b->gate + i, b->xa[GATE_PROJ] + r, b->n2 + h, &linear[GATE_PROJ], a, n);
    linear_forward(b->up + i, b->xa[UP_PROJ] + r, b->n2 + h, &linear[UP_PROJ], a, n);
    swiglu_forward(b->f + i, b->gate + i, b->up + i, n * I);
    linear_forward(out + h, b->xa[DOWN_PROJ] + r, b->f + i, &linear[DOWN_PROJ], a, n);
    for (size_t k = h; k < end * H; k++)
        out[k] += b->x2[k];
}

/* s->dx comes in as the gradient of the block's output and leaves as that of its input.  This is
 * block_forward() line by line from its end.  A residual connection, x + f(x), hands its gradient
 * on as it is and adds what comes back through f: dx stays where it is, and the norms add to it. */
static void block_backward(const struct transformer *t, struct activations *s, size_t layer,
                           size_t rows)
{
    const struct config *c = &t->config;
    const struct adapter *a = &t->adapter;
    const struct block *w = &t->blocks[layer];
    const struct lora_linear *linear = w->linear;
    const struct block_activations *b = &s->blocks[layer], *d = &s->d;
    size_t H = c->hidden, I = c->intermediate, N = c->heads, G = c->kv_heads, D = c->head_dim;
    float *const *xa = b->xa, *const *dxa = d->xa;

    for (struct float_list *item = s->d_memory; item; item = item->next)
        clear_floats(item->floats, item->n);
    linear_backward(d->f, dxa[DOWN_PROJ], s->dx, b->f, xa[DOWN_PROJ], &linear[DOWN_PROJ], a, rows);
    swiglu_backward(d->gate, d->up, d->f, b->gate, b->up, rows * I);
    linear_backward(d->n2, dxa[UP_PROJ], d->up, b->n2, xa[UP_PROJ], &linear[UP_PROJ], a, rows);
    linear_backward(d->n2, dxa[GATE_PROJ], d->gate, b->n2, xa[GATE_PROJ], &linear[GATE_PROJ], a,
                    rows);
    rmsnorm_backward(s->dx, d->n2, b->rstd2, b->x2, w->norm2, rows, H);

    linear_backward(d->o, dxa[O_PROJ], s->dx, b->o, xa[O_PROJ], &linear[O_PROJ], a, rows);
    attention_backward(d, b, rows, s->rows, c);
    rope_backward(d->q, rows, N, c);
    rope_backward(d->k, rows, G, c);
    rmsnorm_backward(d->q_raw, d->q, b->q_rstd, b->q_raw, w->q_norm, rows * N, D);
    rmsnorm_backward(d->k_raw, d->k, b->k_rstd, b->k_raw, w->k_norm, rows * G, D);
    linear_backward(d->n1, dxa[V_PROJ], d->v, b->n1, xa[V_PROJ], &linear[V_PROJ], a, rows);
    linear_backward(d->n1, dxa[K_PROJ], d->k_raw, b->n1, xa[K_PROJ], &linear[K_PROJ], a, rows);
    linear_backward(d->n1, dxa[Q_PROJ], d->q_raw, b->n1, xa[Q_PROJ], &linear[Q_PROJ], a, rows);
    rmsnorm_backward(s->dx, d->n1, b->rstd1, b->x, w->norm1, rows, H);
}

/* Logits of the rows [first, end), given that those before first are there already:
 *
 *     x = embed[token], then all blocks, then logits = Wh norm(x) */
static void model_forward(const struct transformer *t, struct activations *s, const int32_t *tokens,
                          size_t first, size_t end)
{
    const struct config *c = &t->config;
    size_t H = c->hidden, n = end - first;
    if (end > s->rows || first >= end)
        fail("model_forward", "", "no rows, or more of them than there is memory for");
    for (size_t i = first; i < end; i++) {
        if (tokens[i] < 0 || (size_t)tokens[i] >= c->vocab)
            fail("model_forward", "tokens", "an id is outside of the vocabulary");
        memcpy(s->blocks[0].x + i * H, t->embed + (size_t)tokens[i] * H, H * sizeof(float));
    }
    for (size_t layer = 0; layer < c->layers; layer++)
        block_forward(t, s, layer, first, end,
                      layer + 1 < c->layers ? s->blocks[layer + 1].x : s->x);
    rmsnorm_forward(s->h + first * H, s->rstd + first, s->x + first * H, t->norm, n, H,
                    c->norm_eps);
    linear_forward(s->logits + first * c->vocab, s->xa_head + first * t->adapter.rank,
                   s->h + first * H, &t->head, &t->adapter, n);
}

/* Adds the gradient of the loss to the adapter's; crossentropy_forward() came before.  It ends at
 * the input of the first block: the embedding is frozen.  That of a tied head is, too: its LoRA
 * pair is on the output side alone. */
static void model_backward(const struct transformer *t, struct activations *s,
                           const struct example *e)
{
    const struct config *c = &t->config;
    crossentropy_backward(s, e, c->vocab);
    clear_floats(s->dh, e->n * c->hidden);
    clear_floats(s->dx, e->n * c->hidden);
    clear_floats(s->dxa_head, e->n * t->adapter.rank);
    linear_backward(s->dh, s->dxa_head, s->dlogits, s->h, s->xa_head, &t->head, &t->adapter, e->n);
    rmsnorm_backward(s->dx, s->dh, s->rstd, s->x, t->norm, e->n, c->hidden);
    for (size_t layer = c->layers; layer-- > 0;)
        block_backward(t, s, layer, e->n);
}

/* The loss of an example, without a gradient. */
static double compute_loss(const struct transformer *t, struct activations *s,
                           const struct example *e)
{
    for (size_t i = 0; i < e->n; i++)
        if (e->targets[i] < 0 || (size_t)e->targets[i] >= t->config.vocab)
            fail("compute_loss", "targets", "an id is outside of the vocabulary");
    model_forward(t, s, e->tokens, 0, e->n);
    return crossentropy_forward(s, e, t->config.vocab);
}

/* ---- AdamW ---- */

struct adamw {
    double learning_rate, beta1, beta2, eps;
    double weight_decay;
    double clip_norm; /* a gradient longer than this is shortened to it; 0: none is */
};

/* What a step of the service has unless it is told otherwise. */
static const struct adamw adamw_defaults = { 1e-4, 0.9, 0.95, 1e-12, 0, 0 };

/* AdamW (Loshchilov and Hutter, 2019), number s counting from 1:
 *
 *     m = beta1 m + (1 - beta1) g              v = beta2 v + (1 - beta2) g^2
 *     w = w (1 - rate decay) - rate / (1 - beta1^s) * m / (sqrt(v) / sqrt(1 - beta2^s) + eps)
 *
 * m is the gradient, averaged over about 10 steps, v its square over about 20.  Their quotient is
 * near +-1 where gradients agree from step to step and near 0 where they cancel: the rate says how
 * far a number may move in one step, whatever the scale of its gradient.
 *
 * m and v start at zero and are too small at first; 1 - beta^s corrects that.  eps is added after
 * the correction, as in PyTorch.  In the first step m / sqrt(v) is g / |g|: only the sign of a
 * gradient counts.  Decay shrinks w itself and is not part of g, which is the W in the name.
 * The gradient is used up: it is zero afterwards. */
static void adamw_step(struct adapter *a, const struct adamw *o)
{
    double norm = sqrt(dot(a->grad, a->grad, a->n));
    float clip = 1;
    if (!isfinite(norm))
        fail("adamw_step", "gradient", "is not finite: use a lower learning rate");
    if (o->clip_norm > 0 && norm > o->clip_norm)
        clip = (float)(o->clip_norm / (norm + 1e-6));
    a->steps++;
    float beta1 = (float)o->beta1, rest1 = (float)(1 - o->beta1);
    float beta2 = (float)o->beta2, rest2 = (float)(1 - o->beta2), eps = (float)o->eps;
    float decay = (float)(1 - o->learning_rate * o->weight_decay);
    float rate = (float)(o->learning_rate / (1 - pow(o->beta1, (double)a->steps)));
    float correction = (float)sqrt(1 - pow(o->beta2, (double)a->steps));
    for (size_t i = 0; i < a->n; i++) {
        float g = a->grad[i] * clip;
        a->m[i] = beta1 * a->m[i] + rest1 * g;
        a->v[i] = beta2 * a->v[i] + rest2 * (g * g);
        a->w[i] = a->w[i] * decay - rate * a->m[i] / (sqrtf(a->v[i]) / correction + eps);
    }
    clear_floats(a->grad, a->n);
}

/* One step of training on one example; the loss before it. */
static double train_step(struct transformer *t, struct activations *s, const struct example *e,
                         const struct adamw *o)
{
    double loss = compute_loss(t, s, e);
    model_backward(t, s, e);
    adamw_step(&t->adapter, o);
    return loss;
}

/* ---- sampling ---- */

/* Temperature 0 is greedy: the likeliest token, of equal ones the first.  Otherwise
 *
 *     p_i = exp(z_i / temperature) / sum of the same
 *
 * 1 is the model as it is, less is sharper, more is flatter.  u, uniform in [0, 1), picks the token
 * in whose part of the sum it falls.  sample.c also cuts off unlikely tokens (top_k, top_p). */
static int32_t pick_token(const float *z, size_t V, double temperature, double u)
{
    size_t best = 0;
    for (size_t i = 1; i < V; i++)
        if (z[i] > z[best])
            best = i;
    if (temperature == 0)
        return (int32_t)best;
    double total = 0, sum = 0;
    for (size_t i = 0; i < V; i++)
        total += exp(((double)z[i] - z[best]) / temperature);
    for (size_t i = 0; i < V; i++) {
        sum += exp(((double)z[i] - z[best]) / temperature);
        if (u * total < sum)
            return (int32_t)i;
    }
    return (int32_t)best; /* u * total was rounded up to the very end */
}

/* Continues tokens[0..n) in place by at most `more`; the new number of tokens.  The prompt is one
 * forward over all its rows; after that each token costs one row, since the keys and values of the
 * rows before it are still in s.  generator.c does this for many sequences at once: their rows
 * share the reading of W, which is what a single row spends its time on. */
static size_t generate_tokens(const struct transformer *t, struct activations *s, int32_t *tokens,
                              size_t n, size_t more, double temperature, uint64_t seed)
{
    size_t prompt = n, known = 0;
    while (n < prompt + more) {
        model_forward(t, s, tokens, known, n);
        known = n;
        const float *z = s->logits + (n - 1) * t->config.vocab;
        tokens[n] = pick_token(z, t->config.vocab, temperature, draw_uniform(seed, n - prompt));
        n++;
        if (tokens[n - 1] == t->config.eos)
            break;
    }
    return n;
}

/* ---- a small demonstration ---- */

/* A sentence in the tokens of models/tiny: a prompt, and what shall follow it. */
static const struct {
    int32_t id;
    const char *text;
} lesson[] = {
    { 824, "Once" },   { 425, " there" }, { 407, " was" }, { 285, " a" },
    { 361, " small" }, { 1257, " en" },   { 70, "g" },     { 819, "ine" },
    { 326, " that" },  { 986, " ne" },    { 301, "ed" },   { 301, "ed" },
    { 999, " no" },    { 1086, " ser" },  { 384, "ver" },  { 13, "." },
};
enum { LESSON = sizeof(lesson) / sizeof(lesson[0]), PROMPT = 4, RANK = 8, STEPS = 15 };

/* Continues the prompt and prints it.  A tokenizer is another subject (src/text): a token that is
 * not in the lesson appears as its number. */
static void print_sample(const char *title, const struct transformer *t, struct activations *s,
                         double temperature)
{
    int32_t tokens[LESSON];
    for (size_t i = 0; i < PROMPT; i++)
        tokens[i] = lesson[i].id;
    size_t n = generate_tokens(t, s, tokens, PROMPT, LESSON - PROMPT, temperature, 1);
    printf("%s: ", title);
    for (size_t i = 0; i < n; i++) {
        size_t k = 0;
        while (k < LESSON && lesson[k].id != tokens[i])
            k++;
        if (k < LESSON)
            printf("%s", lesson[k].text);
        else
            printf(" <%d>", (int)tokens[i]);
    }
    printf("\n");
}

int main(int argc, char **argv)
{
    struct transformer t;
    struct activations s;
    load_transformer(&t, argc > 1 ? argv[1] : "models/tiny");
    make_adapter(&t, RANK, 1);
    make_activations(&t, &s, LESSON);
    printf("%zu layers, hidden size %zu, %zu heads, %zu tokens; %zu numbers to train\n",
           t.config.layers, t.config.hidden, t.config.heads, t.config.vocab, t.adapter.n);

    /* Row i sees tokens[0..i] and learns tokens[i + 1], but not what the prompt says. */
    int32_t tokens[LESSON - 1], targets[LESSON - 1];
    float weights[LESSON - 1];
    for (size_t i = 0; i + 1 < LESSON; i++) {
        tokens[i] = lesson[i].id;
        targets[i] = lesson[i + 1].id;
        weights[i] = i + 1 >= PROMPT;
    }
    const struct example e = { tokens, targets, weights, LESSON - 1 };
    struct adamw adamw = adamw_defaults;
    adamw.learning_rate = 5e-3; /* one sentence, a few steps: this is learning by heart */

    /* The loss is summed over 12 tokens: 72 is 6 for each, little better than guessing, which is
     * log 2048 = 7.6, for no text that the model has seen goes on like this. */
    print_sample("before", &t, &s, 0);
    for (int step = 1; step <= STEPS; step++)
        printf("step %d loss %.4f\n", step, train_step(&t, &s, &e, &adamw));
    print_sample("after", &t, &s, 0);
    print_sample("after, at temperature 1", &t, &s, 1);

    free_activations(&s);
    free_transformer(&t);
    return EXIT_SUCCESS;
}
