/* The store after a long time: many records, and writes that never pause. */
#include <sys/stat.h>

#include "server/store_sql.h"
#include "unit/server/harness.h"

static off_t log_size(void)
{
    char path[400];
    struct stat st;
    snprintf(path, sizeof(path), "%s/tinker.db-wal", test_data);
    return stat(path, &st) == 0 ? st.st_size : 0;
}

static atomic_int left_to_write; /* MB */

static void *write_on(void *arg)
{
    static const char blob[1 << 20];
    struct store *store = arg;
    while (atomic_fetch_sub(&left_to_write, 1) > 0) {
        store_put_setting(store, "busy", blob, sizeof(blob), NULL);
        nap_ms(1);
    }
    return NULL;
}

static void test_the_log_of_a_busy_store_does_not_grow_for_ever(void)
{
    struct server *s = start();
    pthread_t writer;
    REQUIRE(s);
    atomic_store(&left_to_write, 800);
    REQUIRE(pthread_create(&writer, NULL, write_on, s->store) == 0);
    while (atomic_load(&left_to_write) > 0) {
        nap_ms(20);
        store_tidy(s->store);
    }
    pthread_join(writer, NULL);
    if (log_size() > (off_t)400 << 20)
        TAP_FAIL("the log has %lld MB", (long long)log_size() >> 20);
    server_close(s);
}

int main(void)
{
    harness_init_in_memory();
    RUN(test_the_log_of_a_busy_store_does_not_grow_for_ever);
    harness_clear();
    return tap_done();
}
