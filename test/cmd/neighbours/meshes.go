package main

import _ "embed"

const istio, istioVersion = "istio.io/istio/pilot/cmd/pilot-agent", "v0.0.0-20260827124520-eed52ebb66ad"

// sidecar takes the place of Envoy in a pod.
//
//go:embed sidecar.py
var sidecar string

// meshes redirect the connections of pods to a proxy in the pod.
func meshes() []neighbour {
	one := func(name, what, flag, there string) neighbour {
		const start = `rm -f /tmp/sidecar.log
setpriv --reuid 1337 --regid 1337 --clear-groups python3 /tmp/sidecar.py >/tmp/sidecar.log 2>&1 &
until grep -qs ready /tmp/sidecar.log; do sleep 0.1; done
`
		const end = "kill \"$(pidof python3)\"\nwhile pidof python3; do sleep 0.1; done\n"
		// The kernel lets nobody use ::6, which Istio gives to the pod, for some moments on a busy machine.
		const usable = "while ip -6 addr show dev lo tentative | grep -q ::6; do sleep 0.1; done\n"
		// The arguments are those that Istio gives to the container istio-init.
		rules := "/opt/" + istioVersion + "/pilot-agent istio-iptables -p 15001 -z 15006 -u 1337 -m REDIRECT -i '*' -x '' " +
			"-b '*' --dual-stack " + flag + " -d 15090,15021"
		in := func(place string) peer {
			return peer{
				at: place, start: "cat >/tmp/sidecar.py <<'END'\n" + sidecar + "END\n" + start,
				after: map[string]string{
					nameStart: rules + ",15020\n" + usable + there, "changes its rules": rules + " --reconcile\n" + usable + there,
					"restarts": end + start, "stops": rules + " --cleanup-only\n! { " + there + "; }\n",
				},
			}
		}
		return neighbour{
			name: name, program: "Istio", what: what, packages: []string{"iptables", "nftables"},
			programs: []string{"istio.io/istio " + istioVersion},
			events:   []event{{nameStart, ""}, {"changes its rules", ""}, {"restarts", ""}}, stop: event{"stops", ""},
			notes: []string{
				"Envoy itself chooses the endpoints of Services that Istio knows. nftproxy serves all others, and UDP, " +
					"which Istio does not redirect.",
				"With a proxy in the client's pod, a connection to a Service without endpoints, or to an unknown port, " +
					"begins and then breaks off.",
			},
			peers: []peer{in("pod"), in("endpoint")}, accepts: []string{"pod", "endpoint"},
			drops: []string{nameStart, "changes its rules", "restarts", "stops"}, cuts: true,
		}
	}
	return []neighbour{
		one("istio", "Istio's own program redirects all TCP connections of a client's and an endpoint's pod, by rules of "+
			"iptables, to a small proxy in place of Envoy",
			"--force-iptables-binary=nft", "iptables-save | grep -q ISTIO_OUTPUT && ip6tables-save | grep -q ISTIO_OUTPUT"),
		one("istio-nftables", "the same with rules of nftables", "--native-nftables",
			"nft list ruleset | grep -q istio-proxy-nat"),
	}
}
