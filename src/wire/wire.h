/* wire.h - Tinker types to and from JSON, each type described once.
 *
 * A struct wire_type lists the fields of one protocol type; the same description
 * drives encoding, decoding, defaults, strictness and the place named in an error:
 * "forward_backward_input.data[3].loss_fn_inputs.weights: expected 12 values, got 11".
 *
 *     struct wire_create_session_request req = { .sdk_version = "0.25.0", ... };
 *     wire_encode_json(&wire_create_session_request, &req, &out, err);
 *
 *     struct wire_create_session_response res;
 *     wire_decode_json(&wire_create_session_response, body, n, WIRE_LENIENT, &arena, &res, err);
 *
 * Protobuf is in wire/proto.h.  No I/O, no global state; thread-safe. */
#ifndef WIRE_WIRE_H
#define WIRE_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tinker/error.h>
#include "base/arena.h"
#include "base/buf.h"
#include "wire/types.h"

enum wire_mode {
    WIRE_STRICT, /* unknown fields and wrong JSON types are refused */
    WIRE_LENIENT /* unknown fields are ignored, scalars are coerced as the reference does */
};

struct wire_type; /* wire/json/describe.h */

/* Append the JSON text of *value.  TINKER_EINVAL names the field that is missing or
 * not representable (NaN, an unknown word); *out may then hold a partial text. */
tinker_status wire_encode_json(const struct wire_type *type, const void *value, struct buf *out,
                               tinker_error *err);

/* Fill *value from a whole JSON document, starting from the type's defaults.
 * TINKER_EINVAL names the field; callers that read answers of a server turn it into
 * TINKER_EPROTOCOL with wire_as_answer().  *value refers to the arena only. */
tinker_status wire_decode_json(const struct wire_type *type, const char *json, size_t n,
                               enum wire_mode mode, struct arena *arena, void *value,
                               tinker_error *err);

/* A hash of a decoded request in which every field of its table takes part: equal for requests that
 * say the same in JSON and in protobuf, and the same in every release.  A field that is not given
 * or at its default does not change it, so a table may grow.  If that rule changes, hashes that
 * were stored must be forgotten: see the schema versions in server/store/store.c. */
uint64_t wire_hash(const struct wire_type *type, const void *value);

/* Turn the TINKER_EINVAL of a decoder into TINKER_EPROTOCOL; other statuses stay. */
tinker_status wire_as_answer(tinker_status status, tinker_error *err);

/* Set *value to the defaults of its type: start here before filling a request. */
void wire_init(const struct wire_type *type, void *value);

const char *wire_type_name(const struct wire_type *type); /* "CreateSessionRequest" */
size_t wire_type_size(const struct wire_type *type);      /* of the struct */
/* All types, for tools and tests: i from 0, NULL at the end. */
const struct wire_type *wire_type_at(size_t i);
const struct wire_type *wire_type_find(const char *name);

/* All types and their parts as JSON Schema (draft 2020-12), one definition each, appended. */
void wire_schema(struct buf *out);

/* {"a":"b"} of n pairs, for user_metadata. */
tinker_status wire_metadata_encode(const tinker_named_string *v, size_t n, struct buf *out,
                                   tinker_error *err);
/* The pairs of a JSON object; a value that is not a text is given as its JSON text,
 * because answers carry texts only.  raw.s NULL gives has 0. */
tinker_status wire_metadata_decode(struct json_str raw, struct arena *arena,
                                   struct wire_named_strings *out, tinker_error *err);

