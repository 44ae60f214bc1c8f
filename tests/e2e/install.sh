#!/bin/sh
# install.sh - what `make install` puts down is enough to build and run a program, and
# `make uninstall` takes all of it away.
. "$(dirname "$0")/../support/serve.sh"
prefix=$work/usr
variant=$(basename "$BUILD_DIR")
out=$(dirname "$BUILD_DIR")
mkdir "$work/bin"
printf '#!/bin/sh\necho told >>"%s/loader"\n' "$work" >"$work/bin/ldconfig" # not this machine's
chmod +x "$work/bin/ldconfig"
PATH=$work/bin:$PATH make -s -C "$root" OUT="$out" BUILD="$variant" PREFIX="$prefix" install >"$work/install.log" 2>&1
tap "make install" $? "$work/install.log"
[ -s "$work/loader" ]
tap "the loader is told of the library" $?
PKG_CONFIG_PATH=$prefix/lib/pkgconfig
export PKG_CONFIG_PATH
version=$(sed -nE 's/^#define TINKER_VERSION +"(.*)"/\1/p' "$root/include/tinker/version.h")
[ -n "$version" ] && [ "$(pkg-config --modversion tinker)" = "$version" ]
tap "pkg-config knows the version" $?
readelf -d "$prefix/lib/libtinker.so" 2>/dev/null | grep -q "SONAME.*libtinker.so.${version%%.*}]"
tap "the soname carries the major version" $?

awk '/^```c$/ {inside = 1; next} /^```$/ {inside = 0} inside' "$root/README.md" >"$work/first.c"
gcc -std=c11 -Wall -Wextra -Werror $sanitize "$work/first.c" -o "$work/first" $(pkg-config --cflags --libs tinker) >"$work/cc.log" 2>&1
tap "a program links with the shared library by pkg-config alone" $? "$work/cc.log"
LD_LIBRARY_PATH=$prefix/lib TINKER_API_KEY=wrong "$work/first" >"$work/out" 2>&1
[ $? -eq 1 ] && grep -q 'tml-' "$work/out"
tap "and runs: a key that cannot be one is named" $? "$work/out"
gcc -std=c11 -Wall -Wextra -Werror $sanitize "$work/first.c" -o "$work/static" -Wl,-Bstatic $(pkg-config --cflags --libs tinker) \
    -Wl,-Bdynamic $(pkg-config --static --libs tinker | sed 's/-ltinker //') >"$work/cc.log" 2>&1 && ! readelf -d "$work/static" | grep -q libtinker
tap "and with the static one" $? "$work/cc.log"
gcc -std=c11 -Wall -Wextra -Werror $sanitize "$root/examples/local_engine.c" -o "$work/engine" \
    $(pkg-config --cflags --libs tinker-engine tinker) >"$work/cc.log" 2>&1
tap "a program links with the engine and the client" $? "$work/cc.log"
(cd "$root" && LD_LIBRARY_PATH=$prefix/lib "$work/engine" "$prefix/share/tinker/models/tiny") >"$work/out" 2>&1
tap "and trains without a server" $? "$work/out"
printf '#include <tinker/engine.h>\nint main(void) { return !!tinker_engine_open("/nowhere", NULL, NULL); }\n' >"$work/alone.c"
gcc -std=c11 $sanitize "$work/alone.c" -o "$work/alone" $(pkg-config --cflags --libs tinker-engine) >"$work/cc.log" 2>&1 && "$work/alone"
tap "and with the engine alone" $? "$work/cc.log"
"$prefix/bin/tinker" --version | grep -qF "$version"
tap "the installed program runs" $?
[ -s "$prefix/share/tinker/models/tiny/model.safetensors" ] && [ -s "$prefix/share/man/man1/tinker.1" ]
tap "the bundled model and the man pages are there" $?
grep -h '^TINKER_API' "$prefix"/include/tinker/*.h "$prefix"/include/tinker/extra/*.h | sed -nE 's/^TINKER_API [^(]*[ *](tinker_[a-z0-9_]+)\(.*/\1/p' >"$work/functions"
[ "$(grep -c . "$work/functions")" -gt 100 ]
tap "there are functions" $?
while read -r function; do
    [ -s "$prefix/share/man/man3/$function.3" ] || echo "$function"
done <"$work/functions" >"$work/missing"
[ -s "$prefix/share/man/man1/tinker-detokenize.1" ] && ! grep -q . "$work/missing"
tap "man finds each of them, and each command" $? "$work/missing"

PATH=$work/bin:$PATH make -s -C "$root" OUT="$out" BUILD="$variant" PREFIX="$prefix" uninstall >"$work/uninstall.log" 2>&1
tap "make uninstall" $? "$work/uninstall.log"
[ -z "$(find "$prefix" -type f -o -type l)" ]
tap "nothing is left" $?
[ "$(cd "$prefix" && find . -mindepth 1 | sort | tr '\n' ' ')" = './bin ./include ./lib ./share ./share/man ' ]
tap "but the folders that every system has" $?
[ "$(wc -l <"$work/loader")" -eq 2 ]
tap "the loader is told of that, too" $?
tap_plan
