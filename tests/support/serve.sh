# serve.sh - sourced by shell tests: TAP helpers, a work folder, a server of one's own.
# Sets root, work, BUILD_DIR; serve_start ARGS... exports TINKER_BASE_URL and TINKER_API_KEY.
root=$(cd "$(dirname "$0")/../.." && pwd)
. "$root/tools/serve-url.sh"
BUILD_DIR=${BUILD_DIR:-$root/build/release}
case $BUILD_DIR in /*) ;; *) BUILD_DIR=$root/$BUILD_DIR ;; esac
work=$(mktemp -d "${TMPDIR:-/tmp}/tinker-test.XXXXXX") || exit 1
# What a test keeps is its own: no server, run or setting of whoever runs it is found.
XDG_DATA_HOME=$work/xdg-data
XDG_CONFIG_HOME=$work/xdg-config
export XDG_DATA_HOME XDG_CONFIG_HOME
tap_n=0
tap_bad=0
server=

serve_cleanup() {
    case $BUILD_DIR in *cov) [ -z "$server" ] || { kill "$server" 2>/dev/null && wait "$server"; } ;; esac # which lines ran
    [ -z "$server" ] || kill -9 "$server" 2>/dev/null
    rm -rf "$work"
}
trap serve_cleanup EXIT

# As the library was built: its sanitizer must see the whole program.
sanitize=
case $BUILD_DIR in *asan) sanitize=-fsanitize=address,undefined ;; *tsan) sanitize=-fsanitize=thread ;; *cov) sanitize=--coverage ;; esac

compile() { # compile SOURCE PROGRAM [OPTION...]: a user's program with the library, in C11; messages in $work/cc.log
    source=$1 program=$2
    shift 2
    gcc -std=c11 -Wall -Wextra -Werror $sanitize "$@" -I"$root/include" -o "$program" "$source" "$BUILD_DIR/libtinker.a" \
        $(pkg-config --libs libcurl libzstd zlib libpcre2-8 libutf8proc) -lm -pthread >"$work/cc.log" 2>&1
}

tap() { # tap NAME STATUS [FILE]: one result; FILE is shown when it failed
    tap_n=$((tap_n + 1))
    if [ "$2" -eq 0 ]; then
        echo "ok $tap_n - $1"
    else
        echo "not ok $tap_n - $1"
        tap_bad=$((tap_bad + 1))
        [ -z "$3" ] || [ ! -f "$3" ] || tail -n 30 "$3" | sed 's/^/# /'
        [ -f "$work/serve.log" ] && tail -n 10 "$work/serve.log" | sed 's/^/# serve: /'
    fi
}

expect() { # expect STATUS COMMAND...: runs into out and err; true when the exit status is that
    want=$1
    shift
    "$@" >out 2>err </dev/null
    got=$?
    [ $got -eq "$want" ] || { echo "exit status $got" >>err; return 1; }
}

tap_plan() {
    echo "1..$tap_n"
    exit $((tap_bad > 0))
}

tiny_model() { # a model of random weights, in $model
    model=$work/tiny
    "$BUILD_DIR/tools/make-tiny-model" "$model" >"$work/make.log" 2>&1
    tap "a tiny model is made" $? "$work/make.log"
}

serve_start() { # serve_start [OPTION...]: returns when it listens
    : >"$work/serve.log"
    $VALGRIND "$BUILD_DIR/tinker" serve --listen "127.0.0.1:${serve_port:-0}" --data-dir "$work/data" "$@" \
        >"$work/serve.log" 2>&1 &
    server=$!
    serve_url "$work/serve.log" "$server" || {
        sed 's/^/# serve: /' "$work/serve.log"
        return 1
    }
    TINKER_BASE_URL=$url
    TINKER_API_KEY=tml-local
    TINKER_TELEMETRY=0
    export TINKER_BASE_URL TINKER_API_KEY TINKER_TELEMETRY
}

serve_stop() { # SIGTERM and wait; the server's exit status
    kill -TERM "$server" 2>/dev/null || return 1
    wait "$server"
    status=$?
    server=
    return $status
}
