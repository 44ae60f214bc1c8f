/* tiktoken_family.c - what a rank file does not say: pattern and special tokens, by family.
 *
 * A family is known by the name of its file, or by the files beside it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/array.h"
#include "base/err.h"
#include "tokenizer/load/tok_open.h"

/* Tables end with a NULL text. */
struct named {
    int32_t id;
    const char *text;
};

/* OpenAI's encodings, as tiktoken defines them. */
static const struct named cl100k[] = {
    { 100257, "<|endoftext|>" },  { 100258, "<|fim_prefix|>" },  { 100259, "<|fim_middle|>" },
    { 100260, "<|fim_suffix|>" }, { 100276, "<|endofprompt|>" }, { 0, NULL },
};
static const struct named o200k[] = {
    { 199999, "<|endoftext|>" },
    { 200018, "<|endofprompt|>" },
    { 0, NULL },
};
/* gpt-oss: o200k with the tokens of its chat format; the rest up to 201087 is reserved. */
static const struct named harmony[] = {
    { 199998, "<|startoftext|>" },
    { 199999, "<|endoftext|>" },
    { 200002, "<|return|>" },
    { 200003, "<|constrain|>" },
    { 200005, "<|channel|>" },
    { 200006, "<|start|>" },
    { 200007, "<|end|>" },
    { 200008, "<|message|>" },
    { 200012, "<|call|>" },
    { 200018, "<|endofprompt|>" },
    { 0, NULL },
};
/* Inkling: o200k with the tokens of its chat format; all others up to 200057 are unused. */
static const struct named tml[] = {
    { 199998, "<|unused|>" },
    { 199999, "<|endoftext|>" },
    { 200000, "<|message_user|>" },
    { 200001, "<|message_model|>" },
    { 200002, "<|message_system|>" },
    { 200003, "<|message_tool|>" },
    { 200004, "<|content_text|>" },
    { 200005, "<|content_image|>" },
    { 200006, "<|content_model_end_sampling|>" },
    { 200008, "<|content_thinking|>" },
    { 200010, "<|end_message|>" },
    { 200020, "<|content_audio_input|>" },
    { 200022, "<|content_tool_error|>" },
    { 200023, "<|audio|>" },
    { 200024, "<|content_xml|>" },
    { 200028, "<|begin_of_text|>" },
    { 200043, "<|audio_end|>" },
    { 200049, "<|content_invoke_tool_json|>" },
    { 200057, "<|content_invoke_tool_text|>" },
    { 0, NULL },
};
/* tokenizer.model of Meta's own releases, which is a rank file since Llama 3. */
static const struct named llama3[] = {
    { 128000, "<|begin_of_text|>" },
    { 128001, "<|end_of_text|>" },
    { 128002, "<|reserved_special_token_0|>" },
    { 128003, "<|reserved_special_token_1|>" },
    { 128004, "<|finetune_right_pad_id|>" },
    { 128005, "<|reserved_special_token_2|>" },
    { 128006, "<|start_header_id|>" },
    { 128007, "<|end_header_id|>" },
    { 128008, "<|eom_id|>" },
    { 128009, "<|eot_id|>" },
    { 128010, "<|python_tag|>" },
    { 0, NULL },
};

/* Ids from first to last that the table leaves out are reserved; base not 0: their names count
 * from there, as in Llama 3. */
static const struct family {
    const char *name; /* part of the file's name */
    const char *pattern;
    const struct named *named;
    int32_t first, last, base;
    bool unused; /* the others are called so, not reserved */
} families[] = {
    /* the first whose name fits, so the longer one comes first */
    { .name = "o200k_tml",
      .pattern = split_o200k_pattern,
      .named = tml,
      .first = 199998,
      .last = 200057,
      .unused = true },
    { .name = "o200k_harmony",
      .pattern = split_o200k_pattern,
      .named = harmony,
      .first = 199998,
      .last = 201087 },
    { .name = "o200k", .pattern = split_o200k_pattern, .named = o200k, .last = -1 },
    { .name = "cl100k", .pattern = split_cl100k_pattern, .named = cl100k, .last = -1 },
    { .name = "tokenizer.model",
      .pattern = split_cl100k_pattern,
      .named = llama3,
      .first = 128011,
      .last = 128255,
      .base = 128008 },
};

/* Pattern and special tokens of a family, in the arena. */
static tinker_status fill_source(const struct family *f, struct tok_source *s, struct arena *arena,
                                 tinker_error *err)
{
    size_t n = 0, room = 16 + (f->last >= f->first ? (size_t)(f->last - f->first + 1) : 0);
    tinker_special_token *list = arena_array(arena, room, sizeof(*list));
    if (!list)
        return err_nomem(err, "special tokens");
    for (const struct named *k = f->named; k->text; k++)
        list[n++] = (tinker_special_token){ k->text, k->id };
    for (int32_t id = f->first; id <= f->last; id++) {
        const struct named *k = f->named;
        while (k->text && k->id != id)
            k++;
        if (k->text)
            continue; /* it has a name */
        char *text = arena_alloc(arena, 48);
        if (!text)
            return err_nomem(err, "special tokens");
        int number = (int)(id - f->base);
        if (f->base)
            snprintf(text, 48, "<|reserved_special_token_%d|>", number);
        else if (f->unused)
            snprintf(text, 48, "<|unused_%d|>", number);
        else
            snprintf(text, 48, "<|reserved_%d|>", number);
        list[n++] = (tinker_special_token){ text, id };
    }
    s->pattern = f->pattern;
    s->special = list;
    s->n_special = n;
    return TINKER_OK;
}

tinker_status tiktoken_family_find(const struct tok_files *f, struct tok_source *source,
                                   struct arena *arena, tinker_error *err)
{
    const char *slash = strrchr(f->main, '/'), *name = slash ? slash + 1 : f->main;
    if (strcmp(name, "tiktoken.model") == 0) {
        source->pattern = split_kimi_pattern; /* its names are in tokenizer_config.json */
        source->kimi = true;
        return TINKER_OK;
    }
    /* Llama 2's tokenizer.model is a protobuf: field 1, a length, field 1 again. */
    if (source->ranks_n > 2 && source->ranks[0] == '\n' && source->ranks[2] == '\n')
        return err_set(err, TINKER_EINVAL,
                       "a SentencePiece model, which is not supported; save the tokenizer as "
                       "tokenizer.json");
    /* Inkling's rank file is OpenAI's own; only the repository tells whose tokens are added. */
    if (strstr(name, "o200k") &&
        (strstr(f->main, "--thinkingmachines--") || strstr(f->main, "/thinkingmachines/") ||
         strstr(f->main, "--TML--") || strstr(f->main, "/TML/")))
        name = "o200k_tml";
    for (size_t i = 0; i < ARRAY_LEN(families); i++)
        if (strstr(name, families[i].name))
            return fill_source(&families[i], source, arena, err);
    return err_set(err, TINKER_EINVAL,
                   "cannot tell the family of this rank file by its name (o200k…, cl100k…, "
                   "tiktoken.model, tokenizer.model)");
}
