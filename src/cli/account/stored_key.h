/* stored_key.h - the credential that `tinker auth login` keeps, in ~/.tinker/credentials.json.
 *
 * The file is shared with the official program: other keys in it stay.  Directory mode 0700, file
 * mode 0600, replaced as a whole. */
#ifndef CLI_STORED_KEY_H
#define CLI_STORED_KEY_H

#include <stdbool.h>
#include <tinker/error.h>

struct stored_key {
    char id[64];
    char type[16]; /* "manual": pasted; "generated": made for this machine */
    char key[4096];
    char name[256], note[256], org[256], email[256]; /* "": unknown */
};

/* The default key.  *found false: none is stored. */
tinker_status stored_key_read(struct stored_key *out, bool *found, tinker_error *err);
/* Store it and make it the default. */
tinker_status stored_key_write(const struct stored_key *key, tinker_error *err);
/* Remove the default key. */
tinker_status stored_key_remove(tinker_error *err);

#endif
