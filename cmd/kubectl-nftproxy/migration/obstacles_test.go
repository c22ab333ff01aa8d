package migration

import (
	"bytes"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"nftproxy/cmd/kubectl-nftproxy/cluster"
)

// right is one right of a role; name is "" for all objects.
type right struct{ group, resource, name, verb string }

// rightsOf returns the rights of the roles in deploy/plugin with a name, by their namespace.
func rightsOf(t *testing.T, name string) map[string]map[right]bool {
	t.Helper()
	text, err := os.ReadFile("../../../deploy/plugin/rbac.yaml")
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]map[right]bool{"": {}, kubeSystem: {}}
	for part := range bytes.SplitSeq(text, []byte("\n---\n")) {
		var role rbacv1.Role
		if err := yaml.Unmarshal(part, &role); err != nil {
			t.Fatal(err)
		}
		if role.Name != name {
			continue
		}
		for _, r := range role.Rules {
			for _, resource := range r.Resources {
				for _, verb := range r.Verbs {
					for _, object := range append(r.ResourceNames, "")[:max(1, len(r.ResourceNames))] {
						have[role.Namespace][right{r.APIGroups[0], resource, object, verb}] = true
					}
				}
			}
		}
	}
	return have
}

// TestRoles: the roles in deploy/plugin have the rights that are asked for, and no others but get of pods/exec, by
// which kubectl's WebSockets begin.
func TestRoles(t *testing.T) {
	here, theirs := rightsOf(t, "nftproxy-migrate"), rightsOf(t, "nftproxy-migrate-kube-proxy")
	delete(here[kubeSystem], right{"", "pods/exec", "", "get"})
	elsewhere := map[string]map[right]bool{"": here[""], "proxies": here[kubeSystem], kubeSystem: theirs[kubeSystem]}
	for namespace, have := range map[string]map[string]map[right]bool{kubeSystem: here, "proxies": elsewhere} {
		asked := map[string]map[right]bool{}
		for place := range have {
			asked[place] = map[right]bool{}
		}
		for _, r := range newMigration(&cluster.Cluster{Namespace: namespace}, Options{}).rights() {
			resource := r.Resource
			if r.Subresource != "" {
				resource += "/" + r.Subresource
			}
			asked[r.Namespace][right{r.Group, resource, r.Name, r.Verb}] = true
		}
		if diff := cmp.Diff(have, asked); diff != "" {
			t.Errorf("nftproxy in %s: what the roles have and what is asked for (-have +asked): %s", namespace, diff)
		}
	}
}
