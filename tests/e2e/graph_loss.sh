#!/bin/sh
# graph_loss.sh - losses that the server computes from a C program's graph: see graph_loss.c.
here=$(dirname "$0")
. "$here/../support/serve.sh"
tiny_model
serve_start --model "tinker/tiny=$model"
tap "the server accepts requests" $?

compile "$root/tests/e2e/graph_loss.c" "$work/graph"
tap "the program compiles" $? "$work/cc.log"
$VALGRIND "$work/graph" >"$work/graph.out" 2>&1
tap "one pass there is two passes here; what has no graph is refused" $? "$work/graph.out"

serve_stop
tap "the server stops cleanly on SIGTERM" $? "$work/serve.log"
tap_plan
