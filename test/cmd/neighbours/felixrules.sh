# felix.sh nftables|iptables pods|host write|change|remove
#
# The interfaces of pods are those with a route to one address. Bits of the packet mark are Felix' own, 0xffff0000: accepted
# 0x10000, a packet of a pod 0x80000.
set -e
plane=$1 kind=$2 do=$3

pods() { ip -"$1" -o route show | sed -n "s/^\([0-9a-f.:]*\) dev \(veth[0-9]*\).*/\2 \1/p"; }

# family sets what differs between the families.
family() {
	if [ "$1" = 4 ]; then
		f=ip type=ipv4_addr pool=10.244.0.0/16 near=10.244.0.10 ipt=iptables icmp=icmp
		neighbours=
	else
		f=ip6 type=ipv6_addr pool=fd00:244::/56 near=fd00:244::10 ipt=ip6tables icmp=ipv6-icmp
		neighbours='meta l4proto ipv6-icmp icmpv6 type { 130, 131, 132, 133, 135, 136 } accept'
	fi
}

nft_pods() {
	from= to= chains=
	for pod in $(pods "$1" | tr ' ' ,); do
		i=${pod%,*} a=${pod#*,}
		from="$from $i : goto filter-cali-fw-$i," to="$to $i : goto filter-cali-tw-$i,"
		policy="tcp dport $port counter meta mark set meta mark | 0x10000
		udp dport $port counter meta mark set meta mark | 0x10000"
		out="$f daddr $pool $policy
		$f daddr $pool udp dport $port counter meta mark set meta mark | 0x10000
		th dport 32100 counter meta mark set meta mark | 0x10000"
		chains="$chains
	chain filter-cali-pi-$i {
		$policy
	}
	chain filter-cali-po-$i {
		$out
	}
	chain filter-cali-tw-$i {
		ct state established,related counter accept
		ct state invalid counter drop
		$neighbours
		meta mark set meta mark & 0xfffeffff
		jump filter-cali-pi-$i
		meta mark & 0x10000 == 0x10000 return
		counter drop
	}
	chain filter-cali-fw-$i {
		ct state established,related counter accept
		ct state invalid counter drop
		$neighbours
		meta mark set meta mark & 0xfffeffff
		udp dport 4789 counter drop
		meta l4proto 4 counter drop
		jump filter-cali-po-$i
		meta mark & 0x10000 == 0x10000 return
		counter drop
	}"
	done
	echo "add table $f calico
delete table $f calico
table $f calico {
	set pools { type $type; flags interval; elements = { $pool } }
$chains
	map from { type ifname : verdict; elements = {$from} }
	map to { type ifname : verdict; elements = {$to} }
	chain filter-cali-from-wl { iifname vmap @from
		counter drop
	}
	chain filter-cali-to-wl { oifname vmap @to
		counter drop
	}
	chain raw-PREROUTING { type filter hook prerouting priority raw
		meta mark set meta mark & 0xffe4ffff
		iifname \"veth*\" meta mark set meta mark | 0x80000
		meta mark & 0x80000 == 0x80000 fib saddr . mark . iif oif 0 counter drop
	}
	chain mangle-PREROUTING { type filter hook prerouting priority mangle
		ct state established,related accept
	}
	chain nat-PREROUTING { type nat hook prerouting priority dstnat; }
	chain nat-OUTPUT { type nat hook output priority 110; }
	chain nat-POSTROUTING { type nat hook postrouting priority srcnat + 10
		$f saddr @pools $f daddr != @pools counter masquerade
	}
	chain filter-FORWARD { type filter hook forward priority filter
		meta mark set meta mark & 0xffe5ffff
		iifname \"veth*\" jump filter-cali-from-wl
		oifname \"veth*\" jump filter-cali-to-wl
		meta mark & 0x10000 == 0x10000 counter accept
		meta mark set meta mark | 0x10000
	}
	chain filter-INPUT { type filter hook input priority filter
		iifname \"veth*\" goto filter-cali-wl-to-host
	}
	chain filter-cali-wl-to-host { jump filter-cali-from-wl
		counter accept
	}
	chain filter-OUTPUT { type filter hook output priority filter
		oifname \"veth*\" return
	}
	chain mangle-POSTROUTING { type filter hook postrouting priority mangle
		meta mark set meta mark & 0xffe4ffff
	}
}"
}

nft_host() {
	echo "add table $f calico
delete table $f calico
table $f calico {
	chain untracked { tcp dport 32100 meta mark set meta mark | 0x10000
		tcp sport 32100 meta mark set meta mark | 0x10000
		meta mark & 0x10000 == 0x10000 notrack
	}
	chain pre-dnat { fib daddr type local meta l4proto { tcp, udp } th dport 30000-32767 counter meta mark set meta mark | 0x10000
		$f daddr $pool counter meta mark set meta mark | 0x10000
		meta l4proto { tcp, udp } th dport { 80, 90, $port } counter meta mark set meta mark | 0x10000
	}
	chain own { meta l4proto { tcp, udp } th dport 30000-32767 counter meta mark set meta mark | 0x10000
		meta l4proto $icmp meta mark set meta mark | 0x10000
	}
	chain raw-PREROUTING { type filter hook prerouting priority raw
		meta mark set meta mark & 0xffe4ffff
		iifname eth0 jump untracked
		meta mark & 0x10000 == 0x10000 counter accept
	}
	chain raw-OUTPUT { type filter hook output priority raw
		meta mark set meta mark & 0xffe4ffff
		oifname eth0 jump untracked
		meta mark & 0x10000 == 0x10000 counter accept
	}
	chain mangle-PREROUTING { type filter hook prerouting priority mangle
		ct state established,related accept
		meta mark & 0x10000 == 0x10000 accept
		iifname eth0 meta l4proto { tcp, udp } jump pre-dnat
		iifname eth0 meta l4proto { tcp, udp } meta mark & 0x10000 == 0 counter drop
		meta mark & 0x10000 == 0x10000 accept
	}
	chain filter-INPUT { type filter hook input priority filter
		meta mark & 0x10000 == 0x10000 accept
		iifname eth0 ct state established,related accept
		iifname eth0 ct state invalid drop
		iifname eth0 jump own
		meta mark & 0x10000 == 0x10000 accept
		iifname eth0 counter drop
	}
	chain filter-OUTPUT { type filter hook output priority filter
		meta mark & 0x10000 == 0x10000 accept
		meta mark set meta mark & 0xffe4ffff
		oifname eth0 ct state established,related accept
		oifname eth0 ct status != dnat counter
	}
	chain mangle-POSTROUTING { type filter hook postrouting priority mangle
		meta mark & 0x10000 == 0x10000 return
		oifname eth0 ct status dnat counter return
	}
}"
}

# iptables_pods writes the chains, and puts the jumps to them in front of other rules.
iptables_pods() {
	d='' filter='' r="$ipt -w -t"
	for pod in $(pods "$1" | tr ' ' ,); do
		i=${pod%,*}
		d="$d
-A cali-from-wl -i $i -g cali-fw-$i
-A cali-to-wl -o $i -g cali-tw-$i"
		nd= nd2=
		if [ "$1" = 6 ]; then
			nd="-A cali-tw-$i -p ipv6-icmp -j ACCEPT" nd2="-A cali-fw-$i -p ipv6-icmp -j ACCEPT"
		fi
		filter="$filter
:cali-tw-$i -
:cali-fw-$i -
-A cali-tw-$i -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A cali-tw-$i -m conntrack --ctstate INVALID -j DROP
$nd
-A cali-tw-$i -j MARK --set-xmark 0/0x10000
-A cali-tw-$i -p tcp --dport $port -j MARK --set-xmark 0x10000/0x10000
-A cali-tw-$i -p udp --dport $port -j MARK --set-xmark 0x10000/0x10000
-A cali-tw-$i -m mark --mark 0x10000/0x10000 -j RETURN
-A cali-tw-$i -j DROP
-A cali-fw-$i -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A cali-fw-$i -m conntrack --ctstate INVALID -j DROP
$nd2
-A cali-fw-$i -j MARK --set-xmark 0/0x10000
-A cali-fw-$i -p udp --dport 4789 -j DROP
-A cali-fw-$i -p 4 -j DROP
-A cali-fw-$i -d $pool -p tcp --dport $port -j MARK --set-xmark 0x10000/0x10000
-A cali-fw-$i -d $pool -p udp --dport $port -j MARK --set-xmark 0x10000/0x10000
-A cali-fw-$i -p tcp --dport 32100 -j MARK --set-xmark 0x10000/0x10000
-A cali-fw-$i -p udp --dport 32100 -j MARK --set-xmark 0x10000/0x10000
-A cali-fw-$i -m mark --mark 0x10000/0x10000 -j RETURN
-A cali-fw-$i -j DROP"
	done
	$ipt-restore -w --noflush <<END
*raw
:cali-PREROUTING -
-A cali-PREROUTING -j MARK --set-xmark 0/0x1b0000
-A cali-PREROUTING -i veth+ -j MARK --set-xmark 0x80000/0x80000
-A cali-PREROUTING -m mark --mark 0x80000/0x80000 -m rpfilter --validmark --invert -j DROP
COMMIT
*nat
:cali-POSTROUTING -
:cali-PREROUTING -
-A cali-POSTROUTING -s $pool ! -d $pool -j MASQUERADE --random-fully
COMMIT
*filter
:cali-FORWARD -
:cali-INPUT -
:cali-wl-to-host -
:cali-from-wl -
:cali-to-wl -
$(echo "$filter" | grep '^:')
$(echo "$filter" | grep '^-')
$(echo "$d" | grep '^-')
-A cali-from-wl -j DROP
-A cali-to-wl -j DROP
-A cali-FORWARD -j MARK --set-xmark 0/0x1a0000
-A cali-FORWARD -i veth+ -j cali-from-wl
-A cali-FORWARD -o veth+ -j cali-to-wl
-A cali-INPUT -i veth+ -g cali-wl-to-host
-A cali-wl-to-host -j cali-from-wl
-A cali-wl-to-host -j ACCEPT
COMMIT
END
	$r filter -C FORWARD -j cali-FORWARD 2>/dev/null || {
		$r raw -I PREROUTING -j cali-PREROUTING
		$r nat -I PREROUTING -j cali-PREROUTING
		$r nat -I POSTROUTING -j cali-POSTROUTING
		$r filter -I INPUT -j cali-INPUT
		$r filter -I FORWARD -j cali-FORWARD
		$r filter -A FORWARD -m mark --mark 0x10000/0x10000 -j ACCEPT
		$r filter -A FORWARD -j MARK --set-xmark 0x10000/0x10000
	}
}

# iptables_remove removes all chains with the prefix and what leads there.
iptables_remove() {
	$ipt-save | grep -v -e cali- -e 0x10000/0x10000 | $ipt-restore -w
}

for v in 4 6; do
	family $v
	port=8080
	if [ "$do" = change ]; then
		port=8000-8999
		[ "$plane" = nftables ] || port=8000:8999
	fi
	case $plane-$do in
	nftables-remove) nft delete table $f calico ;;
	nftables-*) nft_$kind $v | nft -f - ;;
	iptables-remove) iptables_remove ;;
	*) iptables_pods $v ;;
	esac
done
