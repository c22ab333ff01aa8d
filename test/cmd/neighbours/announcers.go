package main

// announcers put the address of a load balancer on the node.
func announcers() []neighbour {
	const start = `keepalived --use-file /tmp/keepalived.conf --pid /run/keepalived.pid --vrrp_pid /run/vrrp.pid
until ip addr show dev eth0 | grep -q 203.0.113.10/32 && ip addr show dev eth0 | grep -q 2001:db8::10/128; do sleep 0.1; done
`
	const end = `kill "$(cat /run/keepalived.pid)"
while test -e /run/keepalived.pid; do sleep 0.1; done
`
	return []neighbour{{
		name: "keepalived", what: "VRRP puts addresses of a load balancer on the node, and takes them away", packages: []string{"keepalived"},
		prepare: `cat >/tmp/keepalived.conf <<'EOF'
global_defs { router_id node }
vrrp_instance four { state MASTER
 interface eth0
 virtual_router_id 10
 priority 100
 advert_int 1
 virtual_ipaddress { 203.0.113.10/32 }
}
vrrp_instance six { state MASTER
 interface eth0
 virtual_router_id 10
 priority 100
 advert_int 1
 virtual_ipaddress { 2001:db8::10/128 }
}
EOF
`,
		events: []event{{nameStart, start}, {"reloads", `kill -HUP "$(cat /run/keepalived.pid)"`}, {"restarts", end + start}},
		stop:   event{"stops", end},
	}}
}

// bans are programs that close the node to single clients.
func bans() []neighbour {
	const start = "fail2ban-server -b --logtarget /tmp/fail2ban.log\nuntil fail2ban-client ping; do sleep 0.1; done\n"
	const end = "fail2ban-client stop\nwhile fail2ban-client ping; do sleep 0.1; done\n"
	// The server sets the rules of a ban some time after the command.
	const banned = "banned() { nft list ruleset >/tmp/rules; grep -q 192.168.100.2 /tmp/rules && grep -q fd00:100::2 /tmp/rules; }\n"
	one := func(name, what, action string) neighbour {
		return neighbour{
			name: name, what: what, packages: []string{"fail2ban", "nftables", "iptables"},
			prepare: "mkdir -p /run/fail2ban\n: >/tmp/auth.log\nrm -f /etc/fail2ban/jail.d/*\ncat >/etc/fail2ban/jail.local <<'EOF'\n[sshd]\nenabled = true\nbackend = polling\nlogpath = /tmp/auth.log\nbanaction = " + action + "\nEOF\n",
			events: []event{
				{nameStart, start},
				{"bans the client outside", banned + "fail2ban-client set sshd banip 192.168.100.2 fd00:100::2\nuntil banned; do sleep 0.1; done"},
				{"reloads", banned + "fail2ban-client reload\nuntil banned; do sleep 0.1; done"},
				{"unbans it", "fail2ban-client unban --all\nwhile nft list ruleset | grep -q -e 192.168.100.2 -e fd00:100::2; do sleep 0.1; done"},
				{"restarts", end + start},
			},
			stop: event{"stops", end},
		}
	}
	return []neighbour{
		one("fail2ban", "bans by nftables, all ports", "nftables[type=allports]"),
		one("fail2ban-iptables", "bans by iptables, all ports", "iptables-allports"),
	}
}
