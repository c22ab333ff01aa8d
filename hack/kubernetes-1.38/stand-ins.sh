#!/bin/sh
# stand-ins.sh: write stand-ins of the two modules of v1.38.0-beta.0 that not every module proxy serves into stand-ins:
# k8s.io/apiextensions-api and k8s.io/ktesting. Both hold what v1.37.2 has elsewhere, with other import paths. The
# sources are those that hack/tools pins.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
made=$here/stand-ins
if [ "$made" -nt "$here/stand-ins.sh" ] && [ "$made" -nt "$here/../tools/go.mod" ]; then
	exit 0
fi
cd "$here/../tools"
go mod download k8s.io/apiextensions-apiserver k8s.io/kubernetes
extensions=$(go list -m -f '{{.Dir}}' k8s.io/apiextensions-apiserver)
kubernetes=$(go list -m -f '{{.Dir}}' k8s.io/kubernetes)

new=$here/stand-ins.new
rm -rf "$new"
mkdir -p "$new"
cp -r "$kubernetes/test/utils/ktesting" "$new/ktesting"
mkdir -p "$new/apiextensions-api/pkg/apis/apiextensions"
cp -r "$extensions/pkg/client" "$new/apiextensions-api/pkg/client"
cp -r "$extensions/pkg/apis/apiextensions/v1" "$extensions/pkg/apis/apiextensions/v1beta1" \
	"$new/apiextensions-api/pkg/apis/apiextensions"
chmod -R u+w "$new"
# Conversions stayed where they were, but for a variable that decoding needs.
for version in v1 v1beta1; do
	cd "$new/apiextensions-api/pkg/apis/apiextensions/$version"
	{
		echo "package $version"
		grep '^var nullLiteral' conversion.go
	} >null.go
	rm conversion.go zz_generated.conversion.go
done
rm -r "$new/ktesting/examples"
# What v1.38 has more.
cat >"$new/ktesting/later.go" <<'EOF'
package ktesting

import "time"

func (tCtx TContext) WithDeadline(deadline time.Time, cause string) TContext {
	return tCtx.WithTimeout(time.Until(deadline), cause)
}

func (tCtx TContext) CancelBecause(cause error) {
	tCtx.Cancel(cause.Error())
}
EOF
find "$new" -name '*_test.go' -delete
find "$new" -name '*.go' -exec sed -i 's|k8s.io/apiextensions-apiserver/pkg/|k8s.io/apiextensions-api/pkg/|
	s|k8s.io/kubernetes/test/utils/ktesting|k8s.io/ktesting|
	s|structured-merge-diff/v6|structured-merge-diff/v7|' {} +
for module in apiextensions-api ktesting; do
	printf 'module k8s.io/%s\n\ngo 1.27.0\n' "$module" >"$new/$module/go.mod"
done
rm -rf "$made"
mv "$new" "$made"
