package preflight

import (
	"fmt"
	"strconv"
	"strings"
)

// portRange tells whether the kernel gives node ports to clients: a program on the node that has one
// as its own port gets the answers of another.
func (o Options) portRange() Finding {
	const name = "net.ipv4.ip_local_port_range"
	const probe = "sysctl: " + name
	text, has, err := o.sysctl(name)
	if err == nil && !has {
		return green(probe, "the kernel does not have it")
	}
	var low, high int
	if err == nil {
		_, err = fmt.Sscan(text, &low, &high)
	}
	if err != nil {
		return failed(probe, err)
	}
	first, last := int(o.NodePorts[0]), int(o.NodePorts[1])
	found := fmt.Sprintf("is %d to %d, node ports are %d to %d", low, high, first, last)
	if high < first || low > last {
		return green(probe, found)
	}
	reserved, _, err := o.sysctl("net.ipv4.ip_local_reserved_ports")
	if err != nil {
		return failed(probe, err)
	}
	if reserves(reserved, max(low, first), min(high, last)) {
		return green(probe, found+", which are reserved")
	}
	return yellow(probe, found+": a program on the node may get a node port as its own",
		fmt.Sprintf("sysctl -w net.ipv4.ip_local_reserved_ports=%d-%d", first, last))
}

// reserves says whether a list such as 8080,30000-32767 has one item with all ports from first to last.
func reserves(list string, first, last int) bool {
	for item := range strings.SplitSeq(list, ",") {
		low, high, isRange := strings.Cut(strings.TrimSpace(item), "-")
		if !isRange {
			high = low
		}
		from, err := strconv.Atoi(low)
		if err != nil {
			continue
		}
		if to, err := strconv.Atoi(high); err == nil && from <= first && last <= to {
			return true
		}
	}
	return false
}

// DefaultProc is the directory in which the kernel shows processes and settings.
const DefaultProc = "/proc"
