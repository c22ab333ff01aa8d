package kernel_test

import (
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"nftproxy/nft"
	"nftproxy/nft/kernel"
	compile "nftproxy/nft/ruleset"
	"nftproxy/test/check"
	"nftproxy/test/lib/netfilter"
	"nftproxy/test/lib/testnet"
)

// kernelTables are the tables of a kernel. Restart opens another Conn.
type kernelTables struct {
	*kernel.Conn
	t     *testing.T
	ns    *testnet.Namespace
	setUp func(*kernel.Conn)
}

func (k *kernelTables) Restart() error {
	if k.Conn != nil {
		if err := k.Close(); err != nil {
			return err
		}
	}
	k.Conn = openIn(k.t, k.ns)
	k.setUp(k.Conn)
	for _, f := range nft.Families() {
		if err := k.Own(table(f)); err != nil {
			return err
		}
	}
	return nil
}

// TestWays: in whatever way a script is carried out on a kernel, it ends in the same tables,
// by what is read back and by nft's listing. They are those of a fresh compile.
func TestWays(t *testing.T) {
	cmd := netfilter.NFTForTest(t)
	setUps := []struct {
		name  string
		setUp func(*kernel.Conn)
	}{
		{"owned", func(*kernel.Conn) {}},
		{"without owner", func(c *kernel.Conn) { c.HideOwnership() }},
		{"small datagrams", func(c *kernel.Conn) { c.LimitSend(64_000, unix.EMSGSIZE) }},
	}
	scripts := uint64(3)
	if testing.Short() {
		scripts = 1
	}
	for seed := range scripts {
		rng := rand.New(rand.NewPCG(seed, 16))
		script := check.NewScript(rng, 12)
		snapshot, config := script.Final()
		fresh := compile.Compile(*config, *snapshot)
		ns, c := open(t)
		must(t, c.Apply(load(fresh)))
		m, err := c.Read(fresh)
		must(t, err)
		wantRead, wantListed := check.Text(m, fresh), listed(t, cmd, ns)
		if want := check.Text(fresh.Model(), fresh); wantRead != want {
			t.Fatalf("seed %d: a fresh load (-program +read):\n%s", seed, cmp.Diff(want, wantRead))
		}
		must(t, c.DeleteTables(tableName))
		must(t, c.Close())
		for i, with := range setUps {
			for j, way := range check.Ways() {
				if testing.Short() && i != j%len(setUps) {
					continue // each way with one of them
				}
				k := &kernelTables{t: t, ns: ns, setUp: with.setUp}
				m, _, counts, err := way.Run(rng, &script, k)
				if err != nil {
					t.Fatalf("seed %d, %s, %s: %v", seed, with.name, way.Name, err)
				}
				if got := check.Text(m, fresh); got != wantRead {
					t.Errorf("seed %d, %s, %s: read (-fresh +way):\n%s", seed, with.name, way.Name, cmp.Diff(wantRead, got))
				}
				if got := listed(t, cmd, ns); got != wantListed {
					t.Errorf("seed %d, %s, %s: listed (-fresh +way):\n%s", seed, with.name, way.Name, cmp.Diff(wantListed, got))
				}
				t.Logf("seed %d, %s, %s: %+v", seed, with.name, way.Name, counts)
				must(t, k.DeleteTables(tableName))
				must(t, k.Close())
			}
		}
	}
}

// listed is nft's listing without what the way may decide: the order of sets, chains and elements, the sizes of sets,
// the index of an endpoint, and objects of time-outs, which stay when nobody wants them any more (nft.Timeout). What is
// read back has those that are wanted.
func listed(t *testing.T, cmd netfilter.NFT, ns *testnet.Namespace) string {
	t.Helper()
	size := regexp.MustCompile(`\n\s*size \d+[^\n]*`)
	index := regexp.MustCompile(` \. \d+( counter packets \d+ bytes \d+)? : `)
	elements := regexp.MustCompile(`(?s)elements = \{(.*?)\}`)
	timeout := regexp.MustCompile(`^ip6?\tct timeout `)
	var all []string
	for _, block := range blocks(t, cmd, ns) {
		if timeout.MatchString(block) {
			continue
		}
		block = size.ReplaceAllString(block, "")
		pool := strings.Contains(block, "numgen") && strings.Contains(block, "elements = {")
		block = elements.ReplaceAllStringFunc(block, func(list string) string {
			var texts []string
			for _, e := range strings.Split(elements.FindStringSubmatch(list)[1], ",") {
				e = strings.Join(strings.Fields(e), " ")
				if pool {
					e = index.ReplaceAllString(e, " : ")
				}
				texts = append(texts, e)
			}
			slices.Sort(texts)
			return strings.Join(texts, "\n")
		})
		all = append(all, block)
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}
