/* model_types.c - models, optimizer steps and saved weights, as tables. */
#include "wire/json/describe.h"

#define REQ WIRE_REQUIRED
#define NUL WIRE_NULLABLE

/* The "type" of each request and response: a constant of the reference's schema. */
static const char *const word_create_model[] = { "create_model", NULL };
static const char *const word_get_info[] = { "get_info", NULL };
static const char *const word_unload_model[] = { "unload_model", NULL };
static const char *const word_optim_step[] = { "optim_step", NULL };
static const char *const word_load_weights[] = { "load_weights", NULL };
static const char *const word_save_weights[] = { "save_weights", NULL };
static const char *const word_save_external[] = { "save_weights_external", NULL };
static const char *const word_save_sampler[] = { "save_weights_for_sampler", NULL };

/* ---- models ---------------------------------------------------------------------- */

/* Inside CreateModelRequest: absent switches are on, as TINKER_LORA_INIT says. */
#define T tinker_lora
static const T lora_defaults = TINKER_LORA_INIT;
static const struct wire_field lora_config[] = {
    { WIRE_FIELD(T, rank, WIRE_INT, REQ) },
    /* A Python integer of any size; beyond int64 it is folded, see wire_read_seed(). */
    { WIRE_FIELD(T, seed, WIRE_SEED, NUL), .aux = offsetof(T, has_seed) },
    { WIRE_FIELD(T, train_unembed, WIRE_FLAG, 0) },
    { WIRE_FIELD(T, train_mlp, WIRE_FLAG, 0) },
    { WIRE_FIELD(T, train_attn, WIRE_FLAG, 0) },
};
const struct wire_type wire_lora_config = { .name = "LoraConfig",
                                            WIRE_TABLE(T, lora_config),
                                            .defaults = &lora_defaults };
#undef T

/* Further settings belong to optimizers that this version does not know. */
#define T struct wire_optimizer_config
static const struct wire_field optimizer_config[] = {
    { WIRE_FIELD(T, type, WIRE_STRING, REQ) },
    { WIRE_FIELD(T, version, WIRE_OPT_INT, NUL) },
};
static const struct wire_type wire_optimizer_config = { .name = "OptimizerConfig",
                                                        WIRE_TABLE(T, optimizer_config),
                                                        .ignores_unknown = true };
#undef T

/* POST /api/v1/create_model.  The number orders the models of a session. */
#define T struct wire_create_model_request
static const struct wire_field create_model_request[] = {
    { WIRE_FIELD(T, session_id, WIRE_STRING, REQ) },
    /* From 0 in each session; with it a retry finds the model that the first attempt made. */
    { WIRE_FIELD(T, model_seq_id, WIRE_INT, REQ) },
    { WIRE_FIELD(T, base_model, WIRE_STRING, REQ) },
    /* Any object. Values that are no texts are kept; answers give their JSON text. */
    { WIRE_FIELD(T, user_metadata, WIRE_OBJECT_TEXT, NUL) },
    { WIRE_FIELD(T, lora_config, WIRE_POINTER, NUL), .type = &wire_lora_config },
    /* For the life of the model. Absent: AdamW, so requests of older clients are as before. */
    { WIRE_FIELD(T, optimizer_config, WIRE_POINTER, NUL), .type = &wire_optimizer_config },
    { .name = "type", .kind = WIRE_LITERAL, .words = word_create_model },
};
const struct wire_type wire_create_model_request = { .name = "CreateModelRequest",
                                                     WIRE_TABLE(T, create_model_request) };
#undef T

/* The result of that request, fetched with a poll. */
#define T struct wire_create_model_response
static const struct wire_field create_model_response[] = {
    { WIRE_FIELD(T, model_id, WIRE_STRING, REQ) },
    { .name = "type", .kind = WIRE_LITERAL, .words = word_create_model },
};
const struct wire_type wire_create_model_response = { .name = "CreateModelResponse",
                                                      WIRE_TABLE(T, create_model_response) };
