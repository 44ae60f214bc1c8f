/* render_custom.h - chat formats that the program registered. */
#ifndef CHAT_RENDER_CUSTOM_H
#define CHAT_RENDER_CUSTOM_H

#include "chat/render.h"

/* The variant registered under `name`, kept alive until released; NULL: none. */
const struct render_variant *render_custom_find(const char *name);
/* Harmless for built-in variants. */
void render_custom_release(const struct render_variant *v);

#endif
