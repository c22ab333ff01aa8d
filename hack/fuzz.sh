#!/usr/bin/env bash
# Runs every fuzz target of the repository, one after the other, each for FUZZTIME (30s) with one worker.
# FUZZ=EXPRESSION chooses targets by their names, LIST=1 only lists them. It finds the targets in the files, so it
# leaves none out.
# An input that fails is kept in the package's testdata/fuzz, and the next go test runs it again.
set -euo pipefail
cd "$(dirname "$0")/.."
go=${GO:-go}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
failed=
while IFS=: read -r file function; do
	name=${function#func }
	name=${name%%(*}
	[[ $name =~ ${FUZZ:-.} ]] || continue
	if [ -n "${LIST:-}" ]; then
		echo "$(dirname "$file") $name"
		continue
	fi
	# Without -fuzzminimizetime, go test spends up to a minute on each new input.
	if "$go" test -run '^$' -fuzz "^$name\$" -fuzztime "${FUZZTIME:-30s}" -fuzzminimizetime 20x -parallel 1 "./$(dirname "$file")" >"$log" 2>&1; then
		echo "$(dirname "$file") $name: $(sed -n 's/^fuzz: elapsed: .*, execs: \([0-9]*\).*(total: \([0-9]*\)).*/\1 inputs, \2 in the corpus/p' "$log" | tail -1)"
	else
		echo "$(dirname "$file") $name: FAILED"
		cat "$log"
		failed=1
	fi
done < <(grep -ro --exclude-dir=bin --include='*_test.go' '^func Fuzz[A-Za-z0-9]*(' [a-z]* | sort)
[ -z "$failed" ]
