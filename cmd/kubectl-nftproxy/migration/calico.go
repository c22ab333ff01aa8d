package migration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// isCalico says whether a finding is that of Calico's Felix, which may go by kube-proxy's nftables tables.
func (f *finding) isCalico() bool { return f.Probe == "calico" }

// settle adds what the API says of Felix to the finding of a node, which does not know it. With Enabled, Felix stays at
// nftables.
func (m *migration) settle(ctx context.Context, n *corev1.Node, findings []finding) {
	for i := range findings {
		f := &findings[i]
		// What Felix' environment says takes precedence, and the finding has it.
		if !f.isCalico() || f.Level != levelYellow || strings.Contains(f.Found, "FELIX_NFTABLESMODE=") {
			continue
		}
		mode, err := m.nftablesMode(ctx, n)
		switch {
		case err != nil:
			f.Found += fmt.Sprintf("; what the API says of it is not known: %v", err)
		case strings.EqualFold(mode, "Enabled"):
			f.Level = levelGreen
		case mode == "":
			f.Found += "; its FelixConfigurations do not say it"
		default:
			f.Found += "; its FelixConfigurations say " + mode
		}
	}
}

// felixConfigurations is a list of Calico's resource, with the fields that are read here.
type felixConfigurations struct {
	Items []struct {
		Metadata struct {
			Name string `json:"name"`
		} `json:"metadata"`
		Spec struct {
			NFTablesMode string `json:"nftablesMode"`
			NodeSelector string `json:"nodeSelector"`
		} `json:"spec"`
	} `json:"items"`
}

// errSelector says that a FelixConfiguration chooses nodes in Calico's language.
var errSelector = errors.New("it has a nodeSelector")

// nftablesMode is what the FelixConfigurations say for a node: the node's own before those that choose nodes, and
// default last (felix/config of Calico 3.32). It is empty if none says anything.
func (m *migration) nftablesMode(ctx context.Context, n *corev1.Node) (string, error) {
	var list felixConfigurations
	text, err := m.felixResources(ctx)
	if err == nil {
		err = json.Unmarshal(text, &list)
	}
	if err != nil {
		return "", fmt.Errorf("list FelixConfigurations: %w", err)
	}
	const last = 3
	mode, rank := "", last
	for _, c := range list.Items {
		at := last
		switch name, all := c.Metadata.Name, strings.ReplaceAll(c.Spec.NodeSelector, " ", "") == "all()"; {
		case c.Spec.NFTablesMode == "":
		case name == "node."+n.Name:
			at = 0
		case all:
			at = 1
		case c.Spec.NodeSelector != "":
			err = fmt.Errorf("FelixConfiguration %s: %w", name, errSelector)
		case name == "default":
			at = 2
		}
		if at < rank {
			mode, rank = c.Spec.NFTablesMode, at
		}
	}
	if rank == 0 {
		return mode, nil
	}
	return mode, err
}

// felixResources lists them in the group that Calico's manifests make, or in the one of its API server, which clusters
// without the former have.
func (m *migration) felixResources(ctx context.Context) (text []byte, err error) {
	for _, group := range []string{"crd.projectcalico.org/v1", "projectcalico.org/v3"} {
		answer := m.of.Client.CoreV1().RESTClient().Get().AbsPath("/apis/" + group + "/felixconfigurations").Do(ctx)
		text, _ = answer.Raw() // Its error lacks the API server's words.
		if err = answer.Error(); !apierrors.IsNotFound(err) {
			break
		}
	}
	return text, err
}
