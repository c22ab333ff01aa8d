package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"os/exec"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"nftproxy/model/ip"
	"nftproxy/test/lib/testnet"
)

// TestExplainCommand: by the API server explain names the condition of an endpoint, and says where the tables are
// older than the objects.
func TestExplainCommand(t *testing.T) {
	n := newNode(t)
	client, one := n.addClient(), n.addServer("web-1")
	web := n.create(service("web", ""))
	ready := slice("web-0", web, one.Addrs.V4())
	n.publish(ready)
	p := n.startProxy()
	to := address(web, testnet.TCP, ip.V4)
	p.until("the pod serves", func() error { return n.reaches(client, testnet.TCP, to, "web-1") })
	if e := n.explain(to.String()); e.Outcome != "endpoint" || len(e.Endpoints) != 1 ||
		e.Endpoints[0].About != "ready, on an unknown node" {
		t.Errorf("with a ready endpoint: %+v", e)
	}
	p.stop()
	waiting := ready.DeepCopy()
	waiting.Endpoints[0].Conditions.Ready = ptr.To(false)
	_, err := n.plane.client.DiscoveryV1().EndpointSlices(n.namespace).Update(n.ctx, waiting, metav1.UpdateOptions{})
	n.must(err)
	if e := n.explain(to.String()); e.Outcome != "endpoint" ||
		!e.says("the tables differ from the API server: the packet should be refused") {
		t.Errorf("with tables of an ended proxy: %+v", e)
	}
	n.startProxy().until("the endpoint has gone", func() error {
		if e := n.explain(to.String()); e.Outcome != "refused" || !e.says("is not ready") || e.says("the tables differ") {
			return errors.New(strings.Join(append(e.Causes, e.Outcome), "; "))
		}
		return nil
	})
}

// explanation is what the tests read of nftproxy explain.
type explanation struct {
	Outcome   string
	Causes    []string
	Endpoints []struct{ About string }
}

// says says whether a cause has the text.
func (e *explanation) says(text string) bool {
	return slices.ContainsFunc(e.Causes, func(c string) bool { return strings.Contains(c, text) })
}

// explain runs nftproxy explain on the node, with the objects of the API server.
func (n *node) explain(to string) (e explanation) {
	n.t.Helper()
	var out, errs bytes.Buffer
	cmd := exec.Command(shared.nftproxy(n.t), "explain", "-o=json", "--kubeconfig="+n.plane.cluster.AdminKubeconfig(),
		"--hostname-override="+n.name, to)
	cmd.Stdout, cmd.Stderr = &out, &errs
	exit := (*exec.ExitError)(nil)
	if err := n.Node.Run(cmd); err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 1) {
		n.t.Fatalf("%s: %v: %s", cmd, err, errs.String())
	}
	n.must(json.Unmarshal(out.Bytes(), &e))
	return e
}
