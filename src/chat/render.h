/* render.h - inside the renderers: one table of formats, one way to assemble.
 *
 * A format turns one message into a header, output chunks and possibly a stop overlap;
 * render_build.c puts messages together and weighs them.  What varies inside a family is
 * in the flags of the variant.  A renderer is immutable; every call has its own arena and
 * jx, where all failures end up. */
#ifndef CHAT_RENDER_H
#define CHAT_RENDER_H

#include <tinker/chat.h>
#include "chat/chat.h"
#include "jinja/jinja_value.h"

struct render_ids {
    const int32_t *ids;
    size_t n;
};

struct render_chunk {
    tinker_chunk chunk;
    float weight;
};

/* One message, rendered. */
struct render_out {
    struct render_ids header, overlap;
    bool has_header, has_overlap;
    struct render_chunk *chunks;
    size_t n, cap;
};

/* Where a message stands. */
struct render_at {
    const tinker_message *message, *prev, *next;
    int64_t index, last_user; /* last_user -1: there is no user message */
    bool is_last, in_last_turn;
};

enum {
    RENDER_NO_THINK = 1 << 0, /* the prompt closes the think block */
    RENDER_THINKING = 1 << 1, /* deepseek, glm: the prompt opens a think block */
    RENDER_INSTRUCT = 1 << 2, /* qwen3: no think blocks of its own */
    RENDER_KEEP = 1 << 3,     /* thinking of history is kept */
    RENDER_EXTENDS = 1 << 4,  /* has the extension property whatever the options */
    RENDER_NEVER_EXTENDS = 1 << 5,
    RENDER_LOW = 1 << 6,
    RENDER_MEDIUM = 1 << 7,
    RENDER_HIGH = 1 << 8,
    RENDER_ULTRA = 1 << 9, /* nemotron3 ultra */
    RENDER_K25 = 1 << 10,  /* kimi 2.5 and later */
    RENDER_VL = 1 << 11,   /* qwen3_vl family */
    RENDER_Q35 = 1 << 12,  /* qwen3.5 and what builds on it */
    RENDER_Q38 = 1 << 13,
    RENDER_NEMOTRON = 1 << 14
};

struct render_parse; /* a response being taken apart, see render_parse.h */
struct render_call;

struct render_format {
    /* Control tokens that must exist, each a single token; the first ones stop. */
    const char *tokens[6];
    size_t n_stop;
    const char *bos; /* NULL: none */
    /* What a prompt begins with instead, when it is more than one token. */
    struct render_ids (*opening)(struct render_call *c);
    bool (*render)(struct render_call *c, const struct render_at *at, struct render_out *out);
    /* NULL: header of an empty message of that role. */
    bool (*suffix)(struct render_call *c, const char *role, const struct render_at *at,
                   struct render_ids *out);
    /* Messages as the format wants them (system inserted ...); NULL: as they are. */
    void (*prepare)(struct render_call *c, const tinker_message **messages, size_t *n);
    /* First message of the turn being produced; NULL: after the last user message. */
    size_t (*turn_start)(const tinker_message *messages, size_t n);
    /* What the prompt always begins the answer with, "" or NULL for nothing. */
    const char *(*prefill)(const struct render_call *c, const tinker_message *messages, size_t n);
    void (*parse)(struct render_call *c, struct render_parse *p, bool streaming);
    void (*tools)(struct render_call *c, struct jv tools, const char *system, struct jv out);
    bool split_by_user; /* kimi: examples end at user messages */
    bool think_tags;    /* answers may hold <think> blocks */
    bool plain_content; /* control tokens typed in content are always text */
};

struct render_variant {
    const char *name;
    const struct render_format *format;
    unsigned flags;
};

struct tinker_renderer {
    const struct render_variant *variant;
    const struct render_format *format;
    tinker_tokenizer *tokenizer;
    tinker_renderer_options opts;
    char date[16];
    unsigned flags; /* the variant's, KEEP adjusted by the options */
    int32_t stop[4], bos, think_open, think_close;
    size_t n_stop;
};

