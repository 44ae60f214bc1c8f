/* Permits and byte budgets. */
#include "client/io/budget.h"
#include <stdlib.h>
#include "support/tap.h"

struct waiter {
    struct budget_wait w;
    int granted, give_at_once;
};

static void on_grant(struct budget_wait *w)
{
    struct waiter *x = (struct waiter *)w;
    x->granted++;
    if (x->give_at_once)
        budget_give(w);
}

static void test_bytes(void) /* */
{
    struct budget s;
    struct waiter a = { .w.granted = on_grant }, b = a, c = a;
    budget_init_bytes(&s, 10);
    CHECK(budget_take(&s, &a.w, 100)); /* one oversized request is admitted */
    CHECK(!budget_take(&s, &b.w, 5));
    CHECK(!budget_take(&s, &c.w, 1));
    CHECK_INT(s.free, -90);
    budget_give(&b.w); /* stopping to wait leaks nothing */
    budget_give(&b.w);
    budget_give(&a.w);
    CHECK_INT(b.granted, 0);
    CHECK_INT(c.granted, 1);
    CHECK_INT(s.free, 9);
    budget_give(&c.w);
    CHECK_INT(s.free, 10);
}

/* Whoever gives at once inside granted() lets the next one in from the same loop: a long line needs no deep stack. */
static void test_a_long_line_is_no_recursion(void)
{
    enum { MANY = 1000000 };
    struct budget s;
    struct waiter first = { .w.granted = on_grant }, *line = calloc(MANY, sizeof(*line));
    REQUIRE(line);
    budget_init_permits(&s, 1);
    CHECK(budget_take(&s, &first.w, 1));
    for (size_t i = 0; i < MANY; i++) {
        line[i] = (struct waiter){ .w.granted = on_grant, .give_at_once = 1 };
        CHECK(!budget_take(&s, &line[i].w, 1));
    }
    budget_give(&first.w);
    CHECK_INT(line[MANY - 1].granted, 1);
    CHECK_INT(s.free, 1);
    free(line);
}

static void test_what_is_used_up_is_no_debt(void) /* */
{
    struct budget s;
    struct waiter a = { .w.granted = on_grant }, b = a, c = a;
    budget_init_bytes(&s, 10);
    CHECK(budget_take(&s, &a.w, 10));
    CHECK(budget_take(&s, &b.w, 1)); /* only a counter below zero makes wait */
    CHECK(!budget_take(&s, &c.w, 1));
    budget_give(&b.w);
    CHECK_INT(c.granted, 1);
    budget_give(&c.w);
    budget_give(&a.w);
    CHECK_INT(s.free, 10);
}

static void test_first_come_first_served(void) /* R-078 R-062 */
{
    struct budget s;
    struct waiter a = { .w.granted = on_grant }, b = a, c = a;
    budget_init_permits(&s, 1);
    CHECK(budget_take(&s, &a.w, 1));
    CHECK(!budget_take(&s, &b.w, 1));
    CHECK(!budget_take(&s, &c.w, 1));
    budget_give(&a.w);
    CHECK(b.granted == 1 && c.granted == 0);
    CHECK(!budget_take(&s, &a.w, 1)); /* behind c */
    budget_give(&b.w);
    CHECK(c.granted == 1 && a.granted == 0);
}

static void test_long_lines_do_not_recurse(void)
{
    enum { N = 200000 };
    struct budget s;
    static struct waiter w[N];
    struct waiter first = { .w.granted = on_grant };
    budget_init_permits(&s, 1);
    CHECK(budget_take(&s, &first.w, 1));
    for (int i = 0; i < N; i++) {
        w[i] = (struct waiter){ .w.granted = on_grant, .give_at_once = 1 };
        budget_take(&s, &w[i].w, 1);
    }
    budget_give(&first.w);
    CHECK_INT(w[N - 1].granted, 1);
    CHECK_INT(s.free, 1);
}

int main(void)
{
    RUN(test_bytes);
    RUN(test_a_long_line_is_no_recursion);
    RUN(test_what_is_used_up_is_no_debt);
    RUN(test_first_come_first_served);
    RUN(test_long_lines_do_not_recurse);
    return tap_done();
}
