/* render_fixture.h - a tokenizer for tests of renderers: one token per byte, plus the control
 * tokens of all chat formats, so that what is rendered can be read by decoding it. */
#ifndef UNIT_TEXT_RENDER_FIXTURE_H
#define UNIT_TEXT_RENDER_FIXTURE_H

#include <stdio.h>
#include <string.h>
#include <tinker/chat.h>
#include "base/buf.h"
#include "base/utf8.h"
#include "json/json.h"

static const char *const fixture_special[] = { "<|im_start|>",
                                               "<|im_end|>",
                                               "<|endoftext|>",
                                               "<|vision_start|>",
                                               "<|vision_end|>",
                                               "<|begin_of_text|>",
                                               "<|start_header_id|>",
                                               "<|end_header_id|>",
                                               "<|eot_id|>",
                                               "<｜begin▁of▁sentence｜>",
                                               "<｜end▁of▁sentence｜>",
                                               "<|im_user|>",
                                               "<|im_assistant|>",
                                               "<|im_system|>",
                                               "<|im_middle|>",
                                               "<|tool_calls_section_begin|>",
                                               "<|tool_calls_section_end|>",
                                               "<|tool_call_begin|>",
                                               "<|tool_call_argument_begin|>",
                                               "<|tool_call_end|>",
                                               "<|media_begin|>",
                                               "<|media_content|>",
                                               "<|media_end|>",
                                               "<|start|>",
                                               "<|end|>",
                                               "<|message|>",
                                               "<|channel|>",
                                               "<|constrain|>",
                                               "<|return|>",
                                               "<|call|>",
                                               "[gMASK]",
                                               "<sop>",
                                               "<|system|>",
                                               "<|user|>",
                                               "<|assistant|>",
                                               "<|observation|>",
                                               "<|message_user|>",
                                               "<|message_model|>",
                                               "<|message_system|>",
                                               "<|message_tool|>",
                                               "<|content_text|>",
                                               "<|content_image|>",
                                               "<|content_model_end_sampling|>",
                                               "<|content_thinking|>",
                                               "<|content_xml|>",
                                               "<|end_message|>",
                                               "<|content_invoke_tool_json|>",
                                               NULL };
/* Added and not special; DeepSeek has its control tokens so. */
static const char *const fixture_plain[] = { "<think>",
                                             "</think>",
                                             "<tool_call>",
                                             "</tool_call>",
                                             "<tool_response>",
                                             "</tool_response>",
                                             "<｜User｜>",
                                             "<｜Assistant｜>",
                                             "<｜System｜>",
                                             "<｜tool▁calls▁begin｜>",
                                             "<｜tool▁calls▁end｜>",
                                             "<｜tool▁call▁begin｜>",
                                             "<｜tool▁call▁end｜>",
                                             "<｜tool▁sep｜>",
                                             "<｜tool▁output▁begin｜>",
                                             "<｜tool▁output▁end｜>",
                                             NULL };

static void fixture_added(struct json_writer *w, const char *const *names, bool special,
                          int64_t *id)
{
    for (; *names; names++) {
        json_put_begin_object(w);
        json_put_key(w, "id");
        json_put_int64(w, (*id)++);
        json_put_key(w, "content");
        json_put_string(w, *names);
        static const char *const flags[] = { "single_word", "lstrip", "rstrip", "normalized" };
        for (size_t i = 0; i < 4; i++) {
            json_put_key(w, flags[i]);
            json_put_bool(w, false);
        }
        json_put_key(w, "special");
        json_put_bool(w, special);
        json_put_end_object(w);
    }
}

static tinker_tokenizer *fixture_tokenizer(tinker_error *err)
{
    static const char config[] = "{\"eos_token\":\"<|im_end|>\"}";
    struct buf b;
    struct json_writer w;
    int64_t id = 256;
    uint32_t extra = 256;
    buf_init(&b, 1 << 20);
    buf_puts(&b, "{\"version\":\"1.0\",\"added_tokens\":");
    json_writer_init(&w, &b);
    json_put_begin_array(&w);
    fixture_added(&w, fixture_special, true, &id);
    fixture_added(&w, fixture_plain, false, &id);
    json_put_end_array(&w);
    buf_puts(&b,
             ",\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":"
             "false,\"use_regex\":false},\"post_processor\":null,\"decoder\":{\"type\":"
             "\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":");
    json_writer_init(&w, &b);
    json_put_begin_object(&w);
    for (int byte = 0; byte < 256; byte++) {
        bool itself = (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
        char text[4];
        int n = utf8_encode(itself ? (uint32_t)byte : extra++, text);
        json_put_key_n(&w, text, (size_t)n);
        json_put_int64(&w, byte);
    }
    json_put_end_object(&w);
    buf_puts(&b, "}}");
    tinker_tokenizer_options opts = TINKER_TOKENIZER_OPTIONS_INIT;
    opts.no_prebuilt = 1;
    tinker_tokenizer *t =
        b.data ? tinker_tokenizer_load_json(b.data, b.len, config, sizeof(config) - 1, &opts, err)
               : NULL;
    buf_clear(&b);
    return t;
}

static tinker_tokenizer *tokenizer; /* of every test */

static bool fixture_open(void)
{
    tinker_error err = { .message = "" };
    tokenizer = fixture_tokenizer(&err);
    if (!tokenizer)
        printf("Bail out! %s\n", err.message);
    return tokenizer != NULL;
}

#endif
