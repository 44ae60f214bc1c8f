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
    completes 'checkpoint completion' c
    completes 'delete download' checkpoint d
    completes 'list' --base-url http://127.0.0.1:1 run l
    completes '--limit' run list --l
    completes '--listen --log-level' serve --l
    completes '' serve status --l
    completes 'owned' run list --scope o
    completes 'json jsonl' --format j
    completes 'json jsonl' run list -f j
    completes '--prompt-file --prompt-logprobs' sample 'a prompt' --prompt
    completes 'logs status stop' serve ''
    completes 'bash fish zsh' completion ''
    completes 'checkpoint completion' help c
    completes 'info list' help run ''
else
    tap "bash completes # SKIP it is not installed" 0
fi
tap_plan
