/* record.c - see record.h. */
#include "autodiff/record.h"

/* At the end of the list, so that it is in the order of the calls. */
void record_start(tinker_tape *t)
{
    t->records_end = &t->records;
    t->recording = true;
}

const struct record *record_first(const tinker_tape *t)
{
    return t->records;
}

/* In the tape's arena, with a copy of the parents: callers pass arrays of their own stack. */
static struct record *add_record(tinker_tape *t, const char *op, tinker_var *y,
                                 tinker_var *const *parents, size_t n_parents)
{
    struct record *r = arena_alloc(&t->arena, sizeof(*r));
    tinker_var **copy = arena_memdup(&t->arena, parents, n_parents * sizeof(*parents));
    if (!r || (!copy && n_parents)) {
        tape_error(t, TINKER_ENOMEM, "out of memory in %s", op);
        return NULL;
    }
    *r = (struct record){ .op = op, .y = y, .parents = copy, .n_parents = n_parents };
    *t->records_end = r;
    t->records_end = &r->next;
    return r;
}

/* Calls may nest; only the outermost is recorded, for the inner ones are how it is made. */
bool record_begin(tinker_var *a)
{
    if (!a || !a->tape->recording)
        return false;
    a->tape->hidden++;
    return true;
}

/* An operation that failed leaves no record: the tape has the error. */
tinker_var *record_end(bool began, const char *op, tinker_var *a, tinker_var *y, int axis, int keep,
                       int correction)
{
    if (!began)
        return y;
    tinker_tape *t = a->tape;
    t->hidden--;
    if (t->hidden || t->err.status != TINKER_OK)
        return y;
    struct record *r = add_record(t, op, y, &a, 1);
    if (r) {
        r->call = true;
        r->axis = axis;
        r->keep = keep;
        r->correction = correction;
    }
    return y;
}

void record_node(tinker_var *y, const struct rule *rule, tinker_var *const *parents,
                 size_t n_parents)
{
    tinker_tape *t = y->tape;
    /* Constants are no operations: numbers, or the inputs. */
    if (t->recording && !t->hidden && rule)
        add_record(t, rule->name, y, parents, n_parents);
}
