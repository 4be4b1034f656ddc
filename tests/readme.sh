#!/bin/sh
# tests/readme.sh: runs every command of README.md as it stands, on a copy of the tree, with an empty home directory. The two
# ./quickstart commands are left out: whoever calls this came through them. Prints TAP, one result a command block.
set -u
top=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
mkdir "$work/home" "$work/tree"
if [ -e "$top/.git" ]; then
  (cd "$top" && git ls-files -z | tar -cf - --null -T -) | tar -xf - -C "$work/tree"
else
  (cd "$top" && tar -cf - --exclude='./build*' .) | tar -xf - -C "$work/tree"
fi
chmod -R u+w "$work/tree"

# blocks/1.sh, blocks/2.sh, ...
mkdir "$work/blocks"
awk -v dir="$work/blocks" '
  /^```sh$/ { n++; inside = 1; next }
  /^```$/ { inside = 0 }
  inside { print > (dir "/" n ".sh") }' "$top/README.md"

# one shell runs them all, so that a block sees what an earlier one exported
n=0
{
  echo "cd '$work/tree'"
  for i in $(ls "$work/blocks" | sort -n); do
    grep -q '^\./quickstart' "$work/blocks/$i" && continue
    n=$((n + 1))
    printf 'set -e\nexec >"%s" 2>&1\nset -x\n' "$work/$n.log"
    cat "$work/blocks/$i"
    printf '{ set +x; } 2>/dev/null\ntouch "%s"\n' "$work/$n.ok"
  done
  echo "$n" >"$work/count"
} >"$work/all.sh"
HOME=$work/home sh "$work/all.sh" </dev/null
count=$(cat "$work/count")
echo "1..$count"
[ "$count" -gt 0 ] || { echo "Bail out! README.md shows no command"; exit 1; }
i=0 failed=0
while [ "$i" -lt "$count" ]; do
  i=$((i + 1))
  if [ -e "$work/$i.ok" ]; then
    echo "ok $i - README.md, command block $i"
  else
    echo "not ok $i - README.md, command block $i"
    failed=1
    [ ! -e "$work/$i.log" ] || tail -n 15 "$work/$i.log" | sed 's/^/# /'
  fi
done
exit $failed
