package servicetest

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// makeSCTP makes servers of SCTP and their Service, where nodes have it and pods reach each other by it.
func (t *trial) makeSCTP(ctx context.Context) error {
	clients := slices.DeleteFunc(slices.Clone(t.clients), func(p party) bool { return p.pod.Spec.HostNetwork })
	var without []string
	var pods []*corev1.Pod
	for i, c := range clients {
		out, err := t.Run(ctx, c.pod, container, "/bin/sh", "-c", sctpScript)
		if err != nil {
			return fmt.Errorf("%s: look for SCTP: %w", c, err)
		}
		if strings.TrimSpace(string(out)) != "yes" {
			without = append(without, c.node)
		}
		pods = append(pods, t.server(fmt.Sprintf("sctp-%d", i+1), c.node, map[string]string{roleLabel: serviceSCTP},
			fmt.Sprintf("--sctp-port=%d", sctpPort)))
	}
	if len(without) > 0 {
		t.lacks(testSCTP, "the kernel's module sctp is not loaded on "+strings.Join(without, ", "))
		return nil
	}
	pods, err := t.makePods(ctx, t.Client, pods)
	if err != nil {
		return err
	}
	ready, err := t.awaitReady(ctx, t.Client, pods)
	if err != nil {
		t.lacks(testSCTP, "its servers do not start: "+short(err.Error()))
		return context.Cause(ctx)
	}
	var direct []*check
	for _, from := range clients {
		for _, server := range ready {
			for _, ip := range server.Status.PodIPs {
				direct = append(direct, &check{testSCTP, from, target{address: join(ip.IP, sctpPort), protocol: "sctp",
					what: "pod " + server.Name}, want{}, 1})
			}
		}
	}
	results, err := t.all(ctx, direct)
	if err != nil {
		return err
	}
	if i := slices.IndexFunc(results, func(r Result) bool { return r.State != Passed }); i >= 0 {
		t.lacks(testSCTP, fmt.Sprintf("pods do not reach each other by it without a Service, such as %s %s: %s",
			results[i].From, results[i].To, results[i].Detail))
		return nil
	}
	return t.makeService(ctx, t.Client, service(serviceSCTP, map[string]string{roleLabel: serviceSCTP},
		func(s *corev1.ServiceSpec) {
			s.Type, s.Ports = corev1.ServiceTypeNodePort, []corev1.ServicePort{{Name: "sctp", Port: servicePort,
				TargetPort: intstr.FromInt32(sctpPort), Protocol: corev1.ProtocolSCTP}}
		}))
}