/* ---- requests -------------------------------------------------------------------- */
extern const struct wire_type wire_empty; /* {} */
extern const struct wire_type wire_client_config_request;
extern const struct wire_type wire_create_session_request;
extern const struct wire_type wire_session_heartbeat_request;
extern const struct wire_type wire_create_sampling_session_request;
extern const struct wire_type wire_join_sampling_session_request;
extern const struct wire_type wire_create_custom_loss_request;
extern const struct wire_type wire_create_model_request;
extern const struct wire_type wire_get_info_request;
extern const struct wire_type wire_unload_model_request;
extern const struct wire_type wire_forward_backward_request; /* JSON form of SDK < 0.25 */
extern const struct wire_type wire_forward_request;          /* same struct, key forward_input */
extern const struct wire_type wire_optim_step_request;
extern const struct wire_type wire_load_weights_request;
extern const struct wire_type wire_save_weights_request;
extern const struct wire_type wire_save_weights_for_sampler_request;
extern const struct wire_type wire_save_weights_external_request;
extern const struct wire_type wire_copy_weights_request;
extern const struct wire_type wire_weights_info_request;
extern const struct wire_type wire_sample_request;
extern const struct wire_type wire_future_retrieve_request;
extern const struct wire_type wire_futures_retrieve_request;
extern const struct wire_type wire_ttl_request;
extern const struct wire_type wire_project_request;
extern const struct wire_type wire_finish_session_request;
extern const struct wire_type wire_session_search_request;
extern const struct wire_type wire_checkpoint_search_request;
extern const struct wire_type wire_get_billing_usage_request;
extern const struct wire_type wire_telemetry_send_request;

/* ---- answers --------------------------------------------------------------------- */
extern const struct wire_type wire_client_config_response;
extern const struct wire_type wire_client_dynamic_config_response;
extern const struct wire_type wire_create_session_response;
extern const struct wire_type wire_session_heartbeat_response;
extern const struct wire_type wire_create_sampling_session_response;
extern const struct wire_type wire_join_sampling_session_response;
extern const struct wire_type wire_health_response;
extern const struct wire_type wire_auth_token_response;
extern const struct wire_type wire_get_server_capabilities_response;
extern const struct wire_type wire_untyped_api_future;
extern const struct wire_type wire_error_response;
extern const struct wire_type wire_create_custom_loss_response;
extern const struct wire_type wire_create_model_response;
extern const struct wire_type wire_get_info_response;
extern const struct wire_type wire_unload_model_response;
extern const struct wire_type wire_forward_backward_output; /* tinker_forward_backward */
extern const struct wire_type wire_optim_step_response;
extern const struct wire_type wire_load_weights_response;
extern const struct wire_type wire_save_weights_response;
extern const struct wire_type wire_save_weights_for_sampler_response;
extern const struct wire_type wire_save_weights_external_response;
extern const struct wire_type wire_external_weights_urls_response;
extern const struct wire_type wire_copy_weights_response;
extern const struct wire_type wire_weights_info_response;
extern const struct wire_type wire_sample_response; /* tinker_sample */
extern const struct wire_type wire_try_again_response;
extern const struct wire_type wire_request_failed_response;
extern const struct wire_type wire_complete_metadata_response;
extern const struct wire_type wire_list_sessions_response;
extern const struct wire_type wire_get_session_response;
extern const struct wire_type wire_get_sampler_response;
extern const struct wire_type wire_session_search_response;
extern const struct wire_type wire_checkpoint_search_response;
/* The names of the sequences in the answer to asample, as struct wire_strings. */
extern const struct wire_type wire_sample_submission;
extern const struct wire_type wire_checkpoint_usage_response;
extern const struct wire_type wire_training_run;
extern const struct wire_type wire_training_runs_response;
extern const struct wire_type wire_checkpoints_list_response;
extern const struct wire_type wire_checkpoint_archive_url_response;
extern const struct wire_type wire_trace_export_response;
extern const struct wire_type wire_audit_log_response;
extern const struct wire_type wire_whoami_response;
extern const struct wire_type wire_billing_usage_response;
extern const struct wire_type wire_telemetry_response;

/* ---- parts that also stand alone ------------------------------------------------- */
extern const struct wire_type wire_lora_config;     /* tinker_lora */
extern const struct wire_type wire_adam_params;     /* tinker_adam */
extern const struct wire_type wire_sampling_params; /* tinker_sampling_params */
extern const struct wire_type wire_model_input;     /* tinker_model_input */
extern const struct wire_type wire_datum;           /* tinker_datum */
extern const struct wire_type wire_tensor_data;     /* tinker_tensor */
extern const struct wire_type wire_checkpoint;
extern const struct wire_type wire_cursor;
extern const struct wire_type wire_telemetry_event;

#endif
