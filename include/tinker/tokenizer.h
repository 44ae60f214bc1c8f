/* tokenizer.h - text to token ids and back, as the model's own files say.
 *
 * Loads tokenizer.json (with tokenizer_config.json beside it) and tiktoken rank
 * files.  Ids are those of the Hugging Face fast engine, or of tiktoken for rank
 * files.  A tokenizer never changes after it was loaded.
 *
 *     tinker_tokenizer *tok = tinker_tokenizer_load("Qwen/Qwen3-8B", NULL, &err);
 *     tinker_tokens ids = TINKER_TOKENS_INIT;
 *     if (tok && tinker_tokenizer_encode(tok, text, strlen(text), NULL, &ids, &err) == TINKER_OK)
 *         use(ids.ids, ids.n);
 *     tinker_tokens_clear(&ids);
 *     tinker_tokenizer_free(tok);
 *
 * Calls block on the CPU and, when they load, on files; never on the network.
 *
 * Thread safety: any thread, any time. */
#ifndef TINKER_TOKENIZER_H
#define TINKER_TOKENIZER_H

#include <stddef.h>
#include <stdint.h>
#include <tinker/data.h>
#include <tinker/error.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tinker_tokenizer tinker_tokenizer;

/* ---- growing results -----------------------------------------------------------------------
 *
 * Used as tinker_text of data.h is: start from the INIT value; calls that say "appends to *out"
 * grow it and leave what was there.  Set n to 0 to use the memory again; clear to give it back.
 * The memory is yours.  On failure n is what it was before the call.
 * Thread safety: plain data. */
typedef struct tinker_tokens {
    int32_t *ids;
    size_t n, cap;
} tinker_tokens;
#define TINKER_TOKENS_INIT \
    {                      \
        NULL, 0, 0         \
    }

/* Where a token came from: [begin, end) of the text that was given to encode. */
typedef struct tinker_span {
    size_t begin, end;
} tinker_span;
typedef struct tinker_spans {
    tinker_span *spans;
    size_t n, cap;
} tinker_spans;
#define TINKER_SPANS_INIT \
    {                     \
        NULL, 0, 0        \
    }

/* Free the memory; the object is empty and may be used again. */
TINKER_API void tinker_tokens_clear(tinker_tokens *t);
TINKER_API void tinker_spans_clear(tinker_spans *s);
/* Append a copy of ids[0..n) to *t.  TINKER_ENOMEM. */
TINKER_API tinker_status tinker_tokens_append(tinker_tokens *t, const int32_t *ids, size_t n,
                                              tinker_error *err);

/* ---- loading ------------------------------------------------------------------ */

/* A loader of your own: return the tokenizer of `repo` at `revision` ("": none is pinned) as a
 * new reference, which the call that loads hands on to its caller, or NULL with *err set.  Both
 * texts live during the call only.  Called in the thread that loads, once for a repository as long
 * as what it returned is remembered. */
typedef tinker_tokenizer *tinker_tokenizer_loader_fn(const char *repo, const char *revision,
                                                     tinker_error *err, void *state);

typedef struct tinker_encode_options tinker_encode_options;
typedef struct tinker_decode_options tinker_decode_options;

/* A tokenizer that is not ours: functions that encode and decode, called in the thread that calls the
 * library, by several at once.  Spans, bytes and spellings of tokens are not known of it. */
typedef struct tinker_tokenizer_functions {
    size_t size; /* set by TINKER_TOKENIZER_FUNCTIONS_INIT */
    /* Append the tokens of text[0..n) to *out (tinker_tokens_append()); opts is never NULL. */
    tinker_status (*encode)(const char *text, size_t n, const tinker_encode_options *opts,
                            tinker_tokens *out, tinker_error *err, void *state);
    /* Append the text of ids[0..n) to *out (tinker_text_append()). */
    tinker_status (*decode)(const int32_t *ids, size_t n, const tinker_decode_options *opts,
                            tinker_text *out, tinker_error *err, void *state);
    /* The id of a token such as "<|im_end|>", or -1; NULL: none is known. */
    int32_t (*id)(const char *token, size_t n, void *state);
    void (*free)(void *state); /* NULL: nothing to free; called when the tokenizer goes */
    void *state;
    size_t vocab_size;  /* 0: unknown */
    int32_t special[4]; /* by tinker_special_kind; -1: none */
} tinker_tokenizer_functions;
#define TINKER_TOKENIZER_FUNCTIONS_INIT                                      \
    {                                                                        \
        sizeof(tinker_tokenizer_functions), NULL, NULL, NULL, NULL, NULL, 0, \
        {                                                                    \
            -1, -1, -1, -1                                                   \
        }                                                                    \
    }

