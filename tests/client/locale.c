/* A host program that writes 1,5: what goes over the wire, and what others read, keeps its point. */
#include <locale.h>
#include <tinker/custom_loss.h>
#include <tinker/chat.h>
#include <tinker/extra/http.h>
#include <tinker/extra/metrics.h>
#include <unistd.h>
#include <tinker/extra/template.h>
#include "support/fake_tinker.h"
#include "support/tap.h"

#define HEALTH API "healthz"

/* A locale with a comma, made here if the machine has none; false: it cannot be made. */
static bool use_comma(void)
{
    static const char *const names[] = { "de_DE.UTF-8", "fr_FR.UTF-8", "de_DE", "fr_FR" };
    char dir[] = "/tmp/tinker-locale-XXXXXX", command[256];
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
        if (setlocale(LC_ALL, names[i]))
            return true;
    if (!mkdtemp(dir))
        return false;
    snprintf(command, sizeof(command), "localedef -i de_DE -f UTF-8 %s/de_DE.UTF-8 2>/dev/null",
             dir);
    bool made = system(command) == 0 && setenv("LOCPATH", dir, 1) == 0 &&
                setlocale(LC_ALL, "de_DE.UTF-8") != NULL;
    unsetenv("LOCPATH");
    snprintf(command, sizeof(command), "rm -rf %s", dir);
    return system(command) == 0 && made;
}

static void test_headers_and_delays(void)
{
    struct world w;
    char v[512];
    tinker_service_options so;
    world_options(&w, &so);
    so.network.timeout_ms = 1500;
    world_open(&w, NULL, &so);
    fake_script(w.server, HEALTH,
                (struct fake_reply){ .status = 503, .headers = "Retry-After: 1.5\r\n" });
    tinker_future *f = tinker_service_check_health(w.service, &w.err);
    CHECK_INT(world_finish(&w, f, 100000), TINKER_OK);
    tinker_future_free(f);
    CHECK_INT(world_at(&w, HEALTH, 1) - world_at(&w, HEALTH, 0), 1500);
    CHECK_STR(fake_header(fake_get(w.server, HEALTH, 0), "x-stainless-read-timeout", v), "1.5");
    tinker_call_options o = TINKER_CALL_OPTIONS_INIT;
    o.timeout_ms = 1234567250; /* two weeks: no exponent */
    tinker_service *derived = tinker_service_with(w.service, &o, &w.err);
    REQUIRE(derived);
    f = tinker_service_check_health(derived, &w.err);
    tinker_service_free(derived);
    CHECK_INT(world_finish(&w, f, 100000), TINKER_OK);
    tinker_future_free(f);
    CHECK_STR(fake_header(fake_get(w.server, HEALTH, 2), "x-stainless-read-timeout", v),
              "1234567.25");
    world_close(&w);
}

static void test_metrics(void)
{
    tinker_gauge_set("half", 0.5);
    tinker_histogram_record("took", 2.25);
    tinker_metrics *m = tinker_metrics_snapshot(NULL);
    tinker_text text = TINKER_TEXT_INIT;
    REQUIRE(tinker_metrics_text(m, &text, NULL) == TINKER_OK);
    CHECK(strstr(text.s, "half 0.5\n") != NULL);
    CHECK(strstr(text.s, "took_sum 2.25\n") != NULL);
    tinker_text_clear(&text);
    tinker_metrics_free(m);
}

static tinker_var *quarter(tinker_tape *tape, const tinker_datum *data, tinker_var *const *logprobs,
                           size_t n, void *state)
{
    (void)tape, (void)data, (void)n, (void)state;
    return tinker_var_scale(tinker_var_sum(logprobs[0], TINKER_ALL, 0), 0.25);
}

static void test_report(void)
{
    static const float lp[] = { -1, -2 };
    tinker_tensor t = { .dtype = TINKER_FLOAT32, .data = lp, .n = 2 };
    tinker_error err;
    tinker_loss_report *r = tinker_loss_evaluate(quarter, NULL, NULL, &t, 1, NULL, &err);
    REQUIRE(r);
    tinker_text json = TINKER_TEXT_INIT;
    REQUIRE(tinker_loss_report_json(r, &json, NULL) == TINKER_OK);
    CHECK(strstr(json.s, "\"loss_total\":-0.75,") != NULL);
    tinker_text_clear(&json);
    tinker_loss_report_free(r);
}

static void test_template(void)
{
    static const char source[] = "{{ 1.5 + 1 }}";
    tinker_error err = { 0 };
    tinker_template *t = tinker_template_new(source, sizeof(source) - 1, &err);
    tinker_text text = TINKER_TEXT_INIT;
    CHECK(t && tinker_template_render_json(t, "[]", NULL, NULL, &text, &err) == TINKER_OK);
    CHECK_STR(text.s, "2.5");
    tinker_text_clear(&text);
    tinker_template_free(t);
}

int main(void)
{
    if (!use_comma()) {
        printf("1..0 # SKIP no locale writes a comma here\n");
        return 0;
    }
    RUN(test_headers_and_delays);
    RUN(test_metrics);
    RUN(test_report);
    RUN(test_template);
    return tap_done();
}