/* One call on a renderer. */
struct render_call {
    const tinker_renderer *r;
    struct jx x;
    bool nested;          /* the prompt of an example: messages are prepared already */
    int64_t drop_through; /* deepseek v4: up to this message thinking is left out */
};

extern const struct render_format render_role_colon, render_llama3, render_qwen3, render_qwen_vl,
    render_deepseek, render_deepseek4, render_glm, render_kimi, render_harmony, render_tml;

const struct render_variant *render_variant_find(const char *name);

/* ---- encoding ---- */

/* Text under construction: bytes, and which of them came from a message. */
struct render_text {
    struct render_call *c;
    struct buf buf;
    struct {
        size_t begin, end;
    } * content;
    size_t n, cap;
};
void text_init(struct render_text *t, struct render_call *c);
void text_markup(struct render_text *t, const char *s);
void text_content(struct render_text *t, struct jv_str s);
/* The name of a role or tool: untrusted text, like content. */
void text_name(struct render_text *t, const char *s);
void text_capitalized(struct render_text *t, const char *s);
/* Encode and clear.  Control tokens in content are text if `plain` or safe_content. */
struct render_ids text_encode(struct render_text *t, bool plain);
struct render_ids render_encode(struct render_call *c, const char *text);
struct render_ids render_join(struct render_call *c, struct render_ids a, struct render_ids b);
void render_push_ids(struct render_call *c, struct render_out *out, struct render_ids ids);
void render_push_text(struct render_text *t, struct render_out *out, bool plain);
void render_push_image(struct render_call *c, struct render_out *out, const tinker_part *part);
void render_set_header(struct render_out *out, struct render_ids ids);

/* ---- looking at messages ---- */

bool role_is(const tinker_message *m, const char *role);
/* String content or a single text part; fails otherwise. */
struct jv_str message_text(struct render_call *c, const tinker_message *m);
bool message_has_thinking(const tinker_message *m); /* part, or <think> in a string */
bool message_has_thinking_part(const tinker_message *m);
bool message_has_text_part(const tinker_message *m); /* non-empty */
bool message_is_empty(const tinker_message *m);
/* All parts of one kind, joined; a string counts as one text part. */
struct jv_str message_join(struct render_call *c, const tinker_message *m, tinker_part_kind kind);
struct jv message_arguments(struct render_call *c, const tinker_tool_call *call);
/* The arguments of a call, which must be an object; none where there are none. */
struct jv call_arguments(struct render_call *c, const tinker_tool_call *call);
struct jv_str render_dumps(struct render_call *c, struct jv v);
struct jv_str render_dumps_utf8(struct render_call *c, struct jv v); /* \u only where it must */
void render_warn(const struct render_call *c, const char *line);
/* A copy of messages[0..n) with `first` put before index `at`. */
const tinker_message *render_insert(struct render_call *c, const tinker_message *messages,
                                    size_t *n, size_t at, tinker_message first);

/* qwen tool calls: {"name":..., "arguments":...} lines and the XML form of 3.5. */
void qwen_put_json_calls(struct render_text *t, const tinker_message *m);

/* tool declarations */
void qwen_tools(struct render_call *c, struct jv tools, const char *system, struct jv out);
void deepseek_tools(struct render_call *c, struct jv tools, const char *system, struct jv out);
void deepseek4_tools(struct render_call *c, struct jv tools, const char *system, struct jv out);
/* What the model is told about the tools of a tool_declare message. */
void deepseek4_declare(struct render_call *c, struct buf *out, struct jv_str json);
void glm_tools(struct render_call *c, struct jv tools, const char *system, struct jv out);
void kimi_tools(struct render_call *c, struct jv tools, const char *system, struct jv out);
void harmony_tools(struct render_call *c, struct jv tools, const char *system, struct jv out);
void kimi_typescript(struct jx *x, struct buf *out, struct jv tools);
/* Whether a JSON schema lists the property `name` as required. */
bool tools_is_required(struct jv schema, struct jv name);
void tools_add_message(struct render_call *c, struct jv out, const char *role, struct buf *text);

extern const char kimi_default_system[];
extern const char harmony_system_role[];

#endif
