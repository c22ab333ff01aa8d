package workload

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
)

// askFlows: kubectl nftproxy flows and map say which pods and workloads talk to which, while a pod connects to a
// Service that answers and to one without endpoints.
func askFlows(ctx context.Context, f *fixture) (seen string, err error) {
	if err := f.setFlag(ctx, "nftproxy-flows", "1/1"); err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, f.setFlag(context.WithoutCancel(ctx), "nftproxy-flows", "off")) }()
	first, end, err := otherService(ctx, &ailing{Cluster: f.Cluster})
	if end != nil {
		defer func() { err = errors.Join(err, end(context.WithoutCancel(ctx))) }()
	}
	if err != nil {
		return "", err
	}
	pods, err := f.Pods(ctx, "app=client")
	if err != nil {
		return "", err
	}
	client := pods[0]
	address, err := netip.ParseAddr(client.Status.PodIP)
	if err != nil {
		return "", err
	}
	pod, web := "pod/"+Namespace+"/"+client.Name, Namespace+"/web:http/tcp"
	for _, c := range []struct {
		args  string
		wants []string
	}{
		{"flows --service web --from pod/" + client.Name, []string{pod, web, "pod/" + Namespace + "/web-", "answered"}},
		{"flows --service web --from daemonset/client --to deploy/web -o wide", []string{pod,
			"daemonset/" + Namespace + "/client", "deployment/" + Namespace + "/web"}},
		{"flows -A --from pod/" + client.Name + " --result refused", []string{pod, "trouble/first:80/tcp",
			"refused no-endpoints"}},
		{"map", []string{"daemonset/" + Namespace + "/client", web, "deployment/" + Namespace + "/web"}},
		{"map -A -o dot", []string{"daemonset/" + Namespace + "/client", "trouble/first:80/tcp",
			"100% refused no-endpoints"}},
		{"map -o json", []string{`"connectionsPerSecond"`, `"name": "web"`}},
	} {
		args := append(strings.Fields(c.args), "-n", Namespace)
		// A flow is there when the node has asked connection tracking for it.
		err := again(ctx, func() error {
			if _, err := f.Ask(ctx, address, "http", f.ClusterIPs[0].String(), 80, 1); err != nil {
				return err
			}
			_, _ = f.Ask(ctx, address, "http", first.Spec.ClusterIP, 80, 1) // It fails: it is refused.
			_, err := f.plugin(ctx, 0, c.wants, args...)
			return err
		})
		if err != nil {
			return "", err
		}
	}
	picture, err := f.plugin(ctx, 0, []string{web}, "map", "-n", Namespace, "-o", "svg")
	if err != nil {
		return "", err
	}
	for d := xml.NewDecoder(strings.NewReader(picture)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return "", fmt.Errorf("the picture is no XML: %w", err)
		}
	}
	return fmt.Sprintf("%s on %s, and a picture of %d bytes", pod, client.Spec.NodeName, len(picture)), nil
}