typedef struct tinker_tokenizer_options {
    size_t size;              /* set by TINKER_TOKENIZER_OPTIONS_INIT */
    const char *tokenizer_id; /* repository to use instead of the one the model name implies */
    const char *revision;     /* commit or branch in the Hugging Face cache; NULL: the rule's own */
    const char *hf_home;      /* NULL: HF_HUB_CACHE, HF_HOME, or ~/.cache/huggingface */
    const char *cache_dir;    /* prebuilt files; NULL: $XDG_CACHE_HOME/tinker or ~/.cache/tinker */
    int no_prebuilt;          /* neither read nor write prebuilt files */
    int lenient;              /* accept a byte-level vocabulary that lacks some of the 256 bytes */
    tinker_tokenizer_loader_fn *loader; /* asked instead of the Hugging Face cache */
    void *loader_state;                 /* last argument of loader */
    /* Used for any name instead of files; copied, a new tokenizer each time.  When loading fails,
     * the state stays the caller's. */
    const tinker_tokenizer_functions *functions;
} tinker_tokenizer_options;
#define TINKER_TOKENIZER_OPTIONS_INIT                                                    \
    {                                                                                    \
        sizeof(tinker_tokenizer_options), NULL, NULL, NULL, NULL, 0, 0, NULL, NULL, NULL \
    }

/* Load by name.  `name` is a file (tokenizer.json, *.tiktoken, tiktoken.model), a directory that
 * holds one, or else a model name such as "Qwen/Qwen3-8B" or "Qwen/Qwen3-8B:checkpoint", looked
 * up in the Hugging Face cache by the selection rules of the service.  Never uses the network.
 * Loading the same unchanged name with the same options again gives the same object; concurrent
 * first loads do the work once.  Blocks on files.
 * Returns a new reference (free with tinker_tokenizer_free()), or NULL with *err set:
 * TINKER_EINVAL with file, place and reason, TINKER_ESTATE when no file was found, TINKER_ENOMEM. */
TINKER_API tinker_tokenizer *
tinker_tokenizer_load(const char *name, const tinker_tokenizer_options *opts, tinker_error *err);

/* Load from memory: the bytes of a tokenizer.json and, optionally, of its tokenizer_config.json
 * (NULL: none).  The bytes are not needed after the call.  Returns a new reference, or NULL with
 * *err set: TINKER_EINVAL, TINKER_ENOMEM. */
TINKER_API tinker_tokenizer *tinker_tokenizer_load_json(const char *json, size_t n,
                                                        const char *config, size_t n_config,
                                                        const tinker_tokenizer_options *opts,
                                                        tinker_error *err);

/* One special token that a rank file itself does not name. */
typedef struct tinker_special_token {
    const char *text;
    int32_t id;
} tinker_special_token;

/* Load from the bytes of a tiktoken rank file: lines "<base64> <rank>".  `pattern` is the
 * regular expression that cuts text into pieces.  Nothing is needed after the call.  Returns a
 * new reference, or NULL with *err set: TINKER_EINVAL, TINKER_ENOMEM. */
TINKER_API tinker_tokenizer *
tinker_tokenizer_load_ranks(const char *ranks, size_t n, const char *pattern,
                            const tinker_special_token *special, size_t n_special,
                            const tinker_tokenizer_options *opts, tinker_error *err);

/* Another reference to the same tokenizer, to be freed as well.  Returns t; never fails. */
TINKER_API tinker_tokenizer *tinker_tokenizer_ref(tinker_tokenizer *t);
/* Free one reference; NULL is a no-op.  No other call on the reference may be in progress. */
TINKER_API void tinker_tokenizer_free(tinker_tokenizer *t);

