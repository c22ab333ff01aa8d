package scenario

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/tools/txtar"
)

// Scenario is one file.
type Scenario struct {
	// Name is the file's, without its ending.
	Name string
	// About is the file's comment.
	About string
	// Flags are those of "nftproxy run" that concern services.
	Flags []string
	// OtherTables is an nft script that makes tables of other programs.
	OtherTables string
	// Unchecked says that an API server would refuse the objects.
	Unchecked bool
	// Steps are the states in their order. There is at least one.
	Steps []Step
	// Program is the text of the first step's program.
	Program string

	path    string
	archive *txtar.Archive
}

// Step is one state of cluster and node, and the flows in it with their outcomes.
type Step struct {
	// Objects are all objects of the step, in a fixed order. Changed are those that are
	// new or differ from the step before, and Deleted those that the step removes.
	Objects, Changed []Object
	Deleted          []Key
	// Addresses are the node's own addresses.
	Addresses []netip.Addr
	// Networks are those to which the node has a route of their own.
	Networks []netip.Prefix
	// Closed endpoints have no server.
	Closed []netip.AddrPort
	// Flows are for every test, Packets only for tests with a real kernel.
	Flows, Packets []Flow
	// KubeProxy are those of Flows and Packets that have another outcome with
	// kube-proxy.
	KubeProxy []Flow
	// KubeProxyOther are the same for the other minor releases of kube-proxy that
	// differ in this from 1.37: the one before, and the next.
	KubeProxyOther map[string][]Flow
}

// WithKubeProxy returns the flows that have another outcome with a minor release of
// kube-proxy, such as "1.36"; "" is 1.37.
func (s *Step) WithKubeProxy(release string) []Flow {
	if other, found := s.KubeProxyOther[release]; found {
		return other
	}
	return s.KubeProxy
}

// Read reads a scenario file.
func Read(path string) (*Scenario, error) {
	archive, err := txtar.ParseFile(path)
	if err != nil {
		return nil, err
	}
	s := &Scenario{
		Name:    strings.TrimSuffix(filepath.Base(path), filepath.Ext(path)),
		About:   strings.TrimSpace(string(archive.Comment)),
		path:    path,
		archive: archive,
	}
	if err := s.parse(); err != nil {
		return nil, fmt.Errorf("scenario %s: %w", path, err)
	}
	return s, nil
}

func (s *Scenario) parse() error {
	now := &state{objects: map[Key]Object{}, addresses: nodeAddresses()}
	if err := now.apply(Fixture()); err != nil {
		return err
	}
	for _, f := range s.archive.Files {
		text := string(f.Data)
		switch f.Name {
		case "proxy":
			s.Flags = lines(text)
			continue
		case "other.nft":
			s.OtherTables = text
			continue
		case "program.nft":
			s.Program = text
			continue
		}
		number, section, found := strings.Cut(f.Name, "/")
		if !found {
			number, section = "1", f.Name
		}
		n, err := strconv.Atoi(number)
		if err != nil || n != len(s.Steps) && n != len(s.Steps)+1 {
			return fmt.Errorf("section %q: step %s does not follow step %d", f.Name, number, len(s.Steps))
		}
		if n > len(s.Steps) {
			if n > 1 {
				now = now.next()
			}
			s.Steps = append(s.Steps, Step{})
		}
		if err := s.section(now, &s.Steps[n-1], section, text); err != nil {
			return fmt.Errorf("section %q: %w", f.Name, err)
		}
		now.fill(&s.Steps[n-1])
	}
	if len(s.Steps) == 0 {
		return fmt.Errorf("no objects.yaml")
	}
	return nil
}

func (s *Scenario) section(now *state, step *Step, name, text string) (err error) {
	switch name {
	case "objects.yaml":
		return now.apply(text)
	case "delete":
		return now.delete(lines(text))
	case "world":
		return s.world(now, lines(text))
	case "flows":
		step.Flows, err = flows(text)
	case "packets":
		step.Packets, err = flows(text)
	case "kube-proxy":
		step.KubeProxy, err = flows(text)
	case "kube-proxy-1.36", "kube-proxy-1.38":
		if step.KubeProxyOther == nil {
			step.KubeProxyOther = map[string][]Flow{}
		}
		step.KubeProxyOther[strings.TrimPrefix(name, "kube-proxy-")], err = flows(text)
	default:
		err = fmt.Errorf("unknown section")
	}
	return err
}

func (s *Scenario) world(now *state, list []string) error {
	for _, line := range list {
		words := strings.Fields(line)
		var err error
		switch {
		case line == "unchecked":
			s.Unchecked = true
		case len(words) == 2 && words[0] == "closed":
			var ep netip.AddrPort
			ep, err = netip.ParseAddrPort(words[1])
			now.closed = append(now.closed, ep)
		case len(words) == 2 && (words[0] == "address" || words[0] == "no-address"):
			var a netip.Addr
			a, err = netip.ParseAddr(words[1])
			now.addresses = slices.DeleteFunc(slices.Clone(now.addresses), func(b netip.Addr) bool { return a == b })
			if words[0] == "address" {
				now.addresses = append(now.addresses, a)
			}
		case len(words) == 2 && (words[0] == "network" || words[0] == "no-network"):
			var n netip.Prefix
			n, err = netip.ParsePrefix(words[1])
			now.networks = slices.DeleteFunc(slices.Clone(now.networks), func(o netip.Prefix) bool { return n == o })
			if words[0] == "network" {
				now.networks = append(now.networks, n)
			}
		default:
			err = fmt.Errorf("want: address A, no-address A, network CIDR, no-network CIDR, closed EP or unchecked")
		}
		if err != nil {
			return fmt.Errorf("line %q: %w", line, err)
		}
	}
	return nil
}

func flows(text string) ([]Flow, error) {
	var list []Flow
	for _, line := range lines(text) {
		f, err := ParseFlow(line)
		if err != nil {
			return nil, err
		}
		list = append(list, f)
	}
	return list, nil
}

// lines returns the lines that are neither blank nor comments.
func lines(text string) []string {
	var list []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			list = append(list, line)
		}
	}
	return list
}

// Update puts the text of the first step's program into the contents of the file. It
// returns the file's path and the new contents.
func (s *Scenario) Update(program string) (path string, contents []byte) {
	at := slices.IndexFunc(s.archive.Files, func(f txtar.File) bool { return f.Name == "program.nft" })
	if at < 0 {
		at = len(s.archive.Files)
		s.archive.Files = append(s.archive.Files, txtar.File{Name: "program.nft"})
	}
	s.archive.Files[at].Data = []byte(program)
	return s.path, txtar.Format(s.archive)
}
