/* wire_vectors.h - the golden texts of tests/vectors/wire-json.txt, one at a time. */
#ifndef SUPPORT_WIRE_VECTORS_H
#define SUPPORT_WIRE_VECTORS_H

#include <stdio.h>
#include <string.h>

/* type: its name; json: a text of it, without the newline. */
typedef void wire_vector(const char *type, const char *json);

/* Show all of them to look(); how many there are, 0 when the file is not there. */
static inline int wire_vectors(wire_vector *look)
{
    FILE *f = fopen("tests/vectors/wire-json.txt", "r");
    char line[8192];
    int seen = 0;
    while (f && fgets(line, sizeof line, f)) {
        char *json = strchr(line, '\t');
        if (line[0] == '#' || !json)
            continue;
        *json++ = '\0';
        json[strcspn(json, "\n")] = '\0';
        look(line, json);
        seen++;
    }
    if (f)
        fclose(f);
    return seen;
}

#endif
