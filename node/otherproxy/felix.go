package otherproxy

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"nftproxy/model/ip"
	"nftproxy/nfnetlink"
)

// The settings of Felix, the agent of Calico, by its NFTablesMode: which data plane it has. It compares them without
// regard to case (felix/config of Calico 3.30 to 3.33).
const (
	felixNFTables = "enabled"
	felixIPTables = "disabled"
	// felixAuto is the default from 3.32 on. Felix then has nftables while a table ip kube-proxy or ip6 kube-proxy has a
	// chain, and iptables otherwise. It looks at its start and every 15 s, and restarts when that has changed
	// (felix/nftables/utils.go, felix/dataplane/linux/int_dataplane.go).
	felixAuto = "auto"
)

// The data planes of Felix.
const (
	planeNFTables = "nftables"
	planeIPTables = "iptables"
)

// felixChain begins the names of Felix's chains in the tables of iptables, and felixTable is the name of its own tables
// in nftables mode (felix/rules/rule_defs.go).
const (
	felixChain = "cali-"
	felixTable = "calico"
)

// FelixRemedy is what keeps Felix at nftables, as the end of a sentence.
const FelixRemedy = "nftablesMode to Enabled, in a way that its operator does not undo (docs/migrate.md#calico)"

// Felix is Calico's agent on this node, as far as the node tells. What its FelixConfigurations say is in the API, and
// not known.
type Felix struct {
	// PID is its process; 0 if none is seen, such as from a container without the node's processes.
	PID int
	// Planes are the data planes, nftables or iptables, that have chains of Felix.
	Planes []string
	// mode is the environment's NFTablesMode, in lower case; empty if it has none, cannot be read, or differs between
	// several processes.
	mode string
	// left says that no process on the node has these chains.
	left bool
	// Sign says that there are chains in the tables by which Felix chooses.
	Sign bool
}

// FindFelix looks for Felix and its chains. It needs CAP_NET_ADMIN, and CAP_SYS_PTRACE to read the environment.
func FindFelix() (Felix, error) {
	var f Felix
	here, err := markNetwork()
	if err != nil {
		return f, err
	}
	defer here.end()
	if err := f.findProcessIn("/proc", here); err != nil {
		return f, err
	}
	if err := f.findChains(); err != nil {
		return f, fmt.Errorf("look for chains of Felix: %w", err)
	}
	f.left = f.PID == 0 && len(f.Planes) > 0 && SeesNode()
	return f, nil
}

// There says whether there is a Felix, or what one left.
func (f Felix) There() bool { return f.PID != 0 || len(f.Planes) > 0 }

// Depends says that Felix has nftables, and may do so only because kube-proxy's nftables tables are there.
func (f Felix) Depends() bool {
	return f.Sign && !f.left && f.mode != felixNFTables && f.mode != felixIPTables &&
		slices.Contains(f.Planes, planeNFTables)
}

// After is the data plane that Felix has without kube-proxy's nftables tables; empty if the node does not tell.
func (f Felix) After() string {
	switch {
	case f.mode == felixNFTables:
		return planeNFTables
	case f.mode == felixIPTables, f.mode == felixAuto:
		return planeIPTables
	case slices.Equal(f.Planes, []string{planeIPTables}):
		return planeIPTables
	case slices.Equal(f.Planes, []string{planeNFTables}) && !f.Sign:
		return planeNFTables
	}
	return ""
}

// String says which data plane Felix has now, and which it will have when kube-proxy's nftables tables are gone.
func (f Felix) String() string {
	switch {
	case !f.There():
		return "no Felix is seen"
	case f.left:
		return "Felix does not run, and has left chains of " + strings.Join(f.Planes, " and ")
	}
	text := "Felix (no process is seen)"
	if f.PID != 0 {
		text = fmt.Sprintf("Felix (PID %d)", f.PID)
	}
	switch len(f.Planes) {
	case 0:
		text += " has no chains"
	case 1:
		text += " uses " + f.Planes[0]
	default:
		text += " has chains of " + strings.Join(f.Planes, " and ")
	}
	from := "its chains"
	if f.mode != "" {
		from = "FELIX_NFTABLESMODE=" + f.mode
	}
	switch after := f.After(); {
	case after == "" && len(f.Planes) == 0:
		return text
	case after == "":
		return text + "; what it uses without kube-proxy's nftables tables depends on its nftablesMode, which the node " +
			"does not tell: with Enabled nftables, with Auto (the default from Calico 3.32 on) iptables"
	case f.Depends():
		return text + " while kube-proxy's nftables tables are there, and will use " + after + " without them (" + from +
			")"
	case slices.Equal(f.Planes, []string{after}):
		return text + ", also without kube-proxy's nftables tables (" + from + ")"
	default:
		return text + ", and will use " + after + " without kube-proxy's nftables tables (" + from + ")"
	}
}

// ErrSign says that a table of kube-proxy is a sign for another program.
var ErrSign = errors.New("another program may go by the table")