/* Which repository and revision hold the tokenizer of a model, without touching any file:
 * "Qwen/Qwen3-8B:x" gives "Qwen/Qwen3-8B" and "".  `tokenizer_id` (NULL: none) is what the service
 * said, and wins.  TINKER_EINVAL for an empty or over-long name. */
typedef struct tinker_tokenizer_source {
    char repo[256];
    char revision[64]; /* "" when none is pinned */
} tinker_tokenizer_source;
TINKER_API tinker_status tinker_tokenizer_resolve(const char *model_name, const char *tokenizer_id,
                                                  tinker_tokenizer_source *out, tinker_error *err);

/* ---- text to tokens ------------------------------------------------------------------ */

/* What to do with text that spells an added token such as <|im_end|>. */
typedef enum tinker_special_policy {
    TINKER_SPECIAL_PARSE = 0, /* it becomes that token */
    TINKER_SPECIAL_TEXT = 1,  /* special ones are plain text; other added tokens still count */
    TINKER_SPECIAL_NONE = 2,  /* all added tokens are plain text */
    TINKER_SPECIAL_ERROR = 3  /* a special one is refused: TINKER_EINVAL with its position */
} tinker_special_policy;

struct tinker_encode_options {
    size_t size;                   /* set by TINKER_ENCODE_OPTIONS_INIT */
    int add_special;               /* add what the model's template adds (Llama 3: BOS); Python's
                                      default is on, renderers and this library's is off */
    tinker_special_policy special; /* TINKER_SPECIAL_PARSE */
    int replace_invalid;           /* ill-formed UTF-8 becomes U+FFFD instead of an error */
    int scalar_offsets;            /* spans count code points, as in Python, instead of bytes */
    int threads;                   /* tinker_tokenizer_encode_batch(): at most so many, which exist
                                      for the call only; 0: as many as there are cores */
};
#define TINKER_ENCODE_OPTIONS_INIT                                      \
    {                                                                   \
        sizeof(tinker_encode_options), 0, TINKER_SPECIAL_PARSE, 0, 0, 0 \
    }

/* Encode text[0..n), UTF-8, NUL bytes allowed; appends to *out.  No chat template is applied.
 * To count tokens, encode and read out->n.  Works in the caller's thread.
 * TINKER_EINVAL for ill-formed UTF-8 (with its byte position), for a special token refused by
 * the policy, and for a file's own pattern that exceeds its step budget; TINKER_ENOMEM. */
TINKER_API tinker_status tinker_tokenizer_encode(const tinker_tokenizer *t, const char *text,
                                                 size_t n, const tinker_encode_options *opts,
                                                 tinker_tokens *out, tinker_error *err);

/* A text that the caller owns; borrowed during the call. */
typedef struct tinker_slice {
    const char *s;
    size_t n;
} tinker_slice;

/* Encode many texts, or one whose spans are wanted: texts[i] into out[i] for all i < n, on up to
 * opts->threads threads.  spans (NULL: not wanted) has n elements, too: spans[i] receives one span
 * for each token of out[i].  All tokens of one character report the whole character; tokens of the
 * model's template report an empty span at 0.  Appends.
 * Errors are those of tinker_tokenizer_encode() and name the index of the first text that failed;
 * every out[i] and spans[i] is then as it was before. */
TINKER_API tinker_status tinker_tokenizer_encode_batch(const tinker_tokenizer *t,
                                                       const tinker_slice *texts, size_t n,
                                                       const tinker_encode_options *opts,
                                                       tinker_tokens *out, tinker_spans *spans,
                                                       tinker_error *err);

/* ---- tokens to text ------------------------------------------------------------------ */

struct tinker_decode_options {
    size_t size;      /* set by TINKER_DECODE_OPTIONS_INIT */
    int skip_special; /* leave out special tokens */
    int raw_bytes;    /* the tokens' bytes as they are: may be ill-formed UTF-8 */
    int strict;       /* an id without a token is TINKER_EINVAL; otherwise it is left out */
    int cleanup;      /* remove spaces before punctuation, as old Python releases did */
};
#define TINKER_DECODE_OPTIONS_INIT                \
    {                                             \
        sizeof(tinker_decode_options), 0, 0, 0, 0 \
    }

