/* run.h - what the parts of a run folder share. */
#ifndef RECIPE_RUN_H
#define RECIPE_RUN_H

#include <tinker/recipe.h>

/* A file of the run; free() it.  NULL: out of memory. */
char *run_path(const tinker_run *run, const char *name);

#endif
