/* store_history.h - the metrics of runs in the store: part of store.h, for history.c and routes.
 *
 * A series is one metric of one run; its points are in chunks (history_points.h), in order. */
#ifndef SERVER_STORE_HISTORY_H
#define SERVER_STORE_HISTORY_H

#include "server/store/history_points.h"
#include "server/store/store.h"

/* What people say about a run. */
struct store_run_note {
    const char *name, *notes; /* NULL: none */
    int64_t planned_steps;    /* 0: not known */
};
/* *out is never NULL on success; a run without a note has an empty one. */
tinker_status store_get_run_note(struct store *s, const char *run, struct arena *arena,
                                 struct store_run_note *out, tinker_error *err);
tinker_status store_put_run_note(struct store *s, const char *run, const struct store_run_note *v,
                                 tinker_error *err);

/* A series as the store has it. */
struct store_series {
    int64_t id;
    const char *name;
};
/* By name. */
tinker_status store_list_series(struct store *s, const char *run, struct arena *arena,
                                struct store_series **out, size_t *n, tinker_error *err);
/* The number after that of its last chunk, and how many points it has. */
tinker_status store_series_end(struct store *s, int64_t id, int64_t *next_chunk, int64_t *points,
                               tinker_error *err);
/* *id is 0 when there is none. */
tinker_status store_find_series(struct store *s, const char *run, const char *name, int64_t *id,
                                tinker_error *err);
/* All points of a series, oldest first; with last_only those of its last chunk. */
tinker_status store_read_series(struct store *s, int64_t id, bool last_only, struct arena *arena,
                                struct history_point **out, size_t *n, tinker_error *err);

/* One chunk to write, together with the others of a flush. */
struct store_chunk {
    const char *run, *name;
    int64_t chunk;
    size_t points;
    const void *data;
    size_t n_data;
};
tinker_status store_put_chunks(struct store *s, const struct store_chunk *v, size_t n,
                               tinker_error *err);
/* Thin the chunks of a series before one: see history_thin().  *points is what is left of them. */
tinker_status store_thin_series(struct store *s, const char *run, const char *name, int64_t before,
                                size_t *points, tinker_error *err);

/* A text that a program generated at a step. */
struct store_text {
    int64_t step, time_us;
    const char *label, *prompt, *text; /* label and prompt may be NULL */
};
/* Only the newest `keep` of the run stay. */
tinker_status store_add_text(struct store *s, const char *run, const struct store_text *v,
                             int64_t keep, tinker_error *err);
/* Newest first. */
tinker_status store_list_texts(struct store *s, const char *run, int64_t limit, int64_t offset,
                               struct arena *arena, struct store_text **out, size_t *n,
                               tinker_error *err);

#endif
