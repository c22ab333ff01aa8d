package main

import (
	"context"
	"fmt"
	"strings"
)

// followers follow connections and packets themselves.
func followers() []neighbour { return []neighbour{conntrackd(), ulogd()} }

// entries has a shell print entries of connection tracking alike, whoever lists them: without the time that they have
// left, and without the ports that clients and masquerading chose.
const entries = `entries() {
	grep -E '^(tcp|udp) ' | sed -E 's/ +6 [0-9]+ / 6 /; s/ +17 [0-9]+ / 17 /; s/ +/ /g; s/sport=[0-9]+/sport=*/
		s/(dport=.*dport=)[0-9]+/\1*/; s/ (mark|use|packets|bytes)=[^ ]*//g; s/ \[active.*//; s/ $//' | sort
}
kernel() { { conntrack -L -f ipv4; conntrack -L -f ipv6; } 2>/dev/null | entries; }
`

// conntrackd is the daemon on two nodes, one of which takes over the connections of the other. Neither its messages nor
// questions to nftproxy are connections.
func conntrackd() neighbour {
	config := func(here, there string) string {
		return fmt.Sprintf(`cat >/tmp/conntrackd.conf <<'END'
Sync {
	Mode FTFW { }
	UDP {
		IPv4_address %s
		IPv4_Destination_Address %s
		Port 3780
		Interface eth0
	}
}
General {
	LockFile /run/conntrackd.lock
	LogFile /tmp/conntrackd.log
	UNIX { Path /run/conntrackd.ctl }
	NetlinkBufferSize 2097152
	NetlinkBufferSizeMaxGrowth 8388608
	Filter From Userspace {
		Protocol Accept { TCP UDP }
		State Accept { SYN_SENT SYN_RECV ESTABLISHED FIN_WAIT LAST_ACK TIME_WAIT CLOSED for TCP }
	}
}
END
nft 'table ip conntrackd {
	chain in { type filter hook prerouting priority raw; goto untracked; }
	chain out { type filter hook output priority raw; goto untracked; }
	chain untracked {
		udp dport 3780 notrack
		tcp dport 10249 notrack
		tcp sport 10249 notrack
	}
}'
`, here, there)
	}
	const start = "conntrackd -C /tmp/conntrackd.conf -d\nuntil conntrackd -C /tmp/conntrackd.conf -s >/dev/null; do " +
		"sleep 0.1; done\n"
	const end = "conntrackd -C /tmp/conntrackd.conf -k\nwhile pidof conntrackd; do sleep 0.1; done\n"
	return neighbour{
		name: "conntrackd", program: "conntrackd", what: "mode FTFW on two nodes: one takes over the other's connections",
		packages: []string{"conntrackd", "conntrack", "nftables"},
		prepare:  config("192.168.100.1", "192.168.100.3"),
		peers:    []peer{{start: config("192.168.100.3", "192.168.100.1") + start}},
		events:   []event{{nameStart, start}, {"restarts", end + start}}, stop: event{"stops", end},
		record: synchronised,
	}
}

// synchronised returns what conntrackd knows of the node's connections, what its peer knows of them and takes over, and
// how many events there were.
func synchronised(ctx context.Context, w *world) (string, error) {
	const d = "conntrackd -C /tmp/conntrackd.conf "
	known, err := w.system.run(ctx, entries+"until test \"$(kernel)\" = \"$("+d+"-i | entries)\"; do sleep 0.1; done\n"+
		d+"-i | entries")
	if err != nil {
		return "", err
	}
	number := strings.Count(known, "\n")
	taken, err := w.peers[0].run(ctx, entries+fmt.Sprintf(`external() { %[1]s -e | entries; }
until test "$(external | wc -l)" = %[2]d; do sleep 0.1; done
external | sed 's/^/the peer knows /'
conntrack -F 2>/dev/null
%[1]s -c
until test "$(kernel | wc -l)" = %[2]d; do sleep 0.1; done
kernel | sed 's/^/the peer takes over /; s/ \[[A-Z]*\]//g'
`, d, number))
	if err != nil {
		return "", err
	}
	events, err := w.system.run(ctx, "internal() { "+d+"-s | sed -nE '/internal/,/destroyed/s/[[:space:]]+/ /gp'; }\n"+
		"conntrack -F 2>/dev/null\nuntil internal | grep -q 'active connections: 0$'; do sleep 0.1; done\ninternal\n")
	return strings.Join([]string{known, taken, events}, ""), err
}

// ulogd logs new packets by a group of nfnetlink_log, and connections by their events.
func ulogd() neighbour {
	const config = `{ echo '[global]'; printf 'plugin="%s"\n' /usr/lib/*/ulogd/*.so; cat; } >/tmp/ulogd.conf <<'END'
logfile="/tmp/ulogd.log"
stack=log1:NFLOG,base1:BASE,ifi1:IFINDEX,ip2str1:IP2STR,print1:PRINTPKT,emu1:LOGEMU
stack=ct1:NFCT,ip2str1:IP2STR,print1:PRINTFLOW,emu2:LOGEMU
[log1]
group=5
[emu1]
file="/tmp/packets.log"
sync=1
[ct1]
hash_enable=0
event_mask=0x00000005
[emu2]
file="/tmp/connections.log"
sync=1
END
`
	const start = "ulogd -c /tmp/ulogd.conf -d -p /run/ulogd.pid\n" + `nft 'table inet logged {
	chain in { type filter hook input priority 10; ct state new log prefix "in " group 5; }
	chain through { type filter hook forward priority 10; ct state new log prefix "through " group 5; }
	chain out { type filter hook output priority 10; ct state new log prefix "out " group 5; }
}'
`
	const end = "nft delete table inet logged\nkill \"$(cat /run/ulogd.pid)\"\nwhile pidof ulogd; do sleep 0.1; done\n"
	return neighbour{
		name: "ulogd", program: "ulogd", what: "logs packets by a group of NFLOG, and connections by events",
		packages: []string{"ulogd2", "conntrack", "nftables"}, prepare: config,
		events: []event{{nameStart, start}, {"restarts", end + start}}, stop: event{"stops", end},
		record: logged,
	}
}

// logged returns what ulogd has written, once it has written of a packet that is sent last, and of the end of its
// connection. Left out are questions to nftproxy.
func logged(ctx context.Context, w *world) (string, error) {
	return w.system.run(ctx, `
bash -c 'echo last >/dev/udp/192.168.100.3/9'
until grep -q 'DST=192.168.100.3 .*DPT=9 ' /tmp/packets.log; do sleep 0.1; done
conntrack -F 2>/dev/null
until grep -q 'DESTROY.*DST=192.168.100.3 .*DPT=9 ' /tmp/connections.log; do sleep 0.1; done
grep -hv '=10249 ' /tmp/packets.log /tmp/connections.log | sed -E 's/^.* node //; s/ SPT=[0-9]+/ SPT=*/
	s/(DPT=.*DPT=)[0-9]+/\1*/; s/ (MAC|ID|FLOWLBL|SEQ|PKTS|BYTES)=[^ ]*//g'
`)
}