#undef T

/* POST /api/v1/get_info */
#define T struct wire_get_info_request
static const struct wire_field get_info_request[] = {
    { WIRE_FIELD(T, model_id, WIRE_STRING, REQ) },
    { .name = "type", .kind = WIRE_LITERAL, .words = word_get_info },
};
const struct wire_type wire_get_info_request = { .name = "GetInfoRequest",
                                                 WIRE_TABLE(T, get_info_request) };
#undef T

/* Inside GetInfoResponse; all of it may be missing. */
#define T struct wire_model_data
static const struct wire_field model_data[] = {
    { WIRE_FIELD(T, arch, WIRE_STRING, NUL) },
    { WIRE_FIELD(T, model_name, WIRE_STRING, NUL) },
    /* May carry a revision behind a colon, "name:main". */
    { WIRE_FIELD(T, tokenizer_id, WIRE_STRING, NUL) },
    /* Read, but never written: some services name the model here. */
    { WIRE_FIELD(T, base_model, WIRE_STRING, NUL) },
};
static const struct wire_type wire_model_data = { .name = "ModelData", WIRE_TABLE(T, model_data) };
#undef T

/* The response to it; type may be null or absent. */
#define T struct wire_get_info_response
static const struct wire_field get_info_response[] = {
    { .name = "type", .kind = WIRE_LITERAL, .flags = NUL, .words = word_get_info },
    { WIRE_FIELD(T, model_data, WIRE_STRUCT, REQ), .type = &wire_model_data },
    { WIRE_FIELD(T, model_id, WIRE_STRING, REQ) },
    /* Absent is not false: the service does not say. */
    { WIRE_FIELD(T, is_lora, WIRE_OPT_BOOL, NUL) },
    { WIRE_FIELD(T, lora_rank, WIRE_OPT_INT, NUL) },
    { WIRE_FIELD(T, model_name, WIRE_STRING, NUL) },
    { WIRE_FIELD(T, optimizer_config, WIRE_POINTER, NUL), .type = &wire_optimizer_config },
};
const struct wire_type wire_get_info_response = { .name = "GetInfoResponse",
                                                  WIRE_TABLE(T, get_info_response) };
#undef T

/* POST /api/v1/unload_model: frees the weights on the service. */
#define T struct wire_unload_model_request
static const struct wire_field unload_model_request[] = {
    { WIRE_FIELD(T, model_id, WIRE_STRING, REQ) },
    { .name = "type", .kind = WIRE_LITERAL, .words = word_unload_model },
};
const struct wire_type wire_unload_model_request = { .name = "UnloadModelRequest",
                                                     WIRE_TABLE(T, unload_model_request) };
#undef T

/* The result of that request. */
#define T struct wire_unload_model_response
static const struct wire_field unload_model_response[] = {
    { WIRE_FIELD(T, model_id, WIRE_STRING, REQ) },
    { .name = "type", .kind = WIRE_LITERAL, .flags = NUL, .words = word_unload_model },
};
const struct wire_type wire_unload_model_response = { .name = "UnloadModelResponse",
                                                      WIRE_TABLE(T, unload_model_response) };
#undef T

/* ---- optimizer ------------------------------------------------------------------- */

/* Inside OptimStepRequest; what is absent has the default of TINKER_ADAM_INIT. */
#define T tinker_adam
static const T adam_defaults = TINKER_ADAM_INIT;
static const struct wire_field adam_params[] = {
    { WIRE_FIELD(T, learning_rate, WIRE_DOUBLE, 0) },
    { WIRE_FIELD(T, beta1, WIRE_DOUBLE, 0) },
    { WIRE_FIELD(T, beta2, WIRE_DOUBLE, 0) },
    { WIRE_FIELD(T, eps, WIRE_DOUBLE, 0) },
    { WIRE_FIELD(T, weight_decay, WIRE_DOUBLE, 0) },
    { WIRE_FIELD(T, grad_clip_norm, WIRE_DOUBLE, 0) },
};
const struct wire_type wire_adam_params = { .name = "AdamParams",
                                            WIRE_TABLE(T, adam_params),
                                            .defaults = &adam_defaults };
