package migration

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// isCalico says whether a finding is that of Calico's Felix, which may go by kube-proxy's nftables tables.
func (f *finding) isCalico() bool { return f.Probe == "calico" }

// settle adds what the FelixConfigurations say of Felix to the finding of a node, which does not know it. With Enabled
// or Disabled, Felix does not go by kube-proxy's tables.
func settle(findings []finding, mode string, err error) {
	for i := range findings {
		f := &findings[i]
		// What Felix' environment says takes precedence, and the finding has it.
		if !f.isCalico() || f.Level != levelYellow || strings.Contains(f.Found, "FELIX_NFTABLESMODE=") {
			continue
		}
		switch {
		case err != nil:
			f.Found += fmt.Sprintf("; what the API says of it is not known: %v", err)
		case isFixed(mode):
			f.Level = levelGreen
		case mode == "":
			f.Found += "; its FelixConfigurations do not say it"
		default:
			f.Found += "; its FelixConfigurations say " + mode
		}
	}
}

// isFixed says that Felix with this mode has the same data plane with and without kube-proxy's tables.
func isFixed(mode string) bool {
	return strings.EqualFold(mode, "Enabled") || strings.EqualFold(mode, "Disabled")
}

// acceptCalico says whether kube-proxy's tables may go from a node although Felix may go by them: the user accepts what
// follows, or the FelixConfigurations settle what the node does not tell.
func (m *migration) acceptCalico(ctx context.Context, n *node) (bool, error) {
	if m.To != Nftproxy {
		return false, nil // kube-proxy fills them again.
	}
	if !m.AcceptCalico {
		if mode, err := m.felixMode(ctx, n); err != nil || !isFixed(mode) {
			return false, nil
		}
	}
	text, err := m.ask(ctx, n, append([]string{"proxies", "-o", "json"}, n.Tables()...)...)
	p, err := parseProxies(text, err)
	if err != nil || p.Felix == nil {
		return false, err // Without a Felix, nobody goes by them.
	}
	return m.AcceptCalico || p.Felix.After == "unknown", nil
}

// felixConfiguration is one of Calico's resources, with the fields that are read here.
type felixConfiguration struct {
	Metadata struct {
		Name              string      `json:"name"`
		CreationTimestamp metav1.Time `json:"creationTimestamp"`
	} `json:"metadata"`
	Spec struct {
		NFTablesMode string `json:"nftablesMode"`
		NodeSelector string `json:"nodeSelector"`
	} `json:"spec"`
}

// felixConfigurations lists them, once in a run: what holds at its beginning holds for all nodes.
func (m *migration) felixConfigurations(ctx context.Context) ([]felixConfiguration, error) {
	m.felix.once.Do(func() {
		var list struct {
			Items []felixConfiguration `json:"items"`
		}
		text, err := m.felixResources(ctx)
		if err == nil {
			err = json.Unmarshal(text, &list)
		}
		if err != nil {
			err = fmt.Errorf("list FelixConfigurations: %w", err)
		}
		m.felix.list, m.felix.err = list.Items, err
	})
	return m.felix.list, m.felix.err
}

// felixMode is what they say for a node.
func (m *migration) felixMode(ctx context.Context, n *node) (string, error) {
	list, err := m.felixConfigurations(ctx)
	if err != nil {
		return "", err
	}
	return nftablesMode(list, n.Name)
}

// errSelector says that a FelixConfiguration chooses nodes in Calico's language: it may count for a node or not.
var errSelector = errors.New("it has a nodeSelector")

// nftablesMode is what the FelixConfigurations say for a node: the node's own before the one that chooses it, and
// default last. Of several that choose it the oldest counts, by name if they are of the same second, also where it does
// not say the mode (felix/calc/config_batcher.go of Calico 3.32). It is empty if none says anything.
func nftablesMode(list []felixConfiguration, node string) (string, error) {
	var standard string
	var choosing []felixConfiguration
	for _, c := range list {
		switch {
		case c.Metadata.Name == "node."+node && c.Spec.NFTablesMode != "":
			return c.Spec.NFTablesMode, nil
		case c.Metadata.Name == "default":
			standard = c.Spec.NFTablesMode
		case c.Spec.NodeSelector != "" && !strings.HasPrefix(c.Metadata.Name, "node."):
			choosing = append(choosing, c)
		}
	}
	slices.SortFunc(choosing, func(a, b felixConfiguration) int {
		return cmp.Or(a.Metadata.CreationTimestamp.Compare(b.Metadata.CreationTimestamp.Time),
			strings.Compare(a.Metadata.Name, b.Metadata.Name))
	})
	isAll := func(c felixConfiguration) bool { return strings.ReplaceAll(c.Spec.NodeSelector, " ", "") == "all()" }
	last := slices.IndexFunc(choosing, isAll)
	mode := standard // if none chooses the node
	if last >= 0 {
		mode, choosing = cmp.Or(choosing[last].Spec.NFTablesMode, standard), choosing[:last]
	}
	for _, c := range choosing { // each may be the one that counts
		if !strings.EqualFold(cmp.Or(c.Spec.NFTablesMode, standard), mode) {
			return "", fmt.Errorf("FelixConfiguration %s: %w", c.Metadata.Name, errSelector)
		}
	}
	return mode, nil
}

// felixResources lists them in the group that Calico's manifests make, or in the one of its API server, which clusters
// without the former have. An API server may forbid a group that does not exist. The error is that of the first group,
// unless only the other exists.
func (m *migration) felixResources(ctx context.Context) (text []byte, err error) {
	for _, group := range []string{"crd.projectcalico.org/v1", "projectcalico.org/v3"} {
		answer := m.of.Client.CoreV1().RESTClient().Get().AbsPath("/apis/" + group + "/felixconfigurations").Do(ctx)
		text, _ = answer.Raw() // Its error lacks the API server's words.
		switch groupErr := answer.Error(); {
		case groupErr == nil:
			return text, nil
		case !apierrors.IsNotFound(groupErr) && !apierrors.IsForbidden(groupErr):
			return nil, groupErr
		case err == nil || apierrors.IsNotFound(err):
			err = groupErr
		}
	}
	return nil, err
}
