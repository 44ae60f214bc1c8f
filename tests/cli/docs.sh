#!/bin/sh
# docs.sh - what the documentation says is what the headers say: programs compile, names exist,
# every public function has its exact prototype in a man page, links lead somewhere.
# Sections whose heading says "planned" may name what does not exist yet.
here=$(dirname "$0")
. "$here/../support/serve.sh"
cd "$root" || exit 1
LC_ALL=C
export LC_ALL
pages="README.md $(echo docs/*.md)"
mans=$(echo docs/man/*.scd)
mkdir -p "$work/man3"
for header in include/tinker/*.h include/tinker/extra/*.h; do
    tools/gen-man "$header" 0 >"$work/man3/$(basename "$header" .h).3"
done

# ---- the programs in the text ------------------------------------------------------------------
for page in $pages; do
    awk -v base="$work/$(echo "$page" | tr '/.' '__')" '
        /^#+ / && !inside { # planned sections end with the next heading of their level
            level = index($0, " ") - 1
            if (planned && level <= planned) planned = 0
            if (!planned && tolower($0) ~ /planned/) planned = level
        }
        /^```c$/ && !planned { inside = 1; text = ""; start = NR + 1; next }
        /^```$/ && inside { inside = 0; if (text ~ /int main/) print text > (base "_" start ".c") }
        inside { text = text $0 "\n" }' "$page"
done
programs=0
for program in "$work"/*.c; do
    [ -f "$program" ] || continue
    programs=$((programs + 1))
    ${CC:-gcc} -std=c11 -Wall -Wextra -Werror -Iinclude -fsyntax-only "$program" >"$work/cc.log" 2>&1
    tap "$(basename "$program" .c) compiles as shown" $? "$work/cc.log"
done
[ $programs -ge 6 ]
tap "the text has programs ($programs)" $?

# ---- the names in the text ---------------------------------------------------------------------
# What there is: functions with their prototypes (no comments, no blanks), and all other names.
for header in include/tinker/*.h include/tinker/extra/*.h; do
    awk '
        { line = $0 }
        { while (1) {
            if (comment) { i = index(line, "*/"); if (!i) break; line = substr(line, i + 2); comment = 0 }
            else { i = index(line, "/*"); if (!i) { print line; break }
                   printf "%s ", substr(line, 1, i - 1); line = substr(line, i + 2); comment = 1 }
        } }' "$header"
done >"$work/headers"
sed '/^#/d' "$work/headers" | tr '\n' ' ' | tr ';{}' '\n\n\n' | grep -o 'TINKER_API .*' >"$work/declared"
sed 's/^TINKER_API *//' "$work/declared" | tr -d ' \t' | sort -u >"$work/prototypes"
sed 's/(.*//' "$work/declared" | grep -oE 'tinker_[a-z0-9_]+ *$' | tr -d ' ' | sort -u >"$work/functions"
grep -ohE '(tinker|TINKER)_[A-Za-z0-9_]+' "$work/headers" | sort -u >"$work/names"
ls docs/man | sed -n 's/\.[0-9]\.scd$//p' >>"$work/names"
ls "$work/man3" | sed -n 's/^\(.*\)\.3$/tinker_\1/p' >>"$work/names"
grep -rohE '"(TINKER|TINKEX|CLOUDFLARE)_[A-Z0-9_]+"' src --include='*.c' | tr -d '"' | sort -u >"$work/variables"
cat "$work/variables" >>"$work/names"
grep -ohE '"TINKER_BENCH_[A-Z_]+"' bench/*.c bench/*.py | tr -d '"' | sort -u >>"$work/names"
sed -n 's/.*"\([a-z_]*\)", METRIC_[A-Z]* .*/tinker_\1/p' src/client/observe/metrics.c >>"$work/names" # with the default prefix

