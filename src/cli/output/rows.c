/* rows.c - see rows.h. */
#include "cli/output/rows.h"

#include <math.h>
#include <tinker/rest.h>
#include "cli/output/fmt.h"

const char *const rows_properties[2] = { "Property", "Value" };

/* A kind that this version does not know is shown, not refused. */
const char *rows_checkpoint_type(const tinker_checkpoint *c)
{
    return c->kind == TINKER_CHECKPOINT_UNKNOWN ? "unknown" : tinker_checkpoint_kind_name(c->kind);
}

/* No value is null in JSON. */
void rows_put_text(struct json_writer *w, const char *key, const char *value)
{
    json_put_key(w, key);
    if (value)
        json_put_string(w, value);
    else
        json_put_null(w);
}

/* Numbers below zero stand for unknown: null. */
void rows_put_count(struct json_writer *w, const char *key, int64_t value)
{
    json_put_key(w, key);
    if (value < 0)
        json_put_null(w);
    else
        json_put_int64(w, value);
}

void rows_put_real(struct json_writer *w, const char *key, double value)
{
    json_put_key(w, key);
    if (isnan(value))
        json_put_null(w);
    else
        json_put_double(w, value);
}

/* The order is that of the official program. */
void rows_checkpoint_members(struct json_writer *w, const tinker_checkpoint *c)
{
    rows_put_text(w, "checkpoint_id", c->id);
    rows_put_text(w, "checkpoint_type", rows_checkpoint_type(c));
    json_put_key(w, "time");
    fmt_json_time(w, c->time_us);
    rows_put_text(w, "tinker_path", c->path);
    rows_put_count(w, "size_bytes", c->size_bytes);
    json_put_key(w, "public");
    json_put_bool(w, c->is_public);
    json_put_key(w, "expires_at");
    fmt_json_time(w, c->expires_us);
}

/* No checkpoint is null. */
void rows_checkpoint_json(struct json_writer *w, const tinker_checkpoint *c)
{
    if (!c) {
        json_put_null(w);
        return;
    }
    json_put_begin_object(w);
    rows_checkpoint_members(w, c);
    json_put_end_object(w);
}

/* No metadata is null, not {}. */
void rows_run_json(struct json_writer *w, const tinker_training_run *run)
{
    json_put_begin_object(w);
    rows_put_text(w, "training_run_id", run->id);
    rows_put_text(w, "base_model", run->base_model);
    rows_put_text(w, "model_owner", run->owner);
    json_put_key(w, "is_lora");
    json_put_bool(w, run->is_lora);
    json_put_key(w, "corrupted");
    json_put_bool(w, run->corrupted);
    rows_put_count(w, "lora_rank", run->lora_rank);
    json_put_key(w, "last_request_time");
    fmt_json_time(w, run->last_request_us);
    json_put_key(w, "last_checkpoint");
    rows_checkpoint_json(w, run->last_checkpoint);
    json_put_key(w, "last_sampler_checkpoint");
    rows_checkpoint_json(w, run->last_sampler_checkpoint);
    json_put_key(w, "user_metadata");
    if (run->n_user_metadata == 0) {
        json_put_null(w);
    } else {
        json_put_begin_object(w);
        for (size_t i = 0; i < run->n_user_metadata; i++)
            rows_put_text(w, run->user_metadata[i].name, run->user_metadata[i].value);
        json_put_end_object(w);
    }
    json_put_end_object(w);
}

/* NULL is shown as N/A. */
void rows_property(struct listing *l, const char *name, const char *value)
{
    listing_cell(l, name);
    listing_cell(l, value ? value : "N/A");
}

/* A rank of 0 or less is unknown. */
void rows_lora(struct listing *l, int is_lora, int64_t rank)
{
    listing_cell(l, "LoRA");
    if (is_lora && rank > 0)
        listing_cellf(l, "Yes (Rank %lld)", (long long)rank);
    else
        listing_cell(l, is_lora ? "Yes" : "No");
}