#undef T

/* POST /api/v1/optim_step: seq_id orders it among the passes of the model.  The parameters of other
 * optimizers than Adam have names that are the optimizer's. */
#define T struct wire_optim_step_request
static const struct wire_field optim_step_request[] = {
    /* One of the two: AdamW, or optimizer_params with its own names (optimizer.h). */
    { WIRE_FIELD(T, adam_params, WIRE_POINTER, NUL), .type = &wire_adam_params },
    { WIRE_FIELD(T, model_id, WIRE_STRING, REQ) },
    { WIRE_FIELD(T, seq_id, WIRE_OPT_INT, NUL) },
    { .name = "type", .kind = WIRE_LITERAL, .words = word_optim_step },
    { WIRE_FIELD(T, optimizer_params, WIRE_OBJECT_TEXT, NUL) },
};
const struct wire_type wire_optim_step_request = { .name = "OptimStepRequest",
                                                   WIRE_TABLE(T, optim_step_request) };
#undef T

/* The result: metrics by name, or none. */
#define T struct wire_optim_step_response
static const struct wire_field optim_step_response[] = {
    { WIRE_FIELD(T, metrics, WIRE_NUMBERS, NUL) },
};
const struct wire_type wire_optim_step_response = { .name = "OptimStepResponse",
                                                    WIRE_TABLE(T, optim_step_response) };
#undef T

/* ---- weights --------------------------------------------------------------------- */

/* POST /api/v1/load_weights: into a model (model_id), or into a new one (session_id and what
 * follows). */
#define T struct wire_load_weights_request
static const struct wire_field load_weights_request[] = {
    /* Either model_id and seq_id, or session_id and model_seq_id, where the model does not exist
     * yet; its id is then known beforehand, "<session>:train:<number>". */
    { WIRE_FIELD(T, model_id, WIRE_STRING, NUL) },
    { WIRE_FIELD(T, seq_id, WIRE_OPT_INT, NUL) },
    { WIRE_FIELD(T, session_id, WIRE_STRING, NUL) },
    { WIRE_FIELD(T, model_seq_id, WIRE_OPT_INT, NUL) },
    { WIRE_FIELD(T, base_model, WIRE_STRING, NUL) },
    { WIRE_FIELD(T, user_metadata, WIRE_OBJECT_TEXT, NUL) },
    { WIRE_FIELD(T, path, WIRE_STRING, REQ) },
    /* true: moments of the optimizer, too, to go on as if training had not stopped. */
    { WIRE_FIELD(T, optimizer, WIRE_BOOL, REQ) },
    /* Of the new model; not said of one that exists. */
    { WIRE_FIELD(T, optimizer_config, WIRE_POINTER, NUL), .type = &wire_optimizer_config },
    /* A credential of the account that owns the checkpoint, if it is another one. */
    { WIRE_FIELD(T, weights_access_token, WIRE_STRING, NUL) },
    { .name = "type", .kind = WIRE_LITERAL, .words = word_load_weights },
};
const struct wire_type wire_load_weights_request = { .name = "LoadWeightsRequest",
                                                     WIRE_TABLE(T, load_weights_request) };
#undef T

/* The result of that request; nothing in it is required. */
#define T struct wire_load_weights_response
static const struct wire_field load_weights_response[] = {
    { WIRE_FIELD(T, path, WIRE_STRING, NUL) },
    /* {} is a valid response: then it is the model of the request. */
    { WIRE_FIELD(T, model_id, WIRE_STRING, NUL) },
    { .name = "type", .kind = WIRE_LITERAL, .flags = NUL, .words = word_load_weights },
};
const struct wire_type wire_load_weights_response = { .name = "LoadWeightsResponse",
                                                      WIRE_TABLE(T, load_weights_response) };