# What the text says, outside planned sections: "file name", one per line.
for page in $pages $mans; do
    awk -v page="$page" '
        /^```/ { fenced = !fenced }
        !fenced && /^#+ / {
            level = index($0, " ") - 1
            if (planned && level <= planned) planned = 0
            if (!planned && tolower($0) ~ /planned/) planned = level
        }
        !planned {
            line = $0
            gsub(/\\/, "", line)
            while (match(line, /(tinker|TINKER)_[A-Za-z0-9_]+\(?/)) {
                before = RSTART > 1 ? substr(line, RSTART - 1, 1) : " "
                name = substr(line, RSTART, RLENGTH)
                line = substr(line, RSTART + RLENGTH)
                if (line ~ /^[1-9]\)/) sub(/\($/, "", name) # a reference to a man page
                if (before !~ /[A-Za-z0-9_\/.-]/) print page, name
            }
        }' "$page"
done | sort -u >"$work/said"

tr '\n' ' ' <"$work/headers" | tr ';' '\n' | grep -oE 'typedef [a-z_]+ \**tinker_[a-z_]+\(' |
    grep -oE 'tinker_[a-z_]+' | sort -u - "$work/functions" >"$work/callable" # callbacks too
sed -n 's/^\(.*\) \(tinker_[a-z0-9_]*\)($/\2 \1/p' "$work/said" | sort >"$work/called"
join -v 2 "$work/callable" "$work/called" >"$work/unknown"
! grep -q . "$work/unknown"
tap "every function that the text calls is declared" $? "$work/unknown"

# A name that ends in _ stands for all that begin so.
sed 's/($//' "$work/said" | awk '
    NR == FNR { known[$1] = 1; n++; all[n] = $1; next }
    { name = $2
      if (name in known) next
      if (name ~ /_$/) for (i = 1; i <= n; i++) if (index(all[i], name) == 1) next
      print name, $1 }' "$work/names" - >"$work/unknown"
! grep -q . "$work/unknown"
tap "every tinker_ and TINKER_ name in the text exists" $? "$work/unknown"

# Members and parameters: in bold and underlined in the pages of functions, in the second column of the guide's variables.
: >"$work/members"
awk -F ' *[|] *' '/^\| `[A-Z]/ { print $3 }' docs/guide.md | grep -oE '`[a-z_.]+`' | tr -d '`' | sed 's|.*[.]||' | sed 's|$| docs/guide.md|' >>"$work/members"
grep -ohE '[A-Za-z_][A-Za-z0-9_]*' "$work/headers" include/tinker/*.h include/tinker/extra/*.h | sort -u >"$work/words"
sort "$work/members" | join -v 2 "$work/words" - >"$work/unknown"
! grep -q . "$work/unknown" && [ "$(grep -c . "$work/members")" -gt 20 ]
tap "every member that the text names is declared" $? "$work/unknown"

# ---- the rule of names --------------------------------------------------------------------------
grep -E '^tinker_(service|training|sampler|rest)_request_' "$work/functions" | while read -r name; do
    twin=$(echo "$name" | sed 's/_request_/_create_/')
    plain=$(echo "$name" | sed 's/_request_/_/')
    grep -qxE "$twin|$plain" "$work/functions" || echo "$name"
done >"$work/missing"
! grep -q . "$work/missing"
tap "what is requested can also be created, which waits" $? "$work/missing"

# ---- the man pages -----------------------------------------------------------------------------
cat "$work"/man3/*.3 | sed 's/\\fB//; s/\\fR//' | tr -d ' \t\n\\' >"$work/squeezed"
while read -r prototype; do
    grep -qF -- "$prototype;" "$work/squeezed" || echo "$prototype"
done <"$work/prototypes" >"$work/missing"
! grep -q . "$work/missing"
tap "every public function has its prototype in a man page ($(grep -c . "$work/prototypes"))" $? "$work/missing"

[ "$(grep -c . "$work/prototypes")" -eq "$(grep -c . "$work/functions")" ] && [ "$(grep -c . "$work/functions")" -gt 100 ]
tap "no declaration was overlooked" $?

version=$(sed -nE 's/^#define TINKER_VERSION +"(.*)"/\1/p' include/tinker/version.h)
for page in $mans; do
    head -n 1 "$page" | grep -qF "tinker $version\"" || echo "$page: $(head -n 1 "$page")"
done >"$work/wrong"
[ -n "$version" ] && ! grep -q . "$work/wrong"
tap "every page is of this version" $? "$work/wrong"

! LC_ALL=C grep -n '[^ -~	]' $mans >"$work/wide.log"
tap "man pages keep to ASCII: a terminal without UTF-8 shows them, too" $? "$work/wide.log"
for page in "$work"/man3/*.3; do # groff warns of what a terminal would show wrongly
    man --warnings -E UTF-8 -l -Tutf8 -Z "$page" 2>&1 >/dev/null
    ! grep -q '^\.SH NAME' "$page" && echo "$page has no name"
done >"$work/groff.log"
! command -v man >/dev/null || ! grep -q . "$work/groff.log"
tap "the pages made from the headers have no warnings" $? "$work/groff.log"
if command -v scdoc >/dev/null; then
    : >"$work/scdoc.log"
    for page in $mans; do
        scdoc <"$page" >/dev/null 2>"$work/one.log" || { echo "$page"; cat "$work/one.log"; } >>"$work/scdoc.log"
    done
    ! grep -q . "$work/scdoc.log"
    tap "scdoc accepts every page" $? "$work/scdoc.log"
else
    tap "scdoc accepts every page # SKIP it is not installed" 0
fi

# ---- the table of features ----------------------------------------------------------------------
grep -oE '^\| [A-Z][0-9]?-[0-9]+ ' docs/features.md | tr -d '| ' >"$work/ids"
[ "$(sort -u "$work/ids" | grep -c .)" -eq 407 ] && [ "$(grep -c . "$work/ids")" -eq 407 ]
tap "docs/features.md has its 407 rows, each once" $?
awk -F ' *[|] *' '/^\| [A-Z][0-9]?-/ && ($6 == "" || ($4 !~ /^(yes|no|part)$/)) { print }' docs/features.md >"$work/empty"
! grep -q . "$work/empty"
tap "and every row says where it is" $? "$work/empty"
sed -n 's/^    { \.name = "\([a-z -]*\)".*/\1/p' src/cli/commands.c >"$work/commands"
grep -oE '`tinker [a-z][a-z -]*' docs/features.md | sed 's/^`tinker //; s/ --.*//; s/ *$//' | sort -u | while read -r command; do
    case $command in "help "*) continue ;; esac
    grep -qx "$command" "$work/commands" || echo "tinker $command"
done >"$work/unknown"
! grep -q . "$work/unknown" && [ "$(grep -c . "$work/commands")" -gt 50 ]
tap "every command it names exists" $? "$work/unknown"
sed 's/^| [A-Z][0-9]*-[0-9]* |[^|]*|[^|]*|[^|]*|//' docs/features.md | grep -oE '`(src|tests|tools|examples|docs|bench|\.ci)/[^` ]+' | tr -d '`' | sort -u | while read -r file; do
    [ -e "$file" ] || echo "$file"
done >"$work/unknown"
! grep -q . "$work/unknown"
tap "and every file" $? "$work/unknown"

# ---- the rest ----------------------------------------------------------------------------------
grep -oE '"(TINKER|TINKEX|CLOUDFLARE)_[A-Z0-9_]+"' $(git ls-files "src/client/*.c") -h | tr -d '"' | sort -u |
    while read -r name; do
        grep -q "$name" docs/guide.md || echo "$name"
    done >"$work/missing"
! grep -q . "$work/missing"
tap "the guide lists every variable the client reads" $? "$work/missing"

grep -ohE 'getenv\("[A-Za-z_]+"\)|"(TINKER_[A-Z]+|XDG_[A-Z_]+|(HF|HUGGINGFACE)_[A-Z_]+)"' $(git ls-files "src/cli/*.c" "src/tokenizer/*.c" "src/chat/*.c" "src/engine/*.c") |
    grep -oE '[A-Za-z_]+_[A-Za-z_]+|COLUMNS|LANG' | sort -u |
    while read -r name; do
        tr -d '\\' <"docs/man/tinker.1.scd" | cat - docs/man/tinker-serve.1.scd | grep -q "\*$name\*" || echo "$name"
    done >"$work/missing"
! grep -q . "$work/missing"
tap "the pages of commands list every variable that those and the engine read" $? "$work/missing"

for page in $pages; do
    sed 's/`[^`]*`//g' "$page" | grep -oE '\]\([^)#]+' | sed 's/^](//' | grep -vE '^[a-z]+:' | while read -r target; do
        [ -e "$(dirname "$page")/$target" ] || echo "$page: $target"
    done
done >"$work/missing"
! grep -q . "$work/missing"
tap "every link to a file leads somewhere" $? "$work/missing"

for page in $pages docs/internals/*.md CONTRIBUTING.md src/*/README.md; do
    grep -oE '`[a-z_0-9/]+\.[ch]`' "$page" | tr -d '`' | sort -u | while read -r file; do
        find src include tests bench fuzz examples tools -path "*/$file" -o -path "$file" | grep -q . || echo "$page: $file"
    done
done >"$work/missing"
! grep -q . "$work/missing"
tap "every source file that the text names exists" $? "$work/missing"
tap_plan
