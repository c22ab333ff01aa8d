# felix.sh attach POD IPV4 IPV6 | start MODE NODE OTHER-IPV4 OTHER-IPV6 DEVICE DEVICE6 | has MODE TEXT | kill
#
# attach does with a pod's interface what Calico's CNI plugin does on a node: its name, by which Felix knows the pod,
# the answers to ARP for the pod's gateway, and the routes. start ends when Felix' rules are there, and its routes to
# the other node's blocks, and has when they have the text.
set -e

# await asks with a command until that succeeds. If Felix has ended, or is too slow, it shows what Felix said.
await() {
	left=500
	until "$@" >/dev/null 2>&1; do
		left=$((left - 1))
		if [ $left = 0 ] || ! kill -0 "$(cat /run/felix.pid)"; then
			echo "never: $*"
			tail -n 20 /tmp/felix.log
			exit 1
		fi
		sleep 0.1
	done
}

leads() { ip -o route show "$1" | grep -q " dev $2 "; }
leads6() { ip -6 -o route show "$1" | grep -q " dev $2 "; }

# both says whether Felix' rules of both families have a text.
both() {
	if [ "$1" = Enabled ]; then
		nft list table ip calico | grep -q "$2" && nft list table ip6 calico | grep -q "$2"
	else
		iptables-save | grep -q "$2" && ip6tables-save | grep -q "$2"
	fi
}

case $1 in
attach)
	old=$(ip -o route show "$3" | sed -n 's/.* dev \([^ ]*\) .*/\1/p')
	new=cali$(printf 'default.%s' "$2" | sha1sum | cut -c 1-11)
	ip link set "$old" down
	ip link set "$old" name "$new"
	ip addr delete 169.254.1.1/32 dev "$new"
	sysctl -q -w "net.ipv4.conf.$new.proxy_arp=1" "net.ipv4.neigh.$new.proxy_delay=0"
	ip link set "$new" up
	ip addr add fe80::1/64 dev "$new" nodad
	ip route replace "$3" dev "$new" scope link
	ip -6 route replace "$4" dev "$new"
	;;
start)
	export DATASTORE_TYPE=etcdv3 ETCD_ENDPOINTS=http://192.168.100.1:2379 FELIX_DATASTORETYPE=etcdv3 \
		FELIX_ETCDENDPOINTS=http://192.168.100.1:2379 FELIX_FELIXHOSTNAME="$3" FELIX_NFTABLESMODE="$2" \
		FELIX_IPTABLESBACKEND=NFT \
		FELIX_IPV6SUPPORT=true FELIX_DEFAULTENDPOINTTOHOSTACTION=ACCEPT FELIX_PROGRAMCLUSTERROUTES=Enabled \
		FELIX_HEALTHENABLED=true FELIX_HEALTHHOST=127.0.0.1 FELIX_USAGEREPORTINGENABLED=false \
		FELIX_LOGSEVERITYSCREEN=Info FELIX_LOGFILEPATH=none FELIX_LOGSEVERITYFILE=none FELIX_LOGSEVERITYSYS=none \
		FELIX_XDPENABLED=false FELIX_DebugSkipCTLBCleanup=true
	/calico-felix >>/tmp/felix.log 2>&1 &
	echo $! >/run/felix.pid
	await busybox wget -q -O /dev/null http://127.0.0.1:9099/readiness
	await leads "$4" "$6"
	await leads6 "$5" "$7"
	;;
has)
	await both "$2" "$3"
	;;
kill)
	pid=$(pidof calico-felix)
	kill -9 $pid
	while kill -0 $pid 2>/dev/null; do sleep 0.1; done
	;;
esac