// SignOfFelix says why kube-proxy's nftables tables have to stay for Felix; nil if it does not go by them.
func SignOfFelix() error {
	f, err := FindFelix()
	switch {
	case err != nil:
		return fmt.Errorf("%w: what Calico's Felix does is not known: %w", ErrSign, err)
	case f.Depends():
		return fmt.Errorf("%w: %s; set its %s, then run nftproxy cleanup --kube-proxy --accept-calico", ErrSign, f,
			FelixRemedy)
	}
	return nil
}

// findProcessIn finds the process in /proc, and what its environment says of the mode. Anybody may give a process
// Felix' name: only root's tell the mode, and only if they agree.
func (f *Felix) findProcessIn(proc string, here network) error {
	entries, err := os.ReadDir(proc)
	if err != nil {
		return fmt.Errorf("list processes: %w", err)
	}
	var modes []string
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		dir := filepath.Join(proc, e.Name())
		// A process that hides its command line is none to tell of.
		args, err := arguments(dir, func(name string) bool { return hasPrefix(name, "calico") && !here.lacks(proc, dir) })
		if err != nil || !isFelix(args) {
			continue
		}
		f.PID = cmp.Or(f.PID, pid)
		if isRoots(dir) {
			modes = append(modes, felixModeOf(dir))
		}
	}
	if slices.Sort(modes); len(slices.Compact(modes)) == 1 {
		f.mode = modes[0]
	}
	return nil
}

// isRoots says whether a process runs as root. The owner of its directory does not tell: a process that keeps others
// from reading its memory has root there.
func isRoots(dir string) bool {
	status, err := os.ReadFile(filepath.Join(dir, "status"))
	_, ids, _ := strings.Cut(string(status), "\nUid:\t0\t")
	return err == nil && strings.HasPrefix(ids, "0\t")
}

// isFelix goes by the command line: calico-node -felix up to Calico 3.32, calico component felix from 3.33 on, and
// calico-felix outside of containers.
func isFelix(args []string) bool {
	if len(args) == 0 {
		return false
	}
	name := filepath.Base(args[0])
	return hasPrefix(name, "calico-felix") ||
		hasPrefix(name, "calico-node") && slices.ContainsFunc(args[1:], func(a string) bool {
			return a == "-felix" || a == "--felix" || a == "-felix=true"
		}) ||
		name == "calico" && len(args) > 2 && args[1] == "component" && args[2] == "felix"
}

// felixModeOf is the environment's NFTablesMode. Felix reads names of variables without regard to case. What it does
// not know is its default, which comes before the API all the same, and None is the empty value (felix/config).
func felixModeOf(dir string) string {
	text, err := os.ReadFile(filepath.Join(dir, "environ"))
	if err != nil {
		return ""
	}
	mode := ""
	for v := range strings.SplitSeq(string(text), "\x00") {
		name, value, _ := strings.Cut(strings.ToLower(v), "=")
		if name != "felix_nftablesmode" {
			continue
		}
		switch mode = value; mode {
		case felixNFTables, felixIPTables:
		case "none":
			mode = felixIPTables
		default:
			mode = felixAuto
		}
	}
	return mode
}

// findChains finds Felix's chains of both data planes, and the sign by which it chooses.
func (f *Felix) findChains() error {
	c, err := dial()
	if err != nil {
		return err
	}
	defer c.close()
	has := map[string]bool{}
	for _, family := range ip.Families() {
		all := &nfnetlink.Encoder{}
		err := c.ask(unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP, family, all, func(a nfnetlink.Attributes) error {
			switch table := a.Text(unix.NFTA_CHAIN_TABLE); {
			case table == felixTable:
				has[planeNFTables] = true
			case table == kubeProxyTable:
				f.Sign = true
			case slices.Contains(felixIPTablesTables(), table) && isFelixChain(a.Text(unix.NFTA_CHAIN_NAME)):
				has[planeIPTables] = true
			}
			return nil
		})
		if err != nil {
			return err
		}
		legacy, err := legacyHasFelix(family)
		if err != nil {
			return err
		}
		has[planeIPTables] = has[planeIPTables] || legacy
	}
	for _, plane := range []string{planeNFTables, planeIPTables} {
		if has[plane] {
			f.Planes = append(f.Planes, plane)
		}
	}
	return nil
}

// felixIPTablesTables lists the tables of iptables that Felix uses.
func felixIPTablesTables() []string { return []string{"filter", "nat", "mangle", "raw"} }

func isFelixChain(name string) bool { return strings.HasPrefix(name, felixChain) }

// legacyHasFelix says whether the table filter of iptables-legacy, which Felix needs in any case, has its chains.
func legacyHasFelix(f ip.Family) (bool, error) {
	tables, err := legacyTables(f)
	if err != nil || !slices.Contains(tables, "filter") {
		return false, err
	}
	b, err := readLegacy(f, "filter")
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(b.entries, func(e entry) bool { return e.head && isFelixChain(e.chain) }), nil
}
