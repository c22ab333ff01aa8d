package result

import (
	"fmt"
	"slices"
	"strings"
)

// claim is a sentence about nftproxy that a picture shows.
type claim struct {
	file string
	// question and key say which figures of a report the picture has.
	question, key string
	// rates says that the horizontal axis is about changes a second: the picture has the
	// figures of a node at the usual size, and no question of its own.
	rates bool
	// backends are those that are drawn, where the report has them: the first one
	// below the others.
	backends []string
	// about says what was measured.
	about string
	// sentence is the claim, with the figures of the report.
	sentence func(figures) string
}

// figures are what the sentence of a claim is made of, as text.
type figures struct {
	// services is the number of Services, or of changes a second, that the sentence is about, ours what
	// nftproxy did with them, and theirs what kube-proxy did: in the mode that is the
	// best at it, if the report has several; "" if it has none.
	services, ours, theirs string
	// several says that theirs is the best of several modes.
	several bool
	// version is kube-proxy's; "" if it is not known.
	version string
	// few and many are the least and the greatest number of Services with which
	// nftproxy was measured; withFew and withMany are what it did with them.
	few, many, withFew, withMany string
}

// claims lists them in the order in which people should see them.
func claims() []claim {
	// With iptables-nft kube-proxy has no program at most sizes, so that most pictures
	// would have no line of it, only a point. A newer nft differs too little from the
	// system's to be told apart.
	most := []string{NFTProxy, Earlier, KubeProxyNFTables, KubeProxyLegacy}
	all := append(slices.Clone(most), KubeProxyIPTables)
	return []claim{
		{
			file: "first-program.svg", question: FirstProgram, key: Value,
			backends: append(slices.Clone(most), BareNetlink),
			about:    "Time from the loaded objects to rules in the kernel",
			sentence: func(f figures) string {
				return compare("nftproxy has %[1]s Services in the kernel after %[2]s", ", kube-proxy after %s", f)
			},
		},
		{
			file: "restart.svg", question: Restart, key: Value, backends: most,
			about: "Time from the loaded objects to the end of the first sync",
			sentence: func(f figures) string {
				return compare("A restart with nothing changed takes nftproxy %[2]s", ", kube-proxy %s", f)
			},
		},
		{
			file: "endpoint-change.svg", question: ChangeSeen, key: P50, backends: most,
			about: "Time from the API request to the kernel; median",
			sentence: func(f figures) string {
				return compare("nftproxy has a changed endpoint in the kernel after %[2]s", ", kube-proxy after %s", f)
			},
		},
		{
			file: "1000-changes-a-second.svg", question: Churn1000, key: P99, backends: most,
			about: "Time from the request to the kernel; 99th percentile",
			sentence: func(f figures) string {
				return compare("At 1,000 endpoint changes a second, nftproxy lags by %[2]s", ", kube-proxy by %s", f)
			},
		},
		{
			file: "memory.svg", question: PeakMemory, key: Value, backends: most,
			about: "Peak of resident memory, children included",
			sentence: func(f figures) string {
				return compare("nftproxy needs %[2]s of memory for %[1]s Services", ", kube-proxy %s", f)
			},
		},
		{
			file: "connection.svg", question: ConnectionSetup + ", pod to cluster IP, last service", key: P50, backends: all,
			about: "Time that connect() takes, from a pod to a cluster IP; median",
			sentence: func(f figures) string {
				text := fmt.Sprintf("With nftproxy, a connection takes %s to set up with %s Services", f.withMany, f.many)
				switch {
				case f.few == f.many:
					return text
				case f.withFew == f.withMany:
					return text + ", as with " + f.few
				}
				return text + fmt.Sprintf(", and %s with %s", f.withFew, f.few)
			},
		},
		{
			file: "cpu-of-changes.svg", key: Value, rates: true, backends: append(slices.Clone(most), ChangeFloor),
			about: fmt.Sprintf("CPU time of the proxy, children included, while single endpoints are replaced for %s, at %s", longDuration(NodeTime), words(Usual)),
			sentence: func(f figures) string {
				return compare("With %[1]s endpoint changes a second for "+longDuration(NodeTime)+", nftproxy takes %[2]s of CPU time", ", kube-proxy %s", f)
			},
		},
	}
}

// words is the name of a size in words.
func words(size string) string {
	services, endpoints, _ := strings.Cut(size, "x")
	return services + " Services with " + endpoints + " endpoints each"
}

// cells are the figures of the picture.
func (c *claim) cells(r *Report) []Cell {
	if !c.rates {
		return r.Of(c.question)
	}
	var list []Cell
	for _, rate := range NodeRates() {
		for _, cell := range r.Of(NodeCPU(rate)) {
			if cell.Size == Usual {
				cell.Services, cell.Endpoints = rate, 0
				list = append(list, cell)
			}
		}
	}
	return list
}

// things are what the numbers on the horizontal axis count.
func (c *claim) things() string {
	if c.rates {
		return "endpoint changes a second"
	}
	return "Services"
}

// compare makes a sentence of two clauses: one about nftproxy, of the number of
// Services and its figure, and one about kube-proxy, of its figure.
func compare(ours, theirs string, f figures) string {
	text := fmt.Sprintf(ours, f.services, f.ours)
	if f.theirs != "" {
		text += fmt.Sprintf(theirs, f.theirs)
	}
	name := ", kube-proxy"
	if f.version != "" {
		name += " " + f.version
	}
	if f.several {
		name += " at best"
	}
	text = strings.Replace(text, ", kube-proxy", name, 1)
	return text
}
