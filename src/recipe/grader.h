/* grader.h - graders from inside: the built-in ones and the command. */
#ifndef RECIPE_GRADER_H
#define RECIPE_GRADER_H

#include <regex.h>
#include <stdbool.h>
#include <tinker/recipe.h>
#include "base/arena.h"

struct grader_command;

struct tinker_grader {
    char *spec;                  /* "number:0.01@0.5", cut into pieces */
    const char *name, *argument; /* NULL: none */
    double weight;
    tinker_grader_options opts;
    double tolerance; /* number */
    size_t low, high; /* length */
    regex_t pattern;  /* regex */
    bool has_pattern;
    struct grader_command **commands; /* opts.workers of them, or NULL */
};

/* worker: which of several it is, from 0. */
struct grader_command *grader_command_new(const char *command, const tinker_grader_options *opts,
                                          size_t worker, tinker_error *err);
void grader_command_free(struct grader_command *c);
tinker_status grader_command_run(struct grader_command *c, tinker_grade *items, size_t n,
                                 tinker_error *err);

#endif
