#!/bin/sh
# Every command and long option stands in the man page and in the completion, and the reverse for the completion.
. "$(dirname "$0")/lib.sh"

page=$top/man/moert.1 completion=$top/completions/moert
for c in $("$moert" --help | sed -n '/^Commands:/,/^$/s/^  \([a-z]*\) .*/\1/p'); do
  sed -n "/^\.SS $c\$/,/^\.S[SH] /p" "$page" | sed 's/\\-/-/g' >section
  sed -n "/^    $c)\$/,/;;/p" "$completion" >words
  [ -s section ]
  ok $? "man page has a section on $c"
  [ -s words ]
  ok $? "completion knows $c"
  for o in $("$moert" "$c" --help | sed -n '/^Options:/,/^$/s/^  \(..,\)\{0,1\} *--\([a-z0-9-]*\).*/\2/p'); do
    case $o in
    json | quiet | verbose | help | version)
      sed 's/\\-/-/g' "$page" | grep -q -- "--$o" && grep -q -- "--$o" "$completion"
      ok $? "$c: common option --$o is documented"
      continue
      ;;
    esac
    grep -qE -- "--$o([^a-z0-9-]|\$)" section
    ok $? "man page: $c --$o"
    grep -qE -- "--$o([^a-z0-9-]|\$)" words
    ok $? "completion: $c --$o"
  done
done
for o in $(grep -o 'MOERT_[A-Z_]*' "$top/core/base/config.def" | sort -u); do
  sed 's/\\-/-/g' "$page" | grep -q "$o"
  ok $? "man page: $o"
done
bash -n "$completion" 2>stderr
ok $? "completion is sound bash"
cat >ask.sh <<END
. "$completion"
COMP_WORDS=(moert al) COMP_CWORD=1
_moert
echo "\${COMPREPLY[@]}"
COMP_WORDS=(moert align --bl) COMP_CWORD=2
COMPREPLY=()
_moert
echo "\${COMPREPLY[@]}"
END
bash ask.sh >stdout 2>stderr
[ "$(cat stdout)" = "align
--block-size" ]
ok $? "completion completes a command and an option"
plan