#undef T

/* POST /api/v1/save_weights: path and ttl_seconds (seconds until the checkpoint is deleted)
 * are optional. */
#define T struct wire_save_weights_request
static const struct wire_field save_weights_request[] = {
    { WIRE_FIELD(T, model_id, WIRE_STRING, REQ) },
    /* A bare name and no tinker:// path, which only the response has. */
    { WIRE_FIELD(T, path, WIRE_STRING, NUL) },
    { WIRE_FIELD(T, seq_id, WIRE_OPT_INT, NUL) },
    /* Absent: the checkpoint is kept until it is deleted. */
    { WIRE_FIELD(T, ttl_seconds, WIRE_OPT_INT, NUL) },
    /* false: a checkpoint of that name is a 409 */
    { WIRE_FIELD(T, overwrite, WIRE_BOOL, 0) },
    { WIRE_FIELD(T, user_metadata, WIRE_NAMED_STRINGS, NUL) },
    { .name = "type", .kind = WIRE_LITERAL, .words = word_save_weights },
};
const struct wire_type wire_save_weights_request = { .name = "SaveWeightsRequest",
                                                     WIRE_TABLE(T, save_weights_request) };
#undef T

/* The result of that request: where the weights are. */
#define T struct wire_save_weights_response
static const struct wire_field save_weights_response[] = {
    { WIRE_FIELD(T, path, WIRE_STRING, REQ) },
    { .name = "type", .kind = WIRE_LITERAL, .flags = NUL, .words = word_save_weights },
};
const struct wire_type wire_save_weights_response = { .name = "SaveWeightsResponse",
                                                      WIRE_TABLE(T, save_weights_response) };
#undef T

/* Weights for sampling: with a path they are kept under that name, without one a sampling
 * session gets them. */
#define T struct wire_save_weights_for_sampler_request
static const struct wire_field save_sampler_request[] = {
    { WIRE_FIELD(T, model_id, WIRE_STRING, REQ) },
    /* Named: path and no sampling_session_seq_id. For a session: the reverse. */
    { WIRE_FIELD(T, path, WIRE_STRING, NUL) },
    /* a client that asks again for an unnamed save counts its sampling sessions on */
    { WIRE_FIELD(T, sampling_session_seq_id, WIRE_OPT_INT, NUL | WIRE_VOLATILE) },
    { WIRE_FIELD(T, seq_id, WIRE_OPT_INT, NUL) },
    { WIRE_FIELD(T, ttl_seconds, WIRE_OPT_INT, NUL) },
    { WIRE_FIELD(T, user_metadata, WIRE_NAMED_STRINGS, NUL) },
    { .name = "type", .kind = WIRE_LITERAL, .words = word_save_sampler },
};
const struct wire_type wire_save_weights_for_sampler_request = {
    .name = "SaveWeightsForSamplerRequest", WIRE_TABLE(T, save_sampler_request)
};
#undef T

/* The result of that request: a path or a session, whichever was asked for. */
#define T struct wire_save_weights_for_sampler_response
static const struct wire_field save_sampler_response[] = {
    { WIRE_FIELD(T, path, WIRE_STRING, NUL) },
    { WIRE_FIELD(T, sampling_session_id, WIRE_STRING, NUL) },
    { .name = "type", .kind = WIRE_LITERAL, .flags = NUL, .words = word_save_sampler },
};
const struct wire_type wire_save_weights_for_sampler_response = {
    .name = "SaveWeightsForSamplerResponse", WIRE_TABLE(T, save_sampler_response)
};
#undef T

/* Weights for use outside of the service; recipients are age keys that the files are
 * encrypted for. */
