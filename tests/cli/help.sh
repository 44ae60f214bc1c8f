#!/bin/sh
# help.sh - what `tinker --help` and the man pages say is the same: every command, every option, every
# exit status; and every command has an example.  No server.
. "$(dirname "$0")/../support/serve.sh"
tinker="$VALGRIND $BUILD_DIR/tinker"
man=$root/docs/man
cd "$work" || exit 1
LC_ALL=C
export LC_ALL

page_of() { # page_of COMMAND: the man page that describes it
    case $1 in
    detokenize) echo "$man/tinker-tokenize.1.scd" ;;
    version) echo "$man/tinker.1.scd" ;;
    *) echo "$man/tinker-${1%% *}.1.scd" ;;
    esac
}
names() { sed -nE 's/^  (-[a-zA-Z], )?--([a-z-]+).*/\2/p' | sort -u; } # of options, in a help text
section() { awk -v head="$1" '$0 == head { on = 1; next } /^$/ { on = 0 } on'; }

$tinker --help >top 2>err
tap "tinker --help" $? err
! grep -nE '.{81}' top >wrong; tap "it fits 80 columns" $? wrong
$tinker help commands >all 2>err
section Commands: <all | sed -E 's/^  (([a-z-]+ )+) .*/\1/; s/ $//' >commands
[ "$(wc -l <commands)" -ge 20 ] && sort -c commands
tap "tinker help commands lists them in alphabetical order" $? commands
sed 's/ .*//' commands | sort -u | while read -r word; do
    grep -qE "^  $word( |$)" top || echo "$word"
done >wrong
! grep -q . wrong; tap "the first page has all of them, or their group" $? wrong
$tinker help options | names >globals
[ "$(wc -l <globals)" -ge 12 ]
tap "there are global options" $? globals

: >wrong
: >helped
while read -r command; do
    page=$(page_of "$command")
    $tinker $command --help >help 2>err </dev/null || echo "$command --help: exit status $?" >>wrong
    head -n 1 help | grep -q "^Usage: tinker $command \[OPTIONS\]" || echo "$command: $(head -n 1 help)" >>wrong
    grep -nE '.{81}' help | sed "s|^|$command: wide: |" >>wrong
    section Example: <help | grep -q "^  tinker ${command%% *}" || echo "$command: no example" >>wrong
    section Options: <help | names >options
    sed "s|^|$page |" options >>helped
    tr -d '*\\' <"$page" | grep -E "^tinker " | grep -q -e "${command##* }" || echo "$page: no $command" >>wrong
    while read -r option; do
        grep -q -e "--$option\*" "$page" || grep -q -e "--$option " "$page" || grep -q -e "--$option]" "$page" ||
            echo "$page: --$option of $command is not there" >>wrong
    done <options
done <commands
! grep -q . wrong
tap "every command has help, an example and a man page with all its options" $? wrong

while read -r option; do
    grep -q -e "\*--$option\*" "$man/tinker.1.scd" || echo "--$option"
done <globals >wrong
! grep -q . wrong
tap "tinker(1) has every global option" $? wrong

for page in "$man"/tinker.1.scd "$man"/tinker-*.1.scd; do
    tr -d '\\' <"$page" | grep -oE -e '(^|[^a-z-])--[a-z][a-z-]+' | sed -E 's/.*--//' | sort -u >said
    { cat globals; sed -n "s|^$page ||p" helped; printf 'help\nversion\n'; } | sort -u >known
    comm -23 said known | sed "s|^|$(basename "$page"): --|"
done >wrong
! grep -q . wrong
tap "the pages name no option that does not exist" $? wrong

$tinker help exit-codes | sed -E 's/^ *([0-9]+)  .*/\1/' | sort -n >codes
sed -nE 's/^(\[\[|\|) +\*([0-9]+)\*.*/\2/p' "$man/tinker.1.scd" | sort -n >told
cmp -s codes told
tap "and the exit codes" $? told
for page in "$man"/tinker-*.1.scd; do
    name=$(basename "$page" .1.scd)
    grep -q "\*$name\*(1)" "$man/tinker.1.scd" || echo "$name"
done >wrong
! grep -q . wrong
tap "tinker(1) refers to every page" $? wrong
tap_plan
