/* arch.c - the table of architectures: complete, without duplicates, and what errors list. */
#include "engine/model/arch.c"

#include "engine/model/config.h"
#include "support/tap.h"

static void test_rows_are_complete(void)
{
    for (size_t i = 0; i < ARRAY_LEN(arches); i++) {
        const struct arch *a = &arches[i];
        const struct arch_names *n = a->names;
        CHECK(arch_by_name(a->name) == a); /* the first of its name */
        CHECK(arch_by_class(a->hf_class, strlen(a->hf_class)) == a);
        CHECK(a->ropes & 1u << ROPE_DEFAULT);
        CHECK(n->embed && n->layers && n->norm && n->head);
        CHECK((n->norm1 && n->norm2) || (n->post_norm1 && n->post_norm2));
        CHECK(n->adapter_head && (!a->qk_norm || (n->q_norm && n->k_norm)));
        for (int id = 0; id < LINEAR_SHARED_GATE; id++)
            CHECK(n->linear[id] != NULL || (linear_is_attention(id) && id > LINEAR_O && !a->delta));
        if (a->delta)
            CHECK(n->conv && n->a_log && n->dt_bias && n->delta_norm);
        if (a->wrapper)
            CHECK(arch_by_wrapper(a->wrapper, strlen(a->wrapper), a->name, strlen(a->name)) == a);
        if (!a->moe)
            continue;
        CHECK(n->router && n->experts && n->stacked_gate_up && n->stacked_down);
        for (int id = 0; id < EXPERT_LINEARS; id++)
            CHECK(n->expert[id] && n->adapter_expert[id]);
    }
}

static void test_unknown_names(void)
{
    CHECK(arch_by_name("gpt2") == NULL);
    CHECK(arch_by_name("") == NULL);
    CHECK(arch_by_class("LlamaForCausalLM", 5) == NULL);
    CHECK(arch_by_class("", 0) == NULL);
}

static void test_list_is_cut_to_size(void)
{
    char all[512], few[20];
    arch_list_classes(all, sizeof(all));
    CHECK(strncmp(all, "Llama, Qwen2, Qwen3, Qwen3Moe, Mistral, ", 40) == 0);
    arch_list_classes(few, sizeof(few));
    CHECK_STR(few, "Llama, Qwen2, Qwen3");
}

/* The user learns what would work. */
static void test_unknown_architecture_lists_the_known(void)
{
    static const char text[] = "{\"architectures\":[\"GPT2LMHeadModel\"]}";
    struct model_config c;
    tinker_error err = { 0 };
    CHECK_INT(config_parse(&c, "config.json", text, strlen(text), &err), TINKER_EINVAL);
    CHECK(strstr(err.message, "GPT2LMHeadModel") != NULL);
    for (size_t i = 0; i < ARRAY_LEN(arches); i++) {
        char family[64];
        snprintf(family, sizeof(family), "%.*s", (int)strlen(arches[i].hf_class) - 11,
                 arches[i].hf_class);
        CHECK(strstr(err.message, family) != NULL);
    }
}

int main(void)
{
    RUN(test_rows_are_complete);
    RUN(test_unknown_names);
    RUN(test_list_is_cut_to_size);
    RUN(test_unknown_architecture_lists_the_known);
    return tap_done();
}
