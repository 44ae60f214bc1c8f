/* render_parse.h - taking a response apart, shared by the formats. */
#ifndef CHAT_RENDER_PARSE_H
#define CHAT_RENDER_PARSE_H

#include "chat/render.h"

/* A response and what was found in it.  Content is `content` unless as_list. */
struct render_parse {
    const int32_t *tokens;
    size_t n_tokens;
    tinker_termination termination;
    struct jv_str content;
    bool as_list;
    tinker_part *parts;
    size_t n_parts, cap_parts;
    tinker_tool_call *calls;
    size_t n_calls, cap_calls;
    tinker_unparsed_tool_call *unparsed;
    size_t n_unparsed, cap_unparsed;
};

struct jv_str parse_decode(struct render_call *c, const int32_t *tokens, size_t n);
/* Put `prefix` before the tokens unless they begin with it or lack `needed`. */
void parse_restore(struct render_call *c, struct render_parse *p, struct render_ids prefix,
                   int32_t needed);
/* Content up to the single stop token, of any kind; several fail. */
void parse_stop(struct render_call *c, struct render_parse *p);
void parse_add_part(struct render_call *c, struct render_parse *p, tinker_part_kind kind,
                    struct jv_str text);
void parse_add_call(struct render_call *c, struct render_parse *p, const char *id,
                    struct jv_str name, struct jv_str arguments);
void parse_add_unparsed(struct render_call *c, struct render_parse *p, struct jv_str raw,
                        const char *error);
/* Arguments that must be JSON and are kept as they are; unparsed otherwise. */
void parse_add_checked(struct render_call *c, struct render_parse *p, const char *id,
                       struct jv_str name, struct jv_str arguments, struct jv_str raw);
/* Split text at think blocks and, if asked, at tool_call blocks; without any, it becomes
 * the content as it is. */
void parse_blocks(struct render_call *c, struct render_parse *p, struct jv_str text, bool tools);
/* Record an opened block that was never closed; whether there was one. */
bool parse_unterminated(struct render_call *c, struct render_parse *p, struct jv_str text,
                        const char *open, const char *close);
/* One argument of a call: JSON if it reads as JSON, else the text. */
struct jv parse_argument(struct render_call *c, struct jv_str s);
bool parse_is_word(uint32_t cp); /* as \w of Python */
/* Offset of `what` in text at or after `from`; SIZE_MAX: none. */
size_t parse_find(struct jv_str text, const char *what, size_t from);
struct jv_str parse_slice(struct jv_str text, size_t begin, size_t end); /* [begin, end) */
struct jv_str parse_from(struct jv_str text, size_t begin);              /* up to the end */
bool parse_is_blank(struct jv_str text);                                 /* white space only */
const char *parse_cstr(struct render_call *c, struct jv_str s);
/* The whole of parsing; `streaming`: also when the stop token is missing. */
tinker_parsed *render_parse_tokens(const tinker_renderer *r, const int32_t *tokens, size_t n,
                                   bool streaming, tinker_error *err);
/* Between the first `open` at or after *at and the next `close`; false: no such pair.  *at
 * becomes the end of the close, *begin the start of the open. */
bool parse_between(struct jv_str text, const char *open, const char *close, size_t *at,
                   size_t *begin, struct jv_str *inner);

/* Where a marker occurs next; looking on from further and further back reads the text once. */
struct parse_mark {
    const char *what;
    bool known;
    size_t at;
};
/* Start of the marker at or after `from`, which never decreases; SIZE_MAX: none. */
size_t parse_next(struct parse_mark *m, struct jv_str text, size_t from);

/* Qwen's think and tool_call blocks; `frames`: padding around thinking is not content. */
void qwen_parse(struct render_call *c, struct render_parse *p, bool streaming, bool frames);

#endif
