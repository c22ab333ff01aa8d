package main

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"

	"nftproxy/look/inspect"
)

// serviceList is the JSON that get services prints.
type serviceList struct {
	Services []inspect.ServiceRow `json:"services"`
}

func newGetServicesCommand() *cobra.Command {
	var o getOptions
	cmd := &cobra.Command{
		Use:     "services [[NAMESPACE/]NAME ...]",
		Aliases: []string{"service", "svc"},
		Args:    cobra.ArbitraryArgs,
		Short:   "Show the Services that the kernel serves, and what refuses or drops connections",
		Long: `services shows the Services in nftproxy's tables:

  CLUSTER-IP    the cluster IPs; - if the tables name none
  EXTERNAL-IP   all other addresses: external IPs and load balancers' addresses
  PORT(S)       port:nodePort/protocol of each port
  ENDPOINTS     the number of endpoints of all ports that get new connections
  OBSTACLES     what refuses or drops connections, or keeps an address from the Service:
      no-endpoints          connections are refused
      no-local-endpoints    a traffic policy is Local, and no endpoint is on this node:
                            connections are dropped
      source-ranges         loadBalancerSourceRanges let only some clients in
      others-source-ranges  the same, by another Service with that address
      conflict              another Service has the address and port, or it is protected

-o wide adds LOCAL (the endpoints on this node), INTERNAL and EXTERNAL (the traffic
policies), AFFINITY (how long a client is remembered) and DETAILS (the obstacles in
words). A policy shows in the tables only where it makes a difference; elsewhere it
is Cluster. An address of which a Service gets no port is not in the tables; the
events of the Service name it (kubectl describe).

-o json prints an object with services. Each has namespace, name, clusterIPs,
externalAddresses, ports, internalTrafficPolicy, externalTrafficPolicy,
sessionAffinitySeconds, endpoints, localEndpoints and obstacles. A port has name,
protocol, port, nodePort, endpoints, localEndpoints and frontends; a frontend has
frontend, kind (clusterIP, external, nodePort), family, fate (served, refused,
dropped, dropped-outside), sourceRanges (null admits all) and chains; an obstacle has
kind, effect (refused, dropped, not-served), frontends and text. Later versions may
add fields; they do not change these. Exit statuses: see nftproxy get --help.`,
		Example: `  nftproxy get services
  nftproxy get services shop/cart -o wide
  nftproxy get services -n kube-system --no-headers
  nftproxy get services --address 10.96.0.10 --port 53 -o json
  nftproxy get svc --port 30080                    which Service has that node port`,
		RunE: func(cmd *cobra.Command, names []string) error {
			s, err := o.selection(names)
			if err != nil {
				return usageError{err}
			}
			return getServices(cmd, &o, s)
		},
	}
	o.addFlags(cmd, "Services with this address; an address of the node selects node ports", "Services with this port or node port")
	cmd.ValidArgsFunction = o.completeServices
	return cmd
}

func getServices(cmd *cobra.Command, o *getOptions, s inspect.Selection) error {
	r, err := o.read(cmd.Context())
	if err != nil {
		return err
	}
	defer r.conn.Close()
	rows := r.ServiceRows(s)
	if err := printRows(cmd.OutOrStdout(), o.printOptions, serviceColumns(), rows, serviceList{rows}); err != nil {
		return err
	}
	return r.finish(cmd, o, s, len(rows), "services")
}

func serviceColumns() []column[inspect.ServiceRow] {
	type row = inspect.ServiceRow
	return []column[row]{
		{header: "NAMESPACE", text: func(r *row) string { return r.Namespace }},
		{header: "NAME", text: func(r *row) string { return r.Name }},
		{header: "CLUSTER-IP", text: func(r *row) string { return fewOf(addressTexts(r.ClusterIPs)) }},
		{header: "EXTERNAL-IP", text: func(r *row) string { return fewOf(addressTexts(r.ExternalAddresses)) }},
		{header: "PORT(S)", text: func(r *row) string { return fewOf(portTexts(r.Ports)) }},
		{header: "ENDPOINTS", text: func(r *row) string { return strconv.Itoa(r.Endpoints) }},
		{header: "LOCAL", wide: true, text: func(r *row) string { return strconv.Itoa(r.LocalEndpoints) }},
		{header: "INTERNAL", wide: true, text: func(r *row) string { return r.InternalTrafficPolicy }},
		{header: "EXTERNAL", wide: true, text: func(r *row) string { return r.ExternalTrafficPolicy }},
		{header: "AFFINITY", wide: true, text: func(r *row) string {
			if r.SessionAffinitySeconds == 0 {
				return ""
			}
			return duration.HumanDuration(time.Duration(r.SessionAffinitySeconds) * time.Second)
		}},
		{header: "OBSTACLES", text: func(r *row) string {
			var kinds []string
			for _, o := range r.Obstacles {
				if !slices.Contains(kinds, o.Kind) {
					kinds = append(kinds, o.Kind)
				}
			}
			return strings.Join(kinds, ",")
		}},
		{header: "DETAILS", wide: true, text: func(r *row) string {
			var details []string
			for _, o := range r.Obstacles {
				details = append(details, o.Text)
			}
			const most = 4 // a Service may have thousands
			if len(details) > most {
				details = append(details[:most], fmt.Sprintf("%d more", len(details)-most))
			}
			return strings.Join(details, "; ")
		}},
	}
}

func addressTexts(list []netip.Addr) []string {
	texts := make([]string, len(list))
	for i, a := range list {
		texts[i] = a.String()
	}
	return texts
}

// portTexts returns ports as kubectl prints them: 80:30080/tcp.
func portTexts(ports []inspect.PortRow) []string {
	texts := make([]string, len(ports))
	for i, p := range ports {
		texts[i] = inspect.PortText(p.Name, p.Protocol, p.Port)
		if port, protocol, _ := strings.Cut(texts[i], "/"); p.NodePort != 0 {
			texts[i] = fmt.Sprintf("%s:%d/%s", port, p.NodePort, protocol)
		}
	}
	return texts
}
