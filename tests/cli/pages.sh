#!/bin/sh
# pages.sh [--update] [PAGE...] - the commands of all pages but the tutorial, which tutorial.sh runs; what they print is
# what the pages show.  Each page has a home of its own.  Port 8000 becomes a free one.  What would need the network or
# a file of the reader's has a stand-in, named in a comment of the page: a Hub that gives the bundled model for any.
. "$(dirname "$0")/../support/serve.sh"
command -v python3 >/dev/null || { tap "pages # SKIP there is no python3 to read them" 0; tap_plan; }
[ -z "$sanitize$VALGRIND" ] || { tap "pages # SKIP they train for minutes under a sanitizer or valgrind" 0; tap_plan; }
update=
[ "$1" != --update ] || { update=--update; shift; }
pages=${*:-README.md docs/recipes.md docs/serve.md docs/tokenizers.md docs/performance.md docs/conform.md docs/api-tour.md
    examples/README.md models/tiny/README.md}
unset TINKER_BASE_URL TINKER_API_KEY XDG_DATA_HOME XDG_CONFIG_HOME HF_HOME HF_TOKEN
TINKER_TELEMETRY=0
export root work BUILD_DIR TINKER_TELEMETRY

# ---- no page is left out
if [ $# -eq 0 ]; then
    (cd "$root" && grep -lE '^```sh$' *.md */*.md */*/*.md 2>/dev/null | grep -v '^build') | sort >"$work/have"
    printf '%s\n' $pages docs/tutorial.md | sort | diff "$work/have" - >"$work/missing"
    tap "every page with commands is run" $? "$work/missing"
    (cd "$root" && awk 'FNR == 1 { fenced = 0 }
        /^```/ { if (!fenced && $0 == "```") first = 1; fenced = !fenced; next }
        first && /^((build\/)?tinker |make )/ { print FILENAME ":" FNR ": " $0 }
        { first = 0 }' README.md docs/*.md examples/README.md models/tiny/README.md) >"$work/plain"
    ! grep -q . "$work/plain"
    tap "no commands are in a block that is not run" $? "$work/plain"
fi

cat >"$work/functions.sh" <<'END'
block() { # block LANGUAGE N: the text of that block of the page
    awk -v fence="\`\`\`$1" -v n="$2" '$0 == fence && ++k == n { inside = 1; next } /^```/ { inside = 0 } inside' "$page"
}
wait_served() { # until the server of the page answers
    tries=0
    until curl -s -o /dev/null "http://127.0.0.1:$PAGE_PORT/api/v1/healthz"; do
        tries=$((tries + 1))
        [ $tries -lt 200 ] || return 1
        sleep 0.1
    done
}
serve() { # serve OPTION...: behind the page's commands
    command tinker serve "$@" &
    wait_served
}
serve_briefly() { # in the place of `tinker serve`, which would not end
    [ "$1" = serve ] || { command tinker "$@"; return; }
    command tinker "$@" &
    last=$!
    wait_served
    kill $last
    wait $last || : # it answers before it is done with starting: then it says that it was interrupted
}
start_hub() { # a Hub that has every model; all are the bundled one
    python3 "$root/tests/support/model_hub.py" "$root/models/tiny" >"$work/hub.port" 2>"$work/hub.log" &
    echo $! >>"$work/pids"
    while [ ! -s "$work/hub.port" ]; do sleep 0.1; done
    export HF_ENDPOINT=http://127.0.0.1:$(cat "$work/hub.port")
}
answers() { # answers FILE: rows of questions with answers
    for n in 1 2 3 4 5 6 7 8; do echo "{\"question\": \"What is $n plus 1?\", \"answer\": \"$((n + 1))\"}"; done >"$1"
}
END

for name in $pages; do
    here=$work/here HOME=$work/home page=$root/$name
    PAGE_PORT=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
    rm -rf "$here" "$HOME" "$work/bin" "$work/hub.port" "$work/serve.log"
    mkdir -p "$here/build" "$HOME" "$work/bin"
    : >"$work/pids"
    # `tinker serve` at the port of the page; the process is known, so that it ends with the page
    cat >"$work/bin/tinker" <<'END'
#!/bin/sh
case "$1 $2" in
serve\ -* | serve\ )
    shift
    echo $$ >>"$work/pids"
    exec "$BUILD_DIR/tinker" serve --listen "127.0.0.1:$PAGE_PORT" "$@" >>"$work/serve.log" 2>&1 # a terminal shows no requests
    ;;
esac
exec "$BUILD_DIR/tinker" "$@"
END
    chmod +x "$work/bin/tinker"
    ln -s "$root/include" "$root/examples" "$root/models" "$here/"
    ln -s "$work/bin/tinker" "$BUILD_DIR/libtinker.a" "$here/build/"
    ln -s "$BUILD_DIR" "$here/build/release"
    (
        cd "$here" || exit 1
        PATH=$work/bin:$PATH
        export HOME PATH PAGE_PORT page
        "$root/tools/run-page" $update --replace "127.0.0.1:8000=127.0.0.1:$PAGE_PORT" --before ". $work/functions.sh" "$page"
    ) >"$work/page.log"
    status=$?
    [ ! -s "$work/pids" ] || kill $(cat "$work/pids") 2>/dev/null
    n=$(grep -cE '^(not )?ok ' "$work/page.log")
    grep -vE '^(not )?ok ' "$work/page.log" | sed 's/^# /# /'
    grep -E '^not ok' "$work/page.log" | sed 's/^/# /'
    grep -E '# SKIP' "$work/page.log" | sed 's/^ok [0-9]* - /# left out: /'
    tap "$name: $n blocks" $status
done
tap_plan
