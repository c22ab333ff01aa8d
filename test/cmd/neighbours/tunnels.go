package main

import "strings"

const wireGuard, wireGuardVersion = "golang.zx2c4.com/wireguard", "v0.0.0-20260522210424-ecfc5a8d5446"

// tunnels carry the node's packets to another place.
func tunnels() []neighbour {
	const program = "/opt/" + wireGuardVersion + "/wireguard"
	const keys = `node=$(printf %032d 1 | base64)
client=$(printf %032d 2 | base64)
`
	const up = "export WG_QUICK_USERSPACE_IMPLEMENTATION=" + program + "\nwg-quick up wg0\n"
	const down = "wg-quick down wg0\n"
	// The client reaches pods and Services through the tunnel while these routes are there: they are narrower than those
	// to the node.
	routes := func(change string) string {
		var b strings.Builder
		for _, to := range []string{"10.244.0.0/17", "203.0.113.0/25", "203.0.113.128/25", "fd00:244::/57", "2001:db8::/65"} {
			b.WriteString("ip route " + change + " " + to + " dev wg0\n")
		}
		return b.String()
	}
	const loses = "wg-quick first sends all packets into the tunnel and then leaves out networks that the node has " +
		"routes to. Packets in between are lost, and a connection that begins there and is masqueraded keeps the tunnel's " +
		"address, so that no answer comes. Connections with that address end when it goes"
	one := func(name, what, setting, set string) neighbour {
		return neighbour{
			name: name, program: "WireGuard", what: what, setting: setting, loses: loses,
			packages: []string{"wireguard-tools", "nftables"}, programs: []string{"wireguard-go " + wireGuardVersion},
			// wg-quick sets its mark and rules where all packets are to go through the tunnel.
			prepare: keys + `cat >/etc/wireguard/wg0.conf <<EOF
[Interface]
Address = 10.99.0.1/24, fd00:99::1/64
ListenPort = 51820
PrivateKey = $node
` + set + `[Peer]
PublicKey = $(echo "$client" | wg pubkey)
Endpoint = 192.168.100.2:51820
AllowedIPs = 0.0.0.0/0, ::/0
EOF
`,
			events: []event{
				{nameStart, up + "wg show wg0 fwmark | grep 0xca6c\nnft list table ip wg-quick-wg0\n"},
				{"reloads", "wg-quick strip wg0 >/tmp/stripped\nwg syncconf wg0 /tmp/stripped\n"},
				{"restarts", down + up},
			},
			stop: event{"stops", down},
			peers: []peer{{
				at: "outside",
				start: keys + `echo "$client" >/tmp/key
` + program + ` wg0
wg set wg0 listen-port 51820 private-key /tmp/key peer "$(echo "$node" | wg pubkey)" endpoint 192.168.100.1:51820 \
	allowed-ips 10.99.0.1/32,10.244.0.0/16,203.0.113.0/24,fd00:99::1/128,fd00:244::/56,2001:db8::/64
ip addr add 10.99.0.2/24 dev wg0
ip addr add fd00:99::2/64 dev wg0 nodad
ip link set wg0 up
`,
				after:  map[string]string{nameStart: routes("replace")},
				before: map[string]string{"stops": routes("delete")},
			}},
		}
	}
	const accept = "nft insert rule ip wg-quick-%i preraw iifname lo accept; nft insert rule ip6 wg-quick-%i preraw " +
		"iifname lo accept"
	alone := one("wireguard", "wg-quick, in user space: packets to other networks, and those of the client outside, go "+
		"through the tunnel (mark 0xca6c)", "", "")
	alone.silences = "for each address of the tunnel it drops packets that do not come from there and have no source of " +
		"the node, as resets of Services have"
	set := one("wireguard-set", "the same with a rule for packets of the node to itself",
		"in the file of wg-quick: `PostUp = "+accept+"`", "PostUp = "+accept+"\n")
	set.unset = []string{alone.name}
	return []neighbour{alone, set}
}