#define T struct wire_save_weights_external_request
static const struct wire_field save_external_request[] = {
    { WIRE_FIELD(T, model_id, WIRE_STRING, REQ) },
    { WIRE_FIELD(T, path, WIRE_STRING, REQ) },
    { WIRE_FIELD(T, seq_id, WIRE_OPT_INT, NUL) },
    { WIRE_FIELD(T, ttl_seconds, WIRE_OPT_INT, NUL) },
    /* None: the files are not encrypted. */
    { WIRE_FIELD(T, age_encryption_recipients, WIRE_STRINGS, NUL) },
    { .name = "type", .kind = WIRE_LITERAL, .words = word_save_external },
};
const struct wire_type wire_save_weights_external_request = {
    .name = "SaveWeightsExternalRequest", WIRE_TABLE(T, save_external_request)
};
#undef T

/* The result of that request. */
#define T struct wire_save_weights_external_response
static const struct wire_field save_external_response[] = {
    { WIRE_FIELD(T, path, WIRE_STRING, REQ) },
    { WIRE_FIELD(T, size_bytes, WIRE_OPT_INT, NUL) },
    { .name = "type", .kind = WIRE_LITERAL, .flags = NUL, .words = word_save_external },
};
const struct wire_type wire_save_weights_external_response = {
    .name = "SaveWeightsExternalResponse", WIRE_TABLE(T, save_external_response)
};
#undef T

/* A copy of a checkpoint; source_path is all that it must have. */
#define T struct wire_copy_weights_request
static const struct wire_field copy_weights_request[] = {
    /* The copy goes to a project, or to the model of that number in a session. */
    { WIRE_FIELD(T, session_id, WIRE_STRING, NUL) },
    { WIRE_FIELD(T, model_seq_id, WIRE_OPT_INT, NUL) },
    { WIRE_FIELD(T, destination_project_id, WIRE_STRING, NUL) },
    { WIRE_FIELD(T, source_path, WIRE_STRING, REQ) },
    { WIRE_FIELD(T, ttl_seconds, WIRE_OPT_INT, NUL) },
    { WIRE_FIELD(T, weights_access_token, WIRE_STRING, NUL) },
};
const struct wire_type wire_copy_weights_request = { .name = "CopyWeightsRequest",
                                                     WIRE_TABLE(T, copy_weights_request) };
#undef T

/* The response to it: where the copy is. */
#define T struct wire_copy_weights_response
static const struct wire_field copy_weights_response[] = {
    { WIRE_FIELD(T, tinker_path, WIRE_STRING, REQ) },
};
const struct wire_type wire_copy_weights_response = { .name = "CopyWeightsResponse",
                                                      WIRE_TABLE(T, copy_weights_response) };
#undef T

/* What must be known about a checkpoint before a model is made from it. */
#define T struct wire_weights_info_request
static const struct wire_field weights_info_request[] = {
    { WIRE_FIELD(T, tinker_path, WIRE_STRING, REQ) },
};
const struct wire_type wire_weights_info_request = { .name = "WeightsInfoRequest",
                                                     WIRE_TABLE(T, weights_info_request) };
#undef T

/* The response to it; lora_rank and the switches may be absent. */
#define T struct wire_weights_info_response
static const struct wire_field weights_info_response[] = {
    { WIRE_FIELD(T, base_model, WIRE_STRING, REQ) },
    { WIRE_FIELD(T, is_lora, WIRE_BOOL, REQ) },
    { WIRE_FIELD(T, lora_rank, WIRE_OPT_INT, NUL) },
    { WIRE_FIELD(T, train_unembed, WIRE_OPT_BOOL, NUL) },
    { WIRE_FIELD(T, train_mlp, WIRE_OPT_BOOL, NUL) },
    { WIRE_FIELD(T, train_attn, WIRE_OPT_BOOL, NUL) },
    { WIRE_FIELD(T, optimizer_config, WIRE_POINTER, NUL), .type = &wire_optimizer_config },
};
const struct wire_type wire_weights_info_response = { .name = "WeightsInfoResponse",
                                                      WIRE_TABLE(T, weights_info_response) };
#undef T