/* Decode ids[0..n); appends to *out.  Bytes that are not UTF-8 become U+FFFD, one for each
 * maximal ill-formed part, unless raw_bytes is set.  TINKER_EINVAL, TINKER_ENOMEM. */
TINKER_API tinker_status tinker_tokenizer_decode(const tinker_tokenizer *t, const int32_t *ids,
                                                 size_t n, const tinker_decode_options *opts,
                                                 tinker_text *out, tinker_error *err);

/* Decode as tokens arrive.  What was appended so far is always complete characters, and in the
 * end equals what tinker_tokenizer_decode() gives for all ids at once.  Holds a reference to its
 * tokenizer.  Thread safety: one thread at a time. */
typedef struct tinker_decoder tinker_decoder;

/* New decoder (free with tinker_decoder_free()), or NULL with *err set: TINKER_EINVAL (raw_bytes
 * and cleanup do not stream), TINKER_ENOMEM. */
TINKER_API tinker_decoder *tinker_decoder_new(tinker_tokenizer *t,
                                              const tinker_decode_options *opts, tinker_error *err);
/* NULL is a no-op.  No other call on the object may be in progress. */
TINKER_API void tinker_decoder_free(tinker_decoder *d);
/* Take ids[0..n); appends the characters that are now complete, possibly none, to *out.
 * TINKER_EINVAL for an id without a token when `strict` is set, TINKER_ENOMEM. */
TINKER_API tinker_status tinker_decoder_put(tinker_decoder *d, const int32_t *ids, size_t n,
                                            tinker_text *out, tinker_error *err);
/* No more ids: appends U+FFFD for a character that was never completed.  The decoder may then
 * be used for another sequence.  TINKER_ENOMEM. */
TINKER_API tinker_status tinker_decoder_end(tinker_decoder *d, tinker_text *out, tinker_error *err);

/* ---- the vocabulary ------------------------------------------------------------------ */

/* Id of a token as the file spells it ("<|im_end|>", "Ġhello"), or -1. */
TINKER_API int32_t tinker_tokenizer_id(const tinker_tokenizer *t, const char *token, size_t n);
/* Append the file's spelling of a token to *out.  TINKER_EINVAL when there is no such id,
 * TINKER_ENOMEM. */
TINKER_API tinker_status tinker_tokenizer_token(const tinker_tokenizer *t, int32_t id,
                                                tinker_text *out, tinker_error *err);
/* The bytes that a token stands for (" hello"), *n of them, not NUL-terminated; borrowed from the
 * tokenizer.  NULL: no such id. */
TINKER_API const char *tinker_tokenizer_bytes(const tinker_tokenizer *t, int32_t id, size_t *n);

typedef enum tinker_special_kind {
    TINKER_TOKEN_BOS = 0,
    TINKER_TOKEN_EOS = 1,
    TINKER_TOKEN_PAD = 2,
    TINKER_TOKEN_UNK = 3
} tinker_special_kind;
/* Id of the token with this role according to the model's configuration, or -1. */
TINKER_API int32_t tinker_tokenizer_special(const tinker_tokenizer *t, tinker_special_kind kind);
/* 1 when the id is a special token, or any added token; else 0. */
TINKER_API int tinker_tokenizer_is_special(const tinker_tokenizer *t, int32_t id);
TINKER_API int tinker_tokenizer_is_added(const tinker_tokenizer *t, int32_t id);

/* Number of tokens, with or without added ones; ids may have holes, so the largest id is asked
 * for separately (-1: none).  A model's embedding may be larger still. */
TINKER_API size_t tinker_tokenizer_vocab_size(const tinker_tokenizer *t, int with_added);
TINKER_API int32_t tinker_tokenizer_max_id(const tinker_tokenizer *t);

/* The model's own chat template (Jinja), or NULL; model_max_length, or 0 when not stated.
 * Borrowed from the tokenizer. */
TINKER_API const char *tinker_tokenizer_chat_template(const tinker_tokenizer *t);
TINKER_API int64_t tinker_tokenizer_max_length(const tinker_tokenizer *t);

#ifdef __cplusplus
}
#endif
#endif
