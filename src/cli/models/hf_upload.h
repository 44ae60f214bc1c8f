/* hf_upload.h - a folder to a repository of the Hugging Face Hub. */
#ifndef CLI_HF_UPLOAD_H
#define CLI_HF_UPLOAD_H

#include <stdbool.h>
#include <tinker/error.h>
#include "cli/args/opt.h"

struct hf_upload {
    const char *dir;
    const char *repo;     /* "name" or "owner/name" */
    const char *revision; /* a branch, NULL: main */
    const char *message;  /* of the commit */
    bool is_public, create_pr;
    const struct opt_list *allow, *ignore; /* patterns of paths, * crosses slashes */
    const char *tinker_path;               /* a README there with another one is refused */
    char full_repo[256];                   /* out: "owner/name" */
};

/* The name of the account; TINKER_ESTATE: there is no token, TINKER_EINVAL: it is refused. */
tinker_status hf_upload_whoami(char out[128], tinker_error *err);
/* Make repository and branch if need be, then upload what has changed in one commit. */
tinker_status hf_upload_folder(struct hf_upload *u, tinker_error *err);

#endif
