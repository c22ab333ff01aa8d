package kernel_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/test/lib/netfilter"
)

const neverLookUp = 1 << 30

// readBothWays reads by dumps and by keys, and compares. It returns the number of sets that were
// dumped although they have from elements or more.
func readBothWays(t *testing.T, c *kernel.Conn, want *nft.Program, from int) (dumped int) {
	t.Helper()
	c.LookUpFrom(neverLookUp)
	byDump, err := c.Read(want)
	must(t, err)
	small := 0
	for _, f := range nft.Families() {
		if contents := byDump.Table(table(f)); contents != nil {
			for _, s := range contents.Sets {
				if len(s.Set.Key) > 0 && !s.Set.Dynamic && (len(s.Elements) < from || s.Set.Interval) {
					small++
				}
			}
		}
	}
	all := 0
	c.CountDumps(&all)
	c.LookUpFrom(from)
	byKeys, err := c.Read(want)
	must(t, err)
	for _, f := range nft.Families() {
		if diff := cmp.Diff(byDump.Table(table(f)), byKeys.Table(table(f)), cmp.AllowUnexported(nft.Contents{})); diff != "" {
			t.Fatalf("table %s: read by dumps and by keys (-dumps +keys):\n%s", f, diff)
		}
	}
	return all - small
}

// needsCounts skips the test on kernels that do not say how many elements a set has.
func needsCounts(t *testing.T, c *kernel.Conn, p *nft.Program) {
	t.Helper()
	if dumped := readBothWays(t, c, p, 1); dumped != 0 {
		t.Skip("the kernel does not say how many elements a set has (Linux 6.16)")
	}
}

// A random history of programs, read back as if another random program were wanted: lookups give
// what dumps give.
func TestReadByKeys(t *testing.T) {
	_, c := open(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	var state nft.State
	for step := range 30 {
		p := randomProgram(r)
		batch, next := state.Plan(p, timeZero.Add(time.Duration(step)*time.Minute))
		must(t, c.Apply(batch))
		state = next
		readBothWays(t, c, p, 1+r.IntN(10))
		readBothWays(t, c, randomProgram(r), 1+r.IntN(10))
	}
}

// After a restart nearly all elements are known, and no large set is dumped: not where endpoints have
// moved, come or gone, and not where whole Services have.
func TestRestartDumpsNoLargeSet(t *testing.T) {
	_, c := open(t)
	const n, large = 300, 1000
	p := services(n, 5)
	must(t, c.Apply(load(p)))
	needsCounts(t, c, p)
	with := func(i int, part *nft.Part) *nft.Program { return withPart(p, fmt.Sprintf("ns/svc-%d", i), part) }
	for name, want := range map[string]*nft.Program{
		"nothing changed":    p,
		"an endpoint moved":  with(7, service("endpoints-5", 7, 5, 1)),
		"an endpoint came":   with(7, service("endpoints-5", 7, 6, 0)),
		"endpoints went":     with(7, service("endpoints-5", 7, 2, 0)),
		"all endpoints went": with(n-1, service("endpoints-5", n-1, 0, 0)),
		"a service went":     with(0, nil),
		"a service came":     with(n, service("endpoints-5", n, 20, 0)),
		"one came, one went": withPart(with(n, service("endpoints-5", n, 3, 0)), "ns/svc-1", nil),
		"many services are new": func() *nft.Program {
			q := services(n+40, 5)
			return q
		}(),
	} {
		if dumped := readBothWays(t, c, want, large); dumped != 0 {
			t.Errorf("%s: %d large sets were dumped", name, dumped)
		}
	}
}

// What other programs did to a large set is found: lookups alone would not show an element that
// catches every key, and one with a key of no Service.
func TestReadByKeysFindsTampering(t *testing.T) {
	cmd := netfilter.NFTForTest(t)
	ns, c := open(t)
	c.HideOwnership()
	p := services(20, 5)
	must(t, c.Apply(load(p)))
	needsCounts(t, c, p)
	const element, tcp = "element ip nftproxy endpoints ", ". tcp . 80 . "
	for _, test := range []struct {
		what, do, undo string
		dumped         int
	}{
		{"another target", "delete " + element + "{ 10.96.0.3 " + tcp + "0x1 }; add " + element + "{ 10.96.0.3 " + tcp +
			"0x1 : 192.0.2.1 . 80 }",
			"delete " + element + "{ 10.96.0.3 " + tcp + "0x1 }; add " + element + "{ 10.96.0.3 " + tcp +
				"0x1 : 10.96.0.3 . 1001 }", 0},
		{"an element is missing", "delete " + element + "{ 10.96.0.3 " + tcp + "0x1 }", "add " + element + "{ 10.96.0.3 " +
			tcp + "0x1 : 10.96.0.3 . 1001 }", 0},
		{"a longer pool", "add " + element + "{ 10.96.0.3 " + tcp + "0x5 : 192.0.2.1 . 80 }", "delete " + element +
			"{ 10.96.0.3 " + tcp + "0x5 }", 0},
		{"a key of no service", "add " + element + "{ 192.0.2.9 " + tcp + "0x0 : 192.0.2.1 . 80 }", "delete " + element +
			"{ 192.0.2.9 " + tcp + "0x0 }", 1},
		{"every key", "add " + element + "{ * : 192.0.2.1 . 80 }", "delete " + element + "{ * }", 1},
	} {
		must(t, cmd.Load(ns, test.do+"\n"))
		if dumped := readBothWays(t, c, p, 50); dumped != test.dumped {
			t.Errorf("%s: %d large sets were dumped, not %d", test.what, dumped, test.dumped)
		}
		c.LookUpFrom(50)
		got, err := c.Read(p)
		must(t, err)
		if repair, _ := nft.Adopt(got, p).Plan(p, timeZero); repair.Empty() {
			t.Errorf("%s: nothing is repaired", test.what)
		}
		must(t, cmd.Load(ns, test.undo+"\n"))
	}
}

// Objects counts what a program's table has: without a table it is 0.
func TestObjects(t *testing.T) {
	_, c := open(t)
	p := everything()
	for _, f := range nft.Families() {
		if n, err := c.Objects(table(f)); n != 0 || err != nil {
			t.Errorf("table %s: %d objects before it is there, error %v", f, n, err)
		}
	}
	must(t, c.Apply(load(p)))
	for _, f := range nft.Families() {
		n, err := c.Objects(table(f))
		must(t, err)
		if want := p.Table(f).Chains.Len() + p.Table(f).Sets.Len() + p.Table(f).Timeouts.Len(); n != want {
			t.Errorf("table %s: %d objects, not %d", f, n, want)
		}
	}
}
