/* room: text - any bytes as a chat template: no crash, no leak, bounded memory and time.
 *
 * Limits are small so that a template which runs away is stopped within milliseconds. */
#include <stdint.h>
#include <stdlib.h>
#include <tinker/chat.h>
#include <tinker/extra/template.h>

static const char messages[] =
    "[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"user\",\"content\":\"H\xc3\xa9 "
    "<|im_end|>\"},"
    "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"1\",\"type\":\"function\","
    "\"function\":"
    "{\"name\":\"f\",\"arguments\":{\"a\":[1,2.5,true,null],\"b\":{\"c\":\"d\"}}}}]},"
    "{\"role\":\"tool\",\"content\":[{\"type\":\"text\",\"text\":\"r\"}]}]";
static const char tools[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{}}}]";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    tinker_error err;
    tinker_template_options opts = TINKER_TEMPLATE_OPTIONS_INIT;
    opts.max_memory = 4 << 20;
    opts.max_steps = 200000;
    opts.bos_token = "<s>";
    opts.add_generation_prompt = 1;
    opts.now = 1780000000;
    if (size == 0)
        return 0;
    tinker_template *t = tinker_template_new((const char *)data, size, &err);
    if (!t)
        return 0;
    tinker_text text = TINKER_TEXT_INIT;
    if (tinker_template_render_json(t, messages, tools, &opts, &text, &err) == TINKER_OK &&
        text.n > opts.max_memory)
        abort();
    tinker_text_clear(&text);
    tinker_template_free(t);
    return 0;
}
