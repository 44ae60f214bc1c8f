/* room: engine - a PEFT adapter that anybody may have written: adapter_config.json and
 * adapter_model.safetensors, divided by the first NUL byte, into a real tiny model. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tinker/engine.h>
#include <unistd.h>

#include "base/os.h"
#include "engine/model/init_model.h"

static char dir[64];
static tinker_engine *engine;

static void remove_files(void)
{
    tinker_engine_close(engine);
    os_remove_tree(dir, NULL);
}

static void create_dir(void)
{
    struct init_model m;
    tinker_engine_options o = TINKER_ENGINE_OPTIONS_INIT;
    snprintf(dir, sizeof(dir), "%s/tinker-fuzz.XXXXXX",
             os_is_dir("/dev/shm") ? "/dev/shm" : "/tmp");
    init_model_defaults(&m);
    m.config.layers = 1;
    if (!mkdtemp(dir) || init_model_write(&m, dir, NULL) != TINKER_OK)
        abort();
    o.threads = 1;
    o.memory_limit = 64 << 20;
    engine = tinker_engine_open(dir, &o, NULL);
    if (!engine)
        abort();
    atexit(remove_files);
}

static void write_file(const char *name, const void *p, size_t n)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(p, 1, n, f) != n || fclose(f) != 0)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    tinker_error err = { 0 };
    if (!engine)
        create_dir();
    const uint8_t *cut = memchr(data, 0, size);
    if (!cut)
        return 0;
    write_file("adapter_config.json", data, (size_t)(cut - data));
    write_file("adapter_model.safetensors", cut + 1, size - (size_t)(cut + 1 - data));
    tinker_adapter *a = tinker_adapter_load(engine, dir, 0, &err);
    if (!a && !err.message[0])
        abort();
    if (a && tinker_adapter_describe(a)->rank < 1)
        abort();
    tinker_adapter_free(a);
    return 0;
}
