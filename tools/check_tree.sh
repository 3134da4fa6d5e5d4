#!/usr/bin/env bash
# Rules of the tree that no linter knows. Prints every line that breaks one; exits 1 if any does.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

status=0

# forbid WHY PATTERN PATHSPEC...: no tracked or new file under the pathspecs may match.
forbid() {
    local why=$1 pattern=$2 found rc=0
    shift 2
    found=$(git grep --untracked -nIE -e "$pattern" -- "$@") || rc=$?
    if ((rc > 1)); then
        exit "$rc"
    elif ((rc == 0)); then
        printf '%s:\n%s\n' "$why" "$found" >&2
        status=1
    fi
}

# A test of the core holds it to one module for atomics, which the model checkers replace. The others need none but
# to know which process they are in.
forbid "atomics belong into the core, where the model checkers see them" \
    '(std|core)::sync::atomic' 'rust/attention/src' 'rust/python/src' ':!rust/python/src/process.rs'
forbid "no path of one machine, no registry address" \
    '(^|[^[:alnum:]_.~/-])/(work|farm|root)/|index-url|extra-index|pythonhosted\.org|static\.crates\.io' \
    . ':!tools/check_tree.sh' ':!Cargo.lock'
forbid "no unfinished code" 'todo!\(|unimplemented!\(|NotImplementedError|\b(TODO|FIXME|XXX)\b' \
    'rust' 'python' 'tests' 'benches'

exit "$status"
