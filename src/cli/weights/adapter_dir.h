/* adapter_dir.h - a PEFT adapter in a directory: fetched if need be, and checked. */
#ifndef CLI_ADAPTER_DIR_H
#define CLI_ADAPTER_DIR_H

#include <stdbool.h>
#include <stdint.h>
#include <tinker/engine.h>
#include "cli/weights/tensor_file.h"

enum { ADAPTER_PATH_MAX = 4096 };

struct adapter_dir {
    char dir[ADAPTER_PATH_MAX];
    bool temporary; /* fetched by us */
    char base[256]; /* base_model_name_or_path, "": it does not say */
    int64_t rank;   /* r of adapter_config.json, -1: it does not say */
    bool complete;  /* it has the marker checkpoint_complete */
};

/* Of a directory, or of the path of a checkpoint, which is fetched into a temporary one.  The exit
 * status, after the error was printed. */
int adapter_dir_open(struct adapter_dir *a, const char *where);
void adapter_dir_close(struct adapter_dir *a);

/* Everything that can be checked without the base model: the file, its numbers, ranks and pairs.
 * *n_pairs: how many matrices it adapts. */
tinker_status adapter_dir_check(const struct adapter_dir *a, size_t *n_pairs, tinker_error *err);

/* The engine with the base model of an adapter: --base (a name or directory, may be NULL), else
 * what the adapter says.  NULL after the error was printed. */
tinker_engine *adapter_dir_open_base(const struct adapter_dir *a, const char *base, int *status);

/* Turn the files in its directory into what PEFT applies as a whole.  The base model is looked for
 * as above, but may be missing for a dense text model; then a note says so.  The exit status, after
 * the error was printed. */
int adapter_dir_to_peft(const struct adapter_dir *a, const char *base);

#endif
