# serve-url.sh - sourced by scripts that start a server of their own.

serve_url() { # serve_url LOG PID: sets url once that process has written its address; 1: it ended, or a minute passed
    tries=0
    while :; do
        url=$(sed -nE 's|.*(http://127\.0\.0\.1:[0-9]+).*|\1|p' "$1" 2>/dev/null | head -n 1)
        [ -z "$url" ] || return 0
        tries=$((tries + 1))
        [ $tries -le 1200 ] && kill -0 "$2" 2>/dev/null || return 1
        sleep 0.05
    done
}
