package main

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"nftproxy/cmd/kubectl-nftproxy/migration"
)

// TestMigrateCalico: where Felix may go by kube-proxy's tables, the migration begins only if its FelixConfigurations
// say Enabled for the node, or the user accepts it.
func TestMigrateCalico(t *testing.T) {
	t.Parallel()
	const crd, api, asks = "crd.projectcalico.org", "projectcalico.org", "--accept-calico goes on"
	list := func(items ...string) string { return `{"items":[` + strings.Join(items, ",") + `]}` }
	item := func(name, spec string) string { return `{"metadata":{"name":"` + name + `"},"spec":{` + spec + `}}` }
	const enabled, auto = `"nftablesMode":"Enabled"`, `"nftablesMode":"Auto"`
	in := func(group string, items ...string) map[string]string { return map[string]string{group: list(items...)} }
	standard := func(spec string) string { return item("default", spec) }
	for name, c := range map[string]struct {
		felix map[string]string
		found string // of the node, if it is not what the node does not tell
		want  string // of the error; empty for none
	}{
		"no resource":        {want: "what the API says of it is not known"},
		"no right":           {felix: map[string]string{crd: "forbidden"}, want: "Forbidden"},
		"no such group":      {felix: map[string]string{crd: "forbidden", api: list(standard(enabled))}},
		"nothing set":        {felix: in(crd, item("default", "")), want: "do not say it"},
		"Auto":               {felix: in(crd, standard(auto)), want: "say Auto ("},
		"Enabled":            {felix: in(crd, standard(enabled))},
		"Disabled":           {felix: in(crd, standard(`"nftablesMode":"disabled"`))},
		"Enabled, API group": {felix: in(api, standard(enabled))},
		"for all nodes":      {felix: in(crd, standard(auto), item("x", enabled+`,"nodeSelector":"all()"`))},
		"for the node":       {felix: in(crd, standard(auto), item("node.a", enabled))},
		"for another":        {felix: in(crd, standard(auto), item("node.b", enabled)), want: "say Auto ("},
		"the node's Auto":    {felix: in(crd, item("node.a", auto), standard(enabled)), want: "say Auto ("},
		"by a selector": {felix: in(crd, standard(enabled), item("x", auto+`,"nodeSelector":"has(y)"`)),
			want: "FelixConfiguration x: it has a nodeSelector"},
		"the environment": {felix: in(crd, standard(enabled)), found: "FELIX_NFTABLESMODE=auto",
			want: asks},
	} {
		f := newFakeProxies(true, "a")
		f.nodes["a"].calico, f.felix = "Felix depends", c.felix
		if c.found != "" {
			f.nodes["a"].calico = c.found
		}
		before := f.state()
		out, err := f.migrate(t, 0, migration.Options{To: migration.Nftproxy})
		if c.want == "" {
			if err != nil {
				t.Errorf("%s: %v\n%s", name, err, out)
			}
			continue
		}
		stopped := (*migration.StoppedError)(nil)
		if !errors.As(err, &stopped) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), asks) {
			t.Errorf("%s: %v, want %q\n%s", name, err, c.want, out)
		}
		if f.state() != before {
			t.Errorf("%s: something was changed", name)
		}
		if out, err := f.migrate(t, 0, migration.Options{To: migration.Nftproxy, AcceptCalico: true}); err != nil {
			t.Errorf("%s, accepted: %v\n%s", name, err, out)
		}
	}
}

// TestMigrateCalicoOnce: the FelixConfigurations are listed once, however many nodes there are.
func TestMigrateCalicoOnce(t *testing.T) {
	t.Parallel()
	f := newFakeProxies(true, "a", "b", "c")
	f.felix = map[string]string{"crd.projectcalico.org": `{"items":[{"metadata":{"name":"default"},` +
		`"spec":{"nftablesMode":"Enabled"}}]}`}
	for _, n := range f.nodes {
		n.calico = "Felix depends"
	}
	if out, err := f.migrate(t, 0, migration.Options{To: migration.Nftproxy}); err != nil || f.felixLists != 1 {
		t.Errorf("%d lists, %v\n%s", f.felixLists, err, out)
	}
}

// TestMigrateCalicoAfterSteps: where steps were made before, so that no check is due, kube-proxy's tables stay as long
// as nobody knows what Felix does without them.
func TestMigrateCalicoAfterSteps(t *testing.T) {
	t.Parallel()
	enabled := map[string]string{"crd.projectcalico.org": `{"items":[{"metadata":{"name":"default"},` +
		`"spec":{"nftablesMode":"Enabled"}}]}`}
	for name, c := range map[string]struct {
		calico   string
		felix    map[string]string
		accepted bool // by the user
		removes  bool
	}{
		"nothing is known":           {"Felix depends", nil, false, false},
		"Enabled":                    {"Felix depends", enabled, false, true},
		"the environment says other": {"FELIX_NFTABLESMODE=auto", enabled, false, false},
		"accepted":                   {"FELIX_NFTABLESMODE=auto", nil, true, true},
	} {
		f := newFakeProxies(true, "a")
		n := f.nodes["a"]
		n.stays = true
		if out, err := f.migrate(t, 0, migration.Options{To: migration.Nftproxy}); err == nil {
			t.Fatalf("the first run has left nothing:\n%s", out)
		}
		n.stays, n.calico, f.felix = false, c.calico, c.felix
		out, err := f.migrate(t, 0, migration.Options{To: migration.Nftproxy, AcceptCalico: c.accepted})
		if left := n.rules[migration.KubeProxy].there; (err == nil) != c.removes || left == c.removes ||
			slices.Contains(f.cleaned, "--accept-calico") != c.removes || strings.Contains(out, "a: check: ") {
			t.Errorf("%s: %v, rules left %v, cleanup %q\n%s", name, err, left, f.cleaned, out)
		}
	}
}
