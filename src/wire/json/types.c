/* types.c - the register of all described types, for tools, tests and fuzzing. */
#include "wire/json/describe.h"

#include <string.h>

/* The order is that of docs/schema.json, and inputs of the fuzz target choose a type by its number:
 * new ones go where they belong, at the cost of old inputs. A type that is only a part of others
 * need not be here: the schema finds it through its tables. */
static const struct wire_type *const all[] = {
    /* Requests, in the order in which a client meets them. */
    &wire_empty,
    &wire_client_config_request,
    &wire_create_session_request,
    &wire_session_heartbeat_request,
    &wire_create_sampling_session_request,
    &wire_join_sampling_session_request,
    &wire_create_custom_loss_request,
    &wire_create_model_request,
    &wire_get_info_request,
    &wire_unload_model_request,
    &wire_forward_backward_request,
    &wire_forward_request,
    &wire_optim_step_request,
    &wire_load_weights_request,
    &wire_save_weights_request,
    &wire_save_weights_for_sampler_request,
    &wire_save_weights_external_request,
    &wire_copy_weights_request,
    &wire_weights_info_request,
    &wire_sample_request,
    &wire_future_retrieve_request,
    &wire_futures_retrieve_request,
    &wire_ttl_request,
    &wire_project_request,
    &wire_finish_session_request,
    &wire_session_search_request,
    &wire_checkpoint_search_request,
    &wire_get_billing_usage_request,
    &wire_telemetry_send_request,
    /* Responses that come at once. */
    &wire_client_config_response,
    &wire_client_dynamic_config_response,
    &wire_create_session_response,
    &wire_session_heartbeat_response,
    &wire_create_sampling_session_response,
    &wire_join_sampling_session_response,
    &wire_health_response,
    &wire_auth_token_response,
    &wire_get_server_capabilities_response,
    &wire_untyped_api_future,
    &wire_error_response,
    /* Results of futures, which retrieve_future returns. */
    &wire_create_custom_loss_response,
    &wire_create_model_response,
    &wire_get_info_response,
    &wire_unload_model_response,
    &wire_forward_backward_output,
    &wire_optim_step_response,
    &wire_load_weights_response,
    &wire_save_weights_response,
    &wire_save_weights_for_sampler_response,
    &wire_save_weights_external_response,
    &wire_external_weights_urls_response,
    &wire_copy_weights_response,
    &wire_weights_info_response,
    &wire_sample_response,
    /* What retrieve_future returns instead of a result. */
    &wire_try_again_response,
    &wire_request_failed_response,
    &wire_complete_metadata_response,
    /* REST. */
    &wire_list_sessions_response,
    &wire_get_session_response,
    &wire_get_sampler_response,
    &wire_session_search_response,
    &wire_checkpoint_search_response,
    &wire_checkpoint_usage_response,
    &wire_training_run,
    &wire_training_runs_response,
    &wire_checkpoints_list_response,
    &wire_checkpoint_archive_url_response,
    &wire_trace_export_response,
    &wire_audit_log_response,
    &wire_whoami_response,
    &wire_billing_usage_response,
    &wire_telemetry_response,
    /* Parts of the above that tools want to look at alone. */
    &wire_lora_config,
    &wire_adam_params,
    &wire_sampling_params,
    &wire_model_input,
    &wire_datum,
    &wire_tensor_data,
    &wire_checkpoint,
    &wire_cursor,
    &wire_telemetry_event,
};

/* NULL: behind the last one. */
const struct wire_type *wire_type_at(size_t i)
{
    return i < sizeof all / sizeof all[0] ? all[i] : NULL;
}

/* By the name of the reference's class, as in the schema; NULL: none. */
const struct wire_type *wire_type_find(const char *name)
{
    /* Only tools and tests look types up by name. */
    for (size_t i = 0; wire_type_at(i); i++)
        if (strcmp(all[i]->name, name) == 0)
            return all[i];
    return NULL;
}

const char *wire_type_name(const struct wire_type *type)
{
    return type->name;
}

/* Bytes of the struct that the table fills. */
size_t wire_type_size(const struct wire_type *type)
{
    return type->size;
}
