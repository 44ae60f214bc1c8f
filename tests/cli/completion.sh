#!/bin/sh
# completion.sh - the scripts of `tinker completion` load in their shells, those that are installed, and
# bash completes with them.
. "$(dirname "$0")/../support/serve.sh"
tinker="$VALGRIND $BUILD_DIR/tinker"
cd "$work" || exit 1

for shell in bash fish zsh; do
    $tinker completion $shell >$shell.script 2>err && [ -s $shell.script ]
    tap "a script for $shell" $? err
done
$tinker completion csh >out 2>err
[ $? -eq 2 ] && grep -q "'csh' is not one of 'bash', 'fish', 'zsh'" err
tap "none for csh" $? err
for shell in fish zsh; do
    if command -v $shell >/dev/null; then
        HOME=$work $shell ./$shell.script >out 2>&1 && [ ! -s out ]
        tap "$shell loads it" $? out
    else
        tap "$shell loads it # SKIP it is not installed" 0
    fi
done

cat >complete.bash <<'END'
. ./bash.script || exit 1
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
COMPREPLY=()
_tinker
echo "${COMPREPLY[*]}"
END
if command -v bash >/dev/null; then
    completes() { # completes RESULT WORD...: what the last word becomes
        want=$1
        shift
        bash complete.bash tinker "$@" >out 2>&1
        [ "$(cat out)" = "$want" ]
        tap "tinker $* -> $want" $? out
    }
    completes 'chat checkpoint completion config conform cost' c
    completes 'delete download' checkpoint d
    completes 'list' --base-url http://127.0.0.1:1 run l
    completes '--limit --log-file' run list --l
    completes '--listen --log-level --log-file' serve --l
    completes '--log-file' serve status --l
    completes 'owned' run list --scope o
    completes 'json jsonl' --format j
    completes 'json jsonl' run list -f j
    completes '--prompt-file --prompt-logprobs' sample 'a prompt' --prompt
    completes 'logs status stop' serve ''
    mkdir -p names/tinker/names
    printf 'Qwen/Qwen3-0.6B\ntinker/tiny\n' >names/tinker/names/models
    printf 'ab:train:0\ncd:train:0\n' >names/tinker/names/runs
    echo tinker://ab:train:0/sampler_weights/1 >names/tinker/names/checkpoints
    XDG_CACHE_HOME=$work/names
    export XDG_CACHE_HOME
    completes 'tinker/tiny' chat -m t
    completes 'ab:train:0' run info a
    completes 'ab:train:0 cd:train:0' checkpoint list --run-id ''
    completes 'tinker://ab:train:0/sampler_weights/1' checkpoint info tinker://
    completes 'bash fish zsh' completion ''
    completes 'chat checkpoint completion config conform cost' help c
    completes 'info list metrics plot watch' help run ''
else
    tap "bash completes # SKIP it is not installed" 0
fi
tap_plan
